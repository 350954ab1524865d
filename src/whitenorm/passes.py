r"""The passes over the activations; everything else that batch whitening does is k x k.

A tensor (N, C, ...) is seen as samples [B, G, k, L]: G groups of k channels and B * L samples.
Contiguous maps are [N, G, k, positions]; channels-last ones, and (N, C), are "rows",
[1, G, k, N * positions]. Both are views, and what is written keeps the memory format.

Matrix products want the samples arranged as [b, k, m]. Maps and rows are so as they lie; small
maps are put together with those of other images. What must be copied for this, or to subtract a
shift, goes piece by piece on the CPU, so that what is done to a piece happens in the cache.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

__all__ = [
    "Term",
    "affine",
    "algebra_dtype",
    "blocks",
    "can_look",
    "empty",
    "is_rows",
    "moments",
    "no_autocast",
    "part",
    "restored",
    "samples",
    "scaled",
    "sums",
    "surely_finite",
    "work_dtype",
]

# By measurement on two cores, as the sizes of maps that sums and affine put together.
PIECE = 2**18  # elements that are copied at a time, to stay in the cache
READY = 4  # times as many where nothing is copied
ROWS = 2**11  # rows at most in a piece: float32 adds these up before float64 takes over
IMAGES = 2**5  # whose sums float32 adds up before float64 takes over
LITTLE = 400  # a product of fewer operations torch does by itself, slowly
FEW = 2**12  # elements a group in rows: up to here one batch of products beats a call a group
FAR = 4  # deviations from zero beyond which a mean is subtracted first


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
    if rows and x.dim() > 2:
        x = x.movedim(1, -1)
    if x.stride(-1) != 1 and not torch.compiler.is_compiling():
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


def moments(x: Tensor, dtype: torch.dtype) -> tuple[Tensor | None, Tensor, Tensor]:
    """A shift, the mean [G, k, 1] and the sum of (x - mean) (x - mean)^T; the last two in dtype.

    The passes are to subtract the shift from x, so that a mean far from zero costs no digits. It
    is None, and x is read as it lies, where no channel needs one, if one can look without waiting
    for a device. A channel that isn't finite needs none.
    """
    count = max(x.shape[0] * x.shape[-1], 1)
    if can_look(x):
        few = x.numel() <= PIECE  # then dtype costs nothing
        mean, central = _centred(*sums(x.to(dtype) if few else x, None, dtype), count)
        squares = central.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
        if not (torch.addcmul(squares, mean, mean, value=-count / FAR**2) < 0).any():
            return None, mean, central
        if few:
            return mean.to(work_dtype(x)), mean, central
    shift = some_mean(x)
    mean, central = _centred(*sums(x, shift, dtype), count)
    return shift, shift + mean, central


def _centred(total: Tensor, outer: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The mean and the second central moment from the sums of x and of x x^T."""
    mean = total / count
    return mean, torch.baddbmm(outer, total, mean.mT, alpha=-1)


def can_look(x: Tensor) -> bool:
    """Whether Python may depend on the values of x: no device to wait for, no graph to break.

    Subclasses of tensors may have no values, as those of FakeTensorMode.
    """
    return type(x) is Tensor and x.device.type == "cpu" and not torch.compiler.is_compiling()


def surely_finite(x: Tensor) -> bool:
    """Whether x is known to be finite, without having waited for a device."""
    return can_look(x) and math.isfinite(x.sum())


def some_mean(x: Tensor) -> Tensor:
    """The mean [G, k, 1] of the first sixteenth of the samples, rounded up; 0 if there are none.

    It is at most four standard deviations from the mean of all, whatever the data: near enough
    to subtract so that a mean far larger than the deviation costs no digits.
    """
    dim = 0 if x.shape[0] > 1 else -1
    some = x.narrow(dim, 0, -(-x.shape[dim] // 16))
    total = some.sum((0, -1), dtype=work_dtype(x)).unsqueeze(-1)
    return total / max(some.shape[0] * some.shape[-1], 1)


def sums(
    x: Tensor, shift: Tensor | None, dtype: torch.dtype, g: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The sums over all samples of g, [G, k, 1], and of g (x - shift)^T, [G, k, k], in dtype.

    Without g, those of x - shift and of (x - shift) (x - shift)^T.
    """
    (_, groups, size, _), work = x.shape, work_dtype(x)
    views = (x,) if g is None else (x, g)
    together, pieces = _split(views, work, shift is not None, max(36, size))
    result: list[Tensor] = []
    for piece, *rest in pieces:
        t = left = _arrange(piece, shift, work, together)
        if rest:
            left = _arrange(rest[0], None, work, together)
        some = left.sum(-1, keepdim=True), torch.bmm(left, t.mT)
        more = [_over_images(each, groups, dtype) for each in some]
        result = [a.add_(b) for a, b in zip(result, more, strict=True)] if result else more
    total, outer = result
    return total, outer


def affine(out: Tensor, constant: Tensor, *terms: Term) -> None:
    """Writes the sum of the terms plus a constant [G, k, 1] into ``out``, samples of a tensor."""
    work = constant.dtype
    if torch.compiler.is_compiling():
        products = [m @ (t.to(work) if c is None else t - c) for m, t, c in terms]
        out.copy_(sum(products, constant))
        return
    (groups, size, _), matrices = constant.shape, [term.matrix for term in terms]
    views = (out, *[term.samples for term in terms])
    shifts = [term.shift for term in terms]
    shifted = any(c is not None for c in shifts)
    small = max(64 if size > 32 else 16, -(-LITTLE // size**2))
    together, pieces = _split(views, work, shifted, small)
    for piece, *inputs in pieces:
        arranged = [_arrange(t, c, work, together) for t, c in zip(inputs, shifts, strict=True)]
        count = arranged[0].shape[0]
        if matrices[0].shape[0] < count:  # the first piece is the largest
            matrices = [_repeated(matrix, count // groups) for matrix in matrices]
        pairs = [
            (m if m.shape[0] == count else m[:count], t)
            for m, t in zip(matrices, arranged, strict=True)
        ]
        if _is_rows(piece):  # multiply from the other side
            pairs = [(t.mT, m.mT) for m, t in pairs]
            lines, line = piece[0].permute(2, 0, 1), constant.view(1, groups, -1)
            if piece.dtype == work and size * len(lines) > FEW:  # torch makes a call a group of it
                lines.copy_(line)
                _added(pairs, lines.transpose(0, 1))
            else:
                torch.add(_added(pairs).transpose(0, 1), line, out=lines)
        elif piece.dtype == work and piece.is_contiguous() and not together:
            piece.copy_(constant)
            _added(pairs, piece.view(arranged[0].shape))
        else:
            result = _added(pairs)
            if together:
                n, length = piece.shape[0], piece.shape[-1]
                result = result.view(groups, size, n, length).permute(2, 0, 1, 3)
            torch.add(result.view_as(piece), constant, out=piece)


def _is_rows(piece: Tensor) -> bool:
    return piece.stride(2) == 1 and piece.stride(3) != 1


def _arrange(piece: Tensor, shift: Tensor | None, work: torch.dtype, together: bool) -> Tensor:
    """piece - shift as [b, k, m]: b = G for rows and where maps go together, B * G otherwise."""
    n, groups, size, count = piece.shape
    if together:
        t = piece.new_empty((groups, size, n, count), dtype=work)
        maps = piece.permute(1, 2, 0, 3)
        if shift is None:
            t.copy_(maps)
        else:
            torch.sub(maps, shift.unsqueeze(-1), out=t)
        return t.view(groups, size, n * count)
    if shift is not None and _is_rows(piece):  # row by row
        return (piece[0].permute(2, 0, 1) - shift.permute(2, 0, 1)).permute(1, 2, 0)
    if shift is not None:
        piece = piece - shift
    elif piece.dtype != work:
        piece = piece.to(work)
    return piece[0] if n == 1 else piece.reshape(n * groups, size, count)


def _repeated(matrix: Tensor, times: int) -> Tensor:
    """[G, k, k] as often; not with repeat(), which is slow on a transposed matrix."""
    return matrix.contiguous().expand(times, *matrix.shape).reshape(-1, *matrix.shape[1:])


def _added(pairs: list[tuple[Tensor, Tensor]], to: Tensor | None = None) -> Tensor:
    """The sum of the matrix products, and of what it is added to."""
    for pair in pairs:
        to = torch.bmm(*pair) if to is None else to.baddbmm_(*pair)
    return cast(Tensor, to)


def _over_images(t: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """[B * G, ...] summed over B in dtype; a few at a time in t's own first, which is faster."""
    if t.dtype != dtype and not torch.compiler.is_compiling():
        few = math.gcd(t.shape[0] // groups, IMAGES)
        t = t.view(-1, few, groups, *t.shape[1:]).sum(1).flatten(0, 1) if few > 1 else t
    if t.shape[0] == groups:
        return t.to(dtype)
    return t.view(-1, groups, *t.shape[1:]).sum(0, dtype=dtype)


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


def part(t: Tensor, channels: slice) -> Tensor:
    """t[channels], as cheaply as t itself if these are all."""
    return t if channels.stop - channels.start == t.shape[0] else t[channels]


def scaled(matrix: Tensor, weight: Tensor | None, channels: slice) -> Tensor:
    """diag(weight) matrix, for the weights of these channels."""
    if weight is None:
        return matrix
    return part(weight, channels).to(matrix.dtype).view(*matrix.shape[:-1], 1) * matrix


def blocks(channels: int, group_size: int) -> tuple[tuple[slice, slice, int], ...]:
    """(channels, groups, size) of the whole groups, then of the remainder."""
    size = min(group_size, channels)
    count, rest = channels // size, channels % size
    whole = (slice(0, channels - rest), slice(0, count), size)
    if rest == 0:
        return (whole,)
    return whole, (slice(channels - rest, channels), slice(count, count + 1), rest)


def algebra_dtype(x: Tensor) -> torch.dtype:
    """The dtype of the k x k algebra: float64 where the device has it."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def no_autocast(device_type: str) -> contextlib.AbstractContextManager[Any]:
    """Turns autocast off where it is on; elsewhere it leaves no trace in exported graphs."""
    if device_type != "meta" and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return contextlib.nullcontext()


def _split(
    views: tuple[Tensor, ...], work: torch.dtype, shifted: bool, small: int
) -> tuple[bool, Iterable[tuple[Tensor, ...]]]:
    """Whether maps of fewer positions than ``small`` are put together, and pieces of the views.

    A piece is so small that it stays in the cache: a copy of the samples, if the products need
    one, or else, in a larger cache, the samples themselves and a k x k matrix for each map and
    group. Where there is no cache to mind, the whole is one piece.
    """
    compiling, (n, groups, size, count) = torch.compiler.is_compiling(), views[0].shape
    together = n > 1 and count < small and not compiling
    if compiling or views[0].device.type != "cpu":
        return together, (views,)
    copied = together or shifted or not all(_is_ready(view, work) for view in views)
    if n == 1:
        dim, step = -1, max(min(PIECE // (groups * size), ROWS), ROWS // 8) if copied else ROWS
    else:
        many = views[0].numel() > 2 * READY * PIECE  # two pieces aren't worth it
        each = count if copied else max(size // 2, count // (READY if many else 2 * READY))
        dim, step = 0, PIECE // max(groups * size * each, 1)
    if step >= views[0].shape[dim]:
        return together, (views,)
    split = [torch.split(view, max(step, 1), dim) for view in views]
    return together, zip(*split, strict=True)


def _is_ready(view: Tensor, work: torch.dtype) -> bool:
    """Whether rows, or maps that lie group after group, can be multiplied as they are."""
    n, groups = view.shape[:2]
    in_turn = n == 1 or groups == 1 or view.stride(0) == groups * view.stride(1)
    return view.dtype == work and in_turn
