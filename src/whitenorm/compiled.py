r"""The whitening of the running covariance in a compiled model: of the present one, at every call.

A compiled graph would take the matrix as it was when the graph was made or when ``eval()`` was
called last. Averages of models write into buffers at other times, so the graph asks this operator,
which decomposes a covariance once and looks whether it has changed since.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from whitenorm.functional import whitening_of_running_covariance

__all__ = ["present_whitening"]


class _Known(NamedTuple):
    """A covariance, which may have been freed since, its state, and its whitening."""

    storage: StorageWeakRef
    state: tuple[object, ...]
    whitening: Tensor


_known: dict[int, _Known] = {}  # by address


@torch.library.custom_op(
    "whitenorm::present_whitening", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,)
)
def present_whitening(
    covariance: Tensor, channels: int, eps: float, whitening: str, iterations: int
) -> Tensor:
    """The matrices that inference multiplies by, in the covariance's dtype."""
    if covariance.is_inference():  # which doesn't count its changes
        W = whitening_of_running_covariance(covariance, channels, eps, whitening, iterations)
        return W.to(covariance.dtype)
    state = (covariance._version, covariance.shape, channels, eps, whitening, iterations)
    known = _known.get(covariance.data_ptr())
    if known is None or known.storage.expired() or known.state != state:
        for address in [a for a, k in _known.items() if k.storage.expired()]:
            del _known[address]
        W = whitening_of_running_covariance(covariance, channels, eps, whitening, iterations)
        storage = StorageWeakRef(covariance.untyped_storage())
        known = _Known(storage, state, W.to(covariance.dtype))
        _known[covariance.data_ptr()] = known
    return known.whitening.clone()


@present_whitening.register_fake
def _(covariance: Tensor, channels: int, eps: float, whitening: str, iterations: int) -> Tensor:
    return torch.empty_like(covariance)
