r"""What a DBN layer can't do without, by itself: the bound that the layer is measured against."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from whitenorm.modules import _DecorrelatedBatchNorm
from whitenorm.passes import Term, affine, empty, is_rows, samples, sums

__all__ = ["BareLayer", "backward_passes", "forward_passes", "laid_bare"]


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
    nothing: Tensor
    constant: Tensor

    def __init__(self, channels: int, group_size: int) -> None:
        super().__init__()
        size = min(group_size, channels)
        if channels % size:
            raise ValueError(
                f"the bound has no remainders: {channels} channels aren't groups of {size}"
            )
        self.register_buffer("matrix", torch.eye(size).repeat(channels // size, 1, 1))
        self.register_buffer("nothing", torch.zeros_like(self.matrix))
        self.register_buffer("constant", torch.zeros(channels // size, size, 1))
        self._scaled = False

    def forward(self, input: Tensor) -> Tensor:
        if not self._scaled:
            self.matrix /= input.detach().std()
            self._scaled = True
        y: Tensor = _Passes.apply(input, self.matrix, self.nothing, self.constant)
        return y


class _Passes(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, nothing: Tensor, constant: Tensor) -> Tensor:
        ctx.save_for_backward(x, matrix, nothing, constant)
        y, outer = forward_passes(x, matrix, constant)
        torch.linalg.eigh(outer)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix, nothing, constant = ctx.saved_tensors
        return backward_passes(x, g, matrix, nothing, constant), None, None, None


def forward_passes(x: Tensor, P: Tensor, constant: Tensor) -> tuple[Tensor, Tensor]:
    """P x + constant in a new tensor, and the sum of x x^T: the two passes forward."""
    size, rows = P.shape[-1], is_rows(x)
    view = samples(x, size, rows)
    _, outer = sums(view, None, torch.float64)
    y = empty(x, rows)
    affine(samples(y, size, rows), constant, Term(P, view))
    return y, outer


def backward_passes(x: Tensor, g: Tensor, P: Tensor, Q: Tensor, constant: Tensor) -> Tensor:
    """P g + Q x + constant in a new tensor, and the sums that go before: the two backward."""
    size, rows = P.shape[-1], is_rows(x)
    view, gradient = samples(x, size, rows), samples(g, size, rows)
    sums(view, None, torch.float32, gradient)
    dx = empty(x, rows)
    affine(samples(dx, size, rows), constant, Term(P, gradient), Term(Q, view))
    return dx


def laid_bare(network: nn.Module) -> nn.Module:
    """The network with a :class:`BareLayer` in the place of each DBN layer."""
    for name, module in list(network.named_modules()):
        if isinstance(module, _DecorrelatedBatchNorm):
            network.set_submodule(name, BareLayer(module.num_features, module.group_size))
    return network
