r"""What a DBN layer can't do without, by itself: the bound that the layer is measured against."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from whitenorm.modules import _DecorrelatedBatchNorm
from whitenorm.passes import Term, affine, empty, is_rows, samples, sums

__all__ = ["BareLayer", "laid_bare"]


class BareLayer(nn.Module):
    """The four passes over the activations and the eigenvalues, in the library's own arrangement.

    It has the cost of a DBN layer whose Python, autograd and algebra with small matrices but for
    the decompositions is free, and normalizes nothing: it divides by the deviation of the first
    batch that it sees, so that a network of such layers has ordinary numbers.

    Args:
        channels: Of the input; a multiple of the group size, unless that is larger.
        group_size: As that of the DBN layer.
    """

    matrix: Tensor
    constant: Tensor

    def __init__(self, channels: int, group_size: int) -> None:
        super().__init__()
        size = min(group_size, channels)
        if channels % size:
            raise ValueError(
                f"the bound has no remainders: {channels} channels aren't groups of {size}"
            )
        self.register_buffer("matrix", torch.eye(size).repeat(channels // size, 1, 1))
        self.register_buffer("constant", torch.zeros(channels // size, size, 1))
        self._scaled = False

    def forward(self, input: Tensor) -> Tensor:
        if not self._scaled:
            self.matrix /= input.detach().std()
            self._scaled = True
        y: Tensor = _Passes.apply(input, self.matrix, self.constant)
        return y


class _Passes(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, constant: Tensor) -> Tensor:
        ctx.save_for_backward(x, matrix, constant)
        size, rows = matrix.shape[-1], is_rows(x)
        view = samples(x, size, rows)
        _, outer = sums(view, None, torch.float64)
        torch.linalg.eigh(outer)
        y = empty(x, rows)
        affine(samples(y, size, rows), constant, Term(matrix, view))
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix, constant = ctx.saved_tensors
        size, rows = matrix.shape[-1], is_rows(x)
        view, gradient = samples(x, size, rows), samples(g, size, rows)
        sums(view, None, torch.float32, gradient)
        dx = empty(x, rows)
        nothing = torch.zeros_like(matrix)
        affine(samples(dx, size, rows), constant, Term(matrix, gradient), Term(nothing, view))
        return dx, None, None


def laid_bare(network: nn.Module) -> nn.Module:
    """The network with a :class:`BareLayer` in the place of each DBN layer."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _DecorrelatedBatchNorm):
                setattr(parent, name, BareLayer(child.num_features, child.group_size))
    return network
