r"""The two usual ways to write this layer, for comparison.

Both compute what whitenorm does (``EighLoop`` with ``whitening="zca"``, ``NewtonSchulz`` with
``"newton"``), with running averages, scale and shift. They do half precision in float32.
"""

import torch
from torch import Tensor, nn


class _Whitening(nn.Module):
    """What the two share: channels as rows of a transposed copy, running averages, affine."""

    eps, momentum = 1e-5, 0.1

    def __init__(self, num_features: int, group_size: int) -> None:
        super().__init__()
        self.size = min(group_size, num_features)  # must divide the channels
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        groups = num_features // self.size
        self.running_mean = nn.Buffer(torch.zeros(groups, self.size, 1))
        self.running_whitening = nn.Buffer(torch.eye(self.size).repeat(groups, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        work = x.to(torch.promote_types(x.dtype, torch.float32))
        rows = work.transpose(0, 1).reshape(-1, self.size, x.numel() // x.shape[1])
        if self.training:
            y, mean, matrix = self.whiten(rows)
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
                self.running_whitening.lerp_(matrix.to(self.running_whitening), self.momentum)
        else:
            y = self.running_whitening.to(rows) @ (rows - self.running_mean.to(rows))
        y = y.reshape(x.shape[1], x.shape[0], *x.shape[2:]).transpose(0, 1).contiguous()
        shape = (1, -1, *[1] * (x.dim() - 2))
        return (y * self.weight.view(shape) + self.bias.view(shape)).to(x.dtype)

    def whiten(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Output, mean and whitening matrix of each group of rows [G, k, m]."""
        raise NotImplementedError


class EighLoop(_Whitening):
    """Group after group in Python, and autograd through ``torch.linalg.eigh``, as most ports."""

    def whiten(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = []
        for group in rows:
            mean = group.mean(1, keepdim=True)
            centred = group - mean
            identity = torch.eye(len(group), dtype=group.dtype)
            covariance = centred @ centred.T / group.shape[1] + self.eps * identity
            eigenvalues, D = torch.linalg.eigh(covariance)
            matrix = D @ torch.diag(eigenvalues.rsqrt()) @ D.T
            found.append((matrix @ centred, mean, matrix))
        y, mean, matrix = (torch.stack(tensors) for tensors in zip(*found, strict=True))
        return y, mean, matrix


class NewtonSchulz(_Whitening):
    """Batched over groups, five iterations of Newton and Schulz, as IterNorm."""

    def whiten(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean = rows.mean(2, keepdim=True)
        centred = rows - mean
        identity = torch.eye(self.size, dtype=rows.dtype)
        covariance = centred @ centred.mT / rows.shape[2] + self.eps * identity
        trace = covariance.diagonal(dim1=1, dim2=2).sum(1).view(-1, 1, 1)
        scaled = covariance / trace
        P = identity.expand_as(scaled)
        for _ in range(5):
            P = 1.5 * P - 0.5 * (P @ P @ P @ scaled)
        matrix = P * trace.rsqrt()
        return matrix @ centred, mean, matrix


PORTS = {"loop": EighLoop, "newton": NewtonSchulz}
