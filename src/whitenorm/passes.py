r"""The passes over the activations; everything else that batch whitening does is k x k.

A tensor (N, C, ...) is seen as samples [B, G, k, L]: G groups of k channels and B * L samples.
Contiguous maps are [N, G, k, positions]; channels-last ones, and (N, C), are "rows",
[1, G, k, N * positions]. Both are views, and what is written keeps the memory format.

A pass goes piece by piece on the CPU, so that what it does to a piece happens in the cache. Each
piece is gathered, shifted, into the arrangement [b, k, m] in which matrix products run best: maps
and rows as they are, small maps with those of several images together. The input is gathered anew
in every pass, which is cheaper than keeping a shifted copy of all of it.
"""

from __future__ import annotations

import contextlib
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

# Elements; by measurement, large enough for two cores and small enough for their caches.
PIECE = 2**18
SMALL_MAP = 64  # positions below which the maps of several images are better multiplied together
ROWS = 2**10  # rows at most in a piece: float32 adds these up before float64 takes over


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


def samples(x: Tensor, size: int, rows: bool) -> Tensor:
    """x as [B, G, k, L]; a view wherever the memory format allows one."""
    n, channels = x.shape[:2]
    x = x.movedim(1, -1) if rows else x
    if not torch.compiler.is_compiling() and x.stride(-1) != 1:
        x = x.contiguous()
    if rows:
        return x.reshape(1, -1, channels // size, size).permute(0, 2, 3, 1)
    return x.reshape(n, channels // size, size, x.shape[2:].numel())


def restored(view: Tensor, like: Tensor, rows: bool) -> Tensor:
    """The inverse of ``samples(like, size, rows)``, in differentiable operations."""
    if rows:
        n, channels, *positions = like.shape
        flat = view.permute(0, 3, 1, 2).reshape(n, *positions, channels)
        return flat.contiguous().movedim(-1, 1)
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


def sums(
    x: Tensor, shift: Tensor, dtype: torch.dtype, g: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The sums over all samples of g, [G, k, 1], and of g (x - shift)^T, [G, k, k], in dtype.

    Without g, those of x - shift and of (x - shift) (x - shift)^T.
    """
    total, outer = [], []
    for piece, *rest in _pieces(x) if g is None else _pieces(x, g):
        t = _gather(piece, shift)
        left = _gather(rest[0], None) if rest else t
        total.append(_over_groups(left.sum(-1, keepdim=True), x.shape[1], dtype))
        outer.append(_over_groups(torch.bmm(left, t.mT), x.shape[1], dtype))
    return _add(total), _add(outer)


def affine(out: Tensor, constant: Tensor, *terms: Term) -> None:
    """Writes the sum of the terms plus a constant [G, k, 1] into ``out``, samples of a tensor."""
    work = work_dtype(out)
    constant = constant.to(work)
    if torch.compiler.is_compiling():
        products = [m.to(work) @ (t.to(work) if c is None else t - c) for m, t, c in terms]
        out.copy_(sum(products, constant))
        return
    groups, matrices = constant.shape[0], [term.matrix.to(work) for term in terms]
    for piece, *inputs in _pieces(out, *(term.samples for term in terms)):
        gathered = [_gather(t, term.shift) for t, term in zip(inputs, terms, strict=True)]
        count = gathered[0].shape[0]
        if matrices[0].shape[0] < count:  # the first piece is the largest
            matrices = [matrix.repeat(count // groups, 1, 1) for matrix in matrices]
        pairs = [(m[:count], t) for m, t in zip(matrices, gathered, strict=True)]
        if _is_rows(piece):  # multiply from the other side, and add row by row
            pairs = [(t.mT, m.mT) for m, t in pairs]
            lines = piece[0].permute(2, 0, 1)
            if piece.dtype == work and len(lines) == ROWS:
                _multiply(pairs, out=lines.transpose(0, 1))
                lines += constant.permute(2, 0, 1)
            else:  # few rows: writing them where they belong costs more than moving them there
                result = _multiply(pairs).transpose(0, 1)
                torch.add(result, constant.permute(2, 0, 1), out=lines)
        elif piece.dtype == work and piece.is_contiguous() and count != groups:
            _multiply(pairs, out=piece.view(gathered[0].shape))
            piece += constant
        else:
            torch.add(_ungather(_multiply(pairs), piece), constant, out=piece)


def _is_rows(piece: Tensor) -> bool:
    return piece.stride(2) == 1 and piece.stride(3) != 1


def _gather(piece: Tensor, shift: Tensor | None) -> Tensor:
    """piece - shift as [b, k, m]: b = G for rows and small maps, b = B * G for other maps."""
    n, groups, size, count = piece.shape
    work = work_dtype(piece)
    if shift is not None and _is_rows(piece):  # row by row
        return (piece[0].permute(2, 0, 1) - shift.permute(2, 0, 1)).permute(1, 2, 0)
    if n == 1 or count >= SMALL_MAP or torch.compiler.is_compiling():
        t = piece.to(work) if shift is None else piece - shift
        return t[0] if n == 1 else t.reshape(n * groups, size, count)
    t = piece.new_empty((groups, size, n, count), dtype=work)
    together = piece.permute(1, 2, 0, 3)
    if shift is None:
        t.copy_(together)
    else:
        torch.sub(together, shift.unsqueeze(-1), out=t)
    return t.view(groups, size, n * count)


def _ungather(t: Tensor, like: Tensor) -> Tensor:
    """The view of t that is arranged as the piece that ``_gather`` made it from."""
    n, groups, size, count = like.shape
    if t.shape[0] == groups and n != 1:
        return t.view(groups, size, n, count).permute(2, 0, 1, 3)
    return t.view(n, groups, size, count)


def _multiply(pairs: list[tuple[Tensor, Tensor]], out: Tensor | None = None) -> Tensor:
    """The sum of the matrix products."""
    result: Tensor = torch.bmm(*pairs[0], out=out)
    for pair in pairs[1:]:
        result.baddbmm_(*pair)
    return result


def _over_groups(t: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """[B * G, ...] summed over B."""
    if t.shape[0] == groups:
        return t.to(dtype)
    return t.view(-1, groups, *t.shape[1:]).sum(0, dtype=dtype)


def _add(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack(tensors).sum(0)


def empty(like: Tensor, rows: bool) -> Tensor:
    """An uninitialised tensor as ``like``, with the channels last in memory if it is of rows.

    It is no view, so that what is written into it may be modified in place by who comes next.
    """
    if not rows:
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
    if device_type != "meta" and torch.is_autocast_enabled(device_type):
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
        step = max(min(step, ROWS), ROWS // 4) if dim == -1 else step
    if step >= first.shape[dim]:
        return iter([views])
    return zip(*(torch.split(view, step, dim) for view in views), strict=True)
