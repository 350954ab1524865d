r"""The passes over the activations; everything else that batch whitening does is k x k.

A tensor (N, C, ...) is seen as samples [B, G, k, L]: G groups of k channels and B * L samples.
Contiguous maps are [N, G, k, positions]; channels-last ones, and (N, C), are cut into stretches
of samples instead of images. Both are views, and what is written keeps the memory format. Sums
over L are in the precision of the activations, sums over B in float64.

On the CPU a pass goes piece by piece, so that what it does to a piece happens in the cache; the
input is shifted anew in every pass, which is cheaper than keeping a shifted copy.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Term",
    "affine",
    "algebra_dtype",
    "blocks",
    "empty",
    "is_rows",
    "no_autocast",
    "restored",
    "samples",
    "scaled",
    "some_mean",
    "sums",
    "work_dtype",
]

PIECE = 2**17  # elements; two or three such pieces fit in the second-level cache
STRETCH = 2**8  # samples


class Term(NamedTuple):
    """``matrix @ (samples - shift)``: matrix [G, k, k], samples [B, G, k, L], shift [G, k, 1]."""

    matrix: Tensor
    samples: Tensor
    shift: Tensor | None = None


def work_dtype(x: Tensor) -> torch.dtype:
    """The dtype of the passes: the input's own, but at least float32."""
    return torch.promote_types(x.dtype, torch.float32)


def is_rows(x: Tensor) -> bool:
    """Whether the channels of a sample lie side by side in memory."""
    return x.stride(1) == 1


def samples(x: Tensor, size: int, rows: bool | None = None) -> Tensor:
    """x as [B, G, k, L]; a view wherever the memory format allows one."""
    channels = x.shape[1]
    if is_rows(x) if rows is None else rows:
        count = x.shape[0] * x.shape[2:].numel()
        stretch = math.gcd(count, STRETCH)
        stretch = stretch if stretch >= STRETCH // 4 else max(count, 1)
        flat = x.movedim(1, -1).reshape(count // stretch, stretch, channels // size, size)
        return flat.permute(0, 2, 3, 1)
    return x.reshape(x.shape[0], channels // size, size, x.shape[2:].numel())


def restored(view: Tensor, like: Tensor) -> Tensor:
    """The inverse of ``samples(like, size)``, in differentiable operations."""
    if is_rows(like):
        n, channels, *positions = like.shape
        rows = view.permute(0, 3, 1, 2).reshape(n, *positions, channels)
        return rows.contiguous().movedim(-1, 1)
    return view.reshape(like.shape)


def some_mean(x: Tensor) -> Tensor:
    """The mean [G, k, 1] of the first sixteenth of the samples, rounded up; 0 if there are none.

    It is at most four standard deviations from the mean of all, whatever the data: near enough
    to subtract so that a mean far larger than the deviation costs no digits.
    """
    dim = _piece_dim(x)
    some = x.narrow(dim, 0, -(-x.shape[dim] // 16))
    total = some.sum((0, -1), dtype=work_dtype(x)).unsqueeze(-1)
    return total / max(some.shape[0] * some.shape[-1], 1)


def sums(x: Tensor, shift: Tensor, dtype: torch.dtype, g: Tensor | None = None) -> list[Tensor]:
    """The sums over all samples of g, [G, k, 1], and of g (x - shift)^T, [G, k, k].

    Without g, that of x - shift and of (x - shift) (x - shift)^T. Pieces are added up in dtype.
    """
    groups, size = x.shape[1:3]
    total = torch.zeros(groups, size, 1, dtype=dtype, device=x.device)
    outer = torch.zeros(groups, size, size, dtype=dtype, device=x.device)
    for piece, *rest in _pieces(x) if g is None else _pieces(x, g):
        t = piece - shift
        left = rest[0].to(t.dtype) if rest else t
        total += left.sum(-1, keepdim=True).sum(0, dtype=dtype)
        outer += (left @ t.mT).sum(0, dtype=dtype)
    return [total, outer]


def affine(out: Tensor, constant: Tensor, *terms: Term) -> None:
    """Writes the sum of the terms plus a constant [G, k, 1] into ``out``, samples of a tensor."""
    work = work_dtype(out)
    matrices = [term.matrix.to(work) for term in terms]
    shifts = [term.shift for term in terms]
    constant = constant.to(work)
    in_place = out.dtype == work and not torch.compiler.is_compiling()
    for piece, *inputs in _pieces(out, *(term.samples for term in terms)):
        inputs = [
            t.to(work) if shift is None else t - shift
            for t, shift in zip(inputs, shifts, strict=True)
        ]
        if in_place:
            torch.matmul(matrices[0], inputs[0], out=piece)
            for matrix, t in zip(matrices[1:], inputs[1:], strict=True):
                piece += matrix @ t
            piece += constant
        else:
            products = [matrix @ t for matrix, t in zip(matrices, inputs, strict=True)]
            piece.copy_(sum(products, constant))


def empty(like: Tensor) -> Tensor:
    """An uninitialised tensor as ``like``, channels last in memory if that is, else contiguous.

    It is no view, so that what is written into it may be modified in place by who comes next.
    """
    if not is_rows(like):
        return like.new_empty(like.shape)
    _, channels, *positions = like.shape
    strides: list[int] = []
    step = channels
    for length in reversed(positions):
        strides.insert(0, step)
        step *= length
    return like.new_empty_strided(like.shape, (step, 1, *strides))


def scaled(matrix: Tensor, weight: Tensor | None, channels: slice) -> Tensor:
    """diag(weight) matrix, for the weights of these channels."""
    return matrix if weight is None else weight[channels].view(*matrix.shape[:-1], 1) * matrix


def blocks(channels: int, group_size: int) -> Iterator[tuple[slice, slice, int]]:
    """(channels, groups, size) of the whole groups, then of the remainder."""
    size = min(group_size, channels)
    whole = channels - channels % size
    yield slice(0, whole), slice(0, whole // size), size
    if whole < channels:
        yield slice(whole, channels), slice(whole // size, None), channels - whole


def algebra_dtype(x: Tensor) -> torch.dtype:
    """The dtype of the k x k algebra: float64 where the device has it."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def no_autocast(device_type: str) -> contextlib.AbstractContextManager[Any]:
    """Turns autocast off where it is on; elsewhere it leaves no trace in exported graphs."""
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return contextlib.nullcontext()


def _piece_dim(view: Tensor) -> int:
    return 0 if view.shape[0] > 1 else -1


def _pieces(*views: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Matching pieces of the views; one piece, the whole, where there is no cache to mind."""
    first = views[0]
    dim = _piece_dim(first)
    step = max(first.shape[dim], 1)
    if first.device.type == "cpu" and not torch.compiler.is_compiling():
        step = max(PIECE * step // max(first.numel(), 1), 1)
    return zip(*(torch.split(view, step, dim) for view in views), strict=True)
