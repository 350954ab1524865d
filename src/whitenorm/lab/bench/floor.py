r"""The least that torch calls for this layer cost: four passes, one decomposition, k x k products.

It whitens by ZCA and has the gradients of input, scale and shift, as the layer has, but no checks,
no shift of the mean, no shrinkage, no running averages and no autograd. So it holds only for
contiguous tensors, groups that divide the channels, and data that are well conditioned, with means
not far from zero. Each pass is the fastest plain call that was found, over the whole tensor.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

EPS = 1e-5
SMALL = 32  # maps with fewer positions, or fewer than a group has channels, are copied together

Saved = tuple[Tensor, ...]


@dataclass(frozen=True)
class Floor:
    """Of an input of this shape, (N, C) or (N, C, H, W), in groups of this size."""

    shape: tuple[int, ...]
    size: int

    def __post_init__(self) -> None:
        if self.shape[1] % self.size:
            raise ValueError(f"the floor has no groups of {self.size} in {self.shape[1]} channels")

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Saved]:
        """The output, and what backward needs beside the input."""
        samples = self._samples(x)
        total, outer = self._sums(x, samples, samples)
        mean = total.double() / self._count
        S = torch.baddbmm(outer.double(), mean, mean.mT, beta=1 / self._count, alpha=-1)
        S.diagonal(dim1=1, dim2=2).add_(EPS)
        eigenvalues, D = torch.linalg.eigh(S)
        root = eigenvalues.rsqrt().unsqueeze(1)
        WD = D * root
        W, mean = torch.bmm(WD, D.mT).to(x.dtype), mean.to(x.dtype)
        P = weight.view(-1, self.size, 1) * W
        constant = torch.baddbmm(bias.view(-1, self.size, 1), P, mean, alpha=-1)
        y = self._output(constant, (P, samples))
        return y, (mean, W, P, WD.to(x.dtype), root.to(x.dtype))

    def backward(self, g: Tensor, x: Tensor, weight: Tensor, saved: Saved) -> tuple[Tensor, ...]:
        """The gradients of input, weight and bias."""
        mean, W, P, WD, root = saved
        gradients, samples = self._samples(g), self._samples(x)
        total, outer = self._sums(g, gradients, samples)
        A = torch.baddbmm(outer, total, mean.mT, alpha=-1)
        dW = weight.view(-1, self.size, 1) * A
        X = torch.bmm(torch.bmm(WD.mT, dW), WD)
        X = (X + X.mT) / ((root + root.mT) * -self._count)
        Q = torch.bmm(torch.bmm(WD, X), WD.mT)  # (2/m) dS
        constant = torch.bmm(P.mT, total / -self._count)
        constant = torch.baddbmm(constant, Q, mean, alpha=-1)
        dx = self._output(constant, (P.mT, gradients), (Q, samples))
        return dx, (A * W).sum(-1).flatten(), total.flatten()

    @property
    def _positions(self) -> int:
        return torch.Size(self.shape[2:]).numel()

    @property
    def _count(self) -> int:
        return self.shape[0] * self._positions

    @property
    def _is_small(self) -> bool:
        return self._positions < max(SMALL, self.size)

    def _samples(self, t: Tensor) -> Tensor:
        """[b, k, m]: one of each map without a copy, or of all small ones; rows transposed."""
        if len(self.shape) == 2:
            return t.view(len(t), -1, self.size).permute(1, 2, 0)
        if self._is_small:
            maps = t.view(len(t), -1, self.size, self._positions).permute(1, 2, 0, 3)
            return maps.reshape(-1, self.size, self._count)
        return t.view(-1, self.size, self._positions)

    def _sums(self, t: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Over all samples, of t [G, k, 1] and of left right^T [G, k, k]."""
        total = t.flatten(1).sum(0).view(-1, self.size, self._positions).sum(-1, keepdim=True)
        outer = torch.bmm(left, right.mT)
        if len(outer) > len(total):
            outer = outer.view(-1, *total.shape[:2], self.size).sum(0)
        return total, outer

    def _output(self, constant: Tensor, *products: tuple[Tensor, Tensor]) -> Tensor:
        """The sum of the products of matrices [G, k, k] and samples, plus a constant."""
        n, rows = self.shape[0], len(self.shape) == 2
        if rows:  # the product of the transposed, transposed
            products = tuple((samples.mT, matrix.mT) for matrix, samples in products)
        elif not self._is_small:
            products = tuple(
                (matrix.expand(n, *matrix.shape).reshape(-1, self.size, self.size), samples)
                for matrix, samples in products
            )
        found = torch.bmm(*products[0])
        for more in products[1:]:
            found.baddbmm_(*more)
        if not rows and not self._is_small:
            found.view(n, -1, self.size, self._positions).add_(constant)
            return found.view(self.shape)
        y = found.new_empty(self.shape)
        if rows:
            views = found.transpose(0, 1), constant.squeeze(-1)
        else:
            views = found.view(-1, self.size, n, self._positions).permute(2, 0, 1, 3), constant
        torch.add(*views, out=y.view(views[0].shape))
        return y
