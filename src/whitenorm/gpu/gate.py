r"""Who may use the Triton path, and when.

It is off until ``WHITENORM_TRITON=auto`` or :func:`enable`. Then the first use of each kind of
input compares it with torch's path on made-up data; where it differs or raises, a warning says so
and torch's path is used from then on.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from whitenorm.layout import is_channels_last
from whitenorm.shrinkage import LEAST

if TYPE_CHECKING:
    from whitenorm.functional import _Method

__all__ = ["disable", "enable", "is_enabled", "unmet_requirement"]

VARIABLE = "WHITENORM_TRITON"
CAPABILITY = (8, 0)  # bfloat16, products in float64
VERSION = (3, 5)  # of Triton: products in float64
LARGEST = 32  # channels of a group
MOST = 2**30  # samples, so that where a part of them ends is a number of 32 bits
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Relative errors of float32 that pass; products in TF32 would be off by 3e-4.
TOLERANCE = 1e-5


class _State:
    """What has been asked for and found out in this process."""

    def __init__(self) -> None:
        value = os.environ.get(VARIABLE, "off")
        if value not in ("auto", "off", ""):
            raise ValueError(f"{VARIABLE} must be 'auto' or 'off', got {value!r}")
        self.on = value == "auto"
        self.counts_as_gpu = ("cuda",)  # device types; tests of the interpreter add the CPU
        self.dtypes: tuple[torch.dtype, ...] = DTYPES
        self.verdicts: dict[Kind, bool] = {}
        self.warned: set[str] = set()


class Kind(NamedTuple):
    """What a self-check is about: inputs that run the same code."""

    device: str
    dtype: torch.dtype
    rows: bool
    size: int
    remainder: int
    small: bool
    weight: torch.dtype | None
    bias: torch.dtype | None
    estimate: bool  # whether shrinkage is estimated

    def __str__(self) -> str:
        layout = "channels last" if self.rows else "maps"
        return f"{self.dtype} inputs, {layout}, in groups of {self.size} on {self.device}"


_state = _State()


def enable() -> None:
    """Lets layers on CUDA devices use the Triton path, as ``WHITENORM_TRITON=auto`` does.

    It serves training with ``whitening="zca"`` and groups of at most 32 channels, in float32,
    bfloat16 or float16, and the passes over the activations of other whitenings and synchronized
    layers. It needs a CUDA device of capability 8.0 or later and Triton 3.5 or later; else, and
    where the first use of a kind of input finds a difference, torch's path is used, with a
    warning. Not measured on a GPU yet.

    Example:
        >>> enable()
        >>> is_enabled()
        True
        >>> disable()
    """
    _state.on = True
    _state.verdicts.clear()
    _state.warned.clear()


def disable() -> None:
    """Back to torch's path everywhere."""
    _state.on = False


@contextlib.contextmanager
def switched(on: bool) -> Iterator[None]:
    """The Triton path asked for, or not, for a while; what is known about it stays known."""
    before, _state.on = _state.on, on
    try:
        yield
    finally:
        _state.on = before


def is_enabled() -> bool:
    """Whether the Triton path has been asked for.

    Example:
        >>> is_enabled()
        False
    """
    return _state.on


def unmet_requirement(device: torch.device | str = "cuda") -> str | None:
    """Why the Triton path can't be used on a device, in words; None if it can."""
    device = torch.device(device)
    if device.type not in _state.counts_as_gpu:
        return f"the device is {device.type}, not cuda"
    if device.type == "cuda":
        if not torch.cuda.is_available() or torch.version.hip is not None:
            return "torch has no CUDA device"
        capability = torch.cuda.get_device_capability(device)
        if capability < CAPABILITY:
            return f"the device's capability is {capability}, below {CAPABILITY}"
    try:
        import triton
    except ImportError:
        return "Triton isn't installed: pip install 'whitenorm[gpu]'"
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if version < VERSION:
        return f"Triton is {triton.__version__}, older than {'.'.join(map(str, VERSION))}"
    return None


# --- the passes alone ---------------------------------------------------------------------------


def lends_passes(view: Tensor) -> bool:
    """Whether Triton's passes are to serve a grouped view, for algebra that isn't Triton's."""
    if not _state.on or torch.compiler.is_compiling():
        return False
    return _accepts(view.flatten(1, 2), None, None, view.shape[2], 0.0)


# --- training -----------------------------------------------------------------------------------


def serves(x: Tensor, weight: Tensor | None, bias: Tensor | None, method: _Method) -> bool:
    """Whether the Triton path is to train on x: all of it, the k x k algebra too."""
    if not _state.on or method.whitening != "zca" or method.process_group is not None:
        return False
    if weight is not None and weight.dim() != 1:  # its kernels scale, and don't colour
        return False
    return _accepts(x, weight, bias, method.group_size, method.shrinkage)


def _accepts(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    group_size: int,
    shrinkage: float | str,
) -> bool:
    if x.device.type not in _state.counts_as_gpu or x.dtype not in _state.dtypes:
        return False
    channels = x.shape[1]
    size, count = min(group_size, channels), x.numel() // channels
    if size > LARGEST or not 0 < count < MOST or _is_transformed(x):
        return False
    passes: bool = _passes_check(
        str(x.device),
        x.dtype,
        is_channels_last(x),
        size,
        channels % size,
        _is_small(x),
        None if weight is None else weight.dtype,
        None if bias is None else bias.dtype,
        isinstance(shrinkage, str),
    )
    return passes


def _is_small(x: Tensor) -> bool:
    from whitenorm.passes import PIECE  # which asks this module

    return x.numel() <= PIECE


def _is_transformed(x: Tensor) -> bool:
    """Whether x goes where operators can't follow: other tools' graphs, torch.func, duals."""
    if torch.compiler.is_compiling():
        return bool(torch.compiler.is_exporting())
    return bool(
        type(x) not in (Tensor, torch.nn.Parameter)
        or torch.jit.is_tracing()  # type: ignore[attr-defined]
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def _passes_check(*fields: Any) -> bool:
    """Whether the Triton path is right on this kind of input; computed once, then known.

    While torch.compile follows the code, this is called as it is.
    """
    kind = Kind(*fields)
    if kind not in _state.verdicts:
        if _is_capturing(kind.device):
            return False  # nothing may be compared now, so nothing is decided
        if reason := unmet_requirement(kind.device):
            _warn(f"the Triton path can't be used: {reason}. torch's is used.")
            _state.verdicts[kind] = False
        else:
            _state.verdicts[kind] = _check(kind)
    return _state.verdicts[kind]


# What torch.compiler.assume_constant_result does, which would import all of torch.compile: that
# takes as long as torch itself.
_passes_check._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _is_capturing(device: str) -> bool:
    return device.startswith("cuda") and torch.cuda.is_current_stream_capturing()


def _warn(text: str) -> None:
    if text not in _state.warned:
        _state.warned.add(text)
        warnings.warn(text, stacklevel=2)


def _check(kind: Kind) -> bool:
    """Compares both paths on made-up data; warns where they differ or one raises."""
    try:
        with torch.inference_mode(False), torch.enable_grad():
            error = _difference(kind)
    except Exception as raised:  # whatever Triton or the driver may throw
        _warn(f"the Triton path failed on {kind} ({raised!r}). torch's is used.")
        return False
    if not error <= 1:  # NaN too
        _warn(f"the Triton path is off by {error:.2g} tolerances on {kind}. torch's is used.")
        return False
    return True


def _difference(kind: Kind) -> float:
    """The largest error of the Triton path against torch's in float64, in tolerances."""
    from whitenorm.functional import _BatchWhitening
    from whitenorm.gpu.operators import whiten

    x, g, weight, bias = _made_up(kind)
    shrinkage = (LEAST, True) if kind.estimate else (0.1, False)
    method = _method(1e-5, kind.size, *shrinkage)
    inputs = [t for t in (x, weight, bias) if t is not None]
    y, mean, _, W, *_ = whiten(x, weight, bias, method.eps, kind.size, *shrinkage)
    found = [y, *torch.autograd.grad(y, inputs, g)]
    doubles = [
        None if t is None else t.detach().double().requires_grad_() for t in (x, weight, bias)
    ]
    expected_y, expected_mean, expected_W, *_ = _BatchWhitening.apply(*doubles, method)
    given = [t for t in doubles if t is not None]
    expected = [expected_y, *torch.autograd.grad(expected_y, given, g.double())]
    worst = [
        (a.double() - b).norm() / b.norm() / max(TOLERANCE, torch.finfo(a.dtype).eps)
        for a, b in zip(found, expected, strict=True)
    ]
    worst += [
        (a - b).norm() / b.norm() / TOLERANCE for a, b in ((mean, expected_mean), (W, expected_W))
    ]
    return torch.stack(worst).max().item()


def _made_up(kind: Kind) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Input, gradient, weight and bias of a kind: correlated channels with a mean."""
    from whitenorm.passes import PIECE

    generator = torch.Generator().manual_seed(0)
    channels = 2 * kind.size + kind.remainder
    images = 5 if kind.small else PIECE // (channels * 63) + 2
    mixing = torch.eye(channels) + 0.5 * torch.randn(channels, channels, generator=generator)
    tensors = [torch.randn(images, 9, 7, channels, generator=generator) for _ in range(2)]
    tensors[0] = tensors[0] @ mixing + 3
    x, g = (t.movedim(-1, 1).to(kind.device, kind.dtype) for t in tensors)
    if not kind.rows:
        x, g = x.contiguous(), g.contiguous()
    vectors: list[Tensor | None] = []
    for dtype in (kind.weight, kind.bias):
        t = None if dtype is None else torch.randn(channels, generator=generator)
        vectors.append(None if t is None else t.to(kind.device, dtype).requires_grad_())
    return x.requires_grad_(), g, vectors[0], vectors[1]


def train(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    method: _Method,
    running_mean: Tensor | None,
    running_matrix: Tensor | None,
    momentum: float | None,
    num_batches_tracked: Tensor | None,
) -> Tensor | None:
    """y, with the running statistics moved; None where an error has been warned of."""
    from whitenorm.gpu.operators import update_running, whiten

    shrinkage = method.shrinkage
    if isinstance(shrinkage, str):
        options = LEAST if shrinkage == "bounded" else 0.0, True
    else:
        options = float(shrinkage), False
    found = attempt(whiten, x, weight, bias, method.eps, method.group_size, *options)
    if found is None:
        return None
    y, mean, central, W, _, _, finite, _ = found
    if running_mean is not None:
        values, divisor = W.detach(), 1.0
        if method.running == "covariance":
            values, divisor = central.detach(), x.numel() / x.shape[1] - 1
        batch = mean.detach(), values, finite
        running = running_mean, running_matrix, num_batches_tracked
        update_running(*running, *batch, divisor, momentum)
    return y  # type: ignore[no-any-return]


def attempt(operator: Callable[..., Any], x: Tensor, *rest: Any) -> Any:
    """What an operator gives; None, and no Triton from then on, if it raises."""
    if torch.compiler.is_compiling():
        return operator(x, *rest)
    try:
        return operator(x, *rest)
    except torch.OutOfMemoryError:
        raise
    except Exception as raised:
        _warn(f"the Triton path failed ({raised!r}) and is turned off. torch's is used.")
        disable()
        return None


def differentiable_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: tuple[bool, bool, bool],
    eps: float,
    group_size: int,
    shrinkage: float,
    estimate: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """torch's gradients, which can be differentiated again."""
    from whitenorm.functional import _differentiable_backward

    method = _method(eps, group_size, shrinkage, estimate)
    return _differentiable_backward(g, x, weight, bias, wanted, method)


def _method(eps: float, group_size: int, shrinkage: float, estimate: bool) -> _Method:
    """What the Triton path does, in the words of torch's."""
    from whitenorm.functional import _Method

    return _Method(
        eps=eps,
        group_size=group_size,
        whitening="zca",
        iterations=5,
        running="whitening",
        shrinkage=("bounded" if shrinkage else "auto") if estimate else shrinkage,
        process_group=None,
    )
