r"""Triton's passes over grouped views, for replicas and for whitenings other than ZCA.

They do what those of :mod:`whitenorm.passes` do, with no copy for the shift.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whitenorm.gpu import launch
from whitenorm.precision import work_dtype

if TYPE_CHECKING:
    from whitenorm.passes import Term

__all__ = ["apply", "moments", "sums"]


def moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A shift and the mean [G, k, 1], and the sum of (x - mean) (x - mean)^T."""
    mean, central = launch.moments(x.flatten(1, 2), x.shape[2])
    mean = mean.view(*x.shape[1:3], 1)
    return mean.to(work_dtype(x)), mean, central


def sums(x: Tensor, g: Tensor, shift: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The sums of g, [G, k, 1], and of g (x - shift)^T, [G, k, k], in dtype."""
    flat = shift.flatten().contiguous()
    total, outer = launch.sums(x.flatten(1, 2), g.flatten(1, 2), flat, x.shape[2])
    return total.view(shift.shape).to(dtype), outer.to(dtype)


def apply(out: Tensor, constant: Tensor, *terms: Term) -> Tensor:
    """Writes the sum of the terms plus a constant into ``out``; only the last has a shift."""
    *first, (matrix, x, shift) = terms
    if shift is None:
        raise ValueError("the last term has no shift; give one, or use whitenorm.passes.apply")
    other = g = None
    if first:
        ((other, g, _),) = first
    return launch.apply(
        x.flatten(1, 2),
        shift.flatten().contiguous(),
        matrix.contiguous(),
        constant.flatten().contiguous(),
        None if g is None else g.flatten(1, 2),
        None if other is None else other.contiguous(),
        out.flatten(1, 2),
    )
