r"""The two usual ways to write this layer, for comparison.

Both compute what whitenorm does (``eigh_loop`` with ``whitening="zca"``, ``newton_schulz`` with
``"newton"``), with running averages, scale and shift. They do half precision in float32.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

EPS, MOMENTUM = 1e-5, 0.1

Whitened = tuple[Tensor, Tensor, Tensor]  # output, mean and whitening matrix of each group


def eigh_loop(rows: Tensor) -> Whitened:
    """Group after group in Python, and autograd through ``torch.linalg.eigh``, as most ports."""
    found = []
    for group in rows:
        mean = group.mean(1, keepdim=True)
        centred = group - mean
        identity = torch.eye(len(group), dtype=group.dtype)
        covariance = centred @ centred.T / group.shape[1] + EPS * identity
        eigenvalues, D = torch.linalg.eigh(covariance)
        matrix = D @ torch.diag(eigenvalues.rsqrt()) @ D.T
        found.append((matrix @ centred, mean, matrix))
    y, mean, matrix = (torch.stack(tensors) for tensors in zip(*found, strict=True))
    return y, mean, matrix


def newton_schulz(rows: Tensor) -> Whitened:
    """Batched over groups, five iterations of Newton and Schulz, as IterNorm."""
    mean = rows.mean(2, keepdim=True)
    centred = rows - mean
    identity = torch.eye(rows.shape[1], dtype=rows.dtype)
    covariance = centred @ centred.mT / rows.shape[2] + EPS * identity
    trace = covariance.diagonal(dim1=1, dim2=2).sum(1).view(-1, 1, 1)
    scaled = covariance / trace
    P = identity.expand_as(scaled)
    for _ in range(5):
        P = 1.5 * P - 0.5 * (P @ P @ P @ scaled)
    matrix = P * trace.rsqrt()
    return matrix @ centred, mean, matrix


PORTS = {"loop": eigh_loop, "newton": newton_schulz}


class Port(nn.Module):
    """What the two share: channels as rows of a transposed copy, running averages, affine."""

    def __init__(self, whiten: Callable[[Tensor], Whitened], channels: int, group: int) -> None:
        super().__init__()
        self.whiten, self.size = whiten, min(group, channels)  # which must divide the channels
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.running_mean = nn.Buffer(torch.zeros(channels // self.size, self.size, 1))
        identity = torch.eye(self.size).repeat(channels // self.size, 1, 1)
        self.running_whitening = nn.Buffer(identity)

    def forward(self, x: Tensor) -> Tensor:
        work = x.to(torch.promote_types(x.dtype, torch.float32))
        rows = work.transpose(0, 1).reshape(-1, self.size, x.numel() // x.shape[1])
        if self.training:
            y, mean, matrix = self.whiten(rows)
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean), MOMENTUM)
                self.running_whitening.lerp_(matrix.to(self.running_whitening), MOMENTUM)
        else:
            y = self.running_whitening.to(rows) @ (rows - self.running_mean.to(rows))
        y = y.reshape(x.shape[1], x.shape[0], *x.shape[2:]).transpose(0, 1).contiguous()
        shape = (1, -1, *[1] * (x.dim() - 2))
        return (y * self.weight.view(shape) + self.bias.view(shape)).to(x.dtype)
