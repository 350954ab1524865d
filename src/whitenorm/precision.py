r"""Which dtype does what, and when Python may look at the values of a tensor."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from whitenorm.transforms import is_wrapped

__all__ = [
    "algebra_dtype",
    "is_traced",
    "may_read_values",
    "no_autocast",
    "off_cpu",
    "surely_finite",
    "work_dtype",
]


def work_dtype(x: Tensor) -> torch.dtype:
    """The dtype of the passes over the activations: the input's own, but at least float32."""
    return torch.promote_types(x.dtype, torch.float32)


def algebra_dtype(x: Tensor) -> torch.dtype:
    """The dtype of the k x k algebra: float64 where the device has it."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def no_autocast(device_type: str) -> contextlib.AbstractContextManager[Any]:
    """Turns autocast off where it is on; elsewhere it leaves no trace in exported graphs."""
    if device_type != "meta" and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return contextlib.nullcontext()


def is_traced() -> bool:
    """Whether make_fx, which torch.func.linearize uses too, writes down the operations."""
    # The first question takes a tenth of the time of the second, and the answer is mostly no.
    return is_in_torch_dispatch_mode() and get_proxy_mode() is not None


def may_read_values(x: Tensor) -> bool:
    """Whether Python may depend on the values of x: no device to wait for, no graph to break.

    Subclasses of tensors may have no values, as those of FakeTensorMode, nor have those of vmap.
    """
    if torch.compiler.is_compiling() or type(x) is not Tensor or x.device.type != "cpu":
        return False
    return not is_traced() and not is_wrapped(x)


def off_cpu(x: Tensor) -> bool:
    """Whether x lies on a device where a copy costs as much as a pass, and a call a launch."""
    return x.device.type != "cpu"


def surely_finite(x: Tensor) -> bool:
    """Whether x is known to be finite, without having waited for a device."""
    return may_read_values(x) and math.isfinite(x.sum())
