r"""The passes over the activations, the only code that touches them: moments, sums, apply.

They take grouped views [B, G, k, L] (see :mod:`whitenorm.layout`). Matrix products need samples as
[b, k, m]. Maps and rows are that without a copy; small maps are copied together with those of
other images. What has to be copied, for this or to subtract a shift, is copied piece by piece on
the CPU, so that a piece is still in the cache when it is multiplied.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import NamedTuple, cast

import torch
from torch import Tensor

from whitenorm.gpu import gate
from whitenorm.precision import may_read_values, off_cpu, surely_finite, work_dtype

__all__ = ["Moments", "Term", "affine", "apply", "less", "moments", "sums"]

# Elements in a piece that is copied, so that it stays in the cache.
PIECE = 2**18
# How many pieces' worth are taken at a time where nothing is copied. With 16, which leave the
# cache, a layer takes 15 to 17% longer on maps of 16x16 and 8x8 (AMD EPYC, interleaved); with 1,
# 7 to 18%.
READ = 4
# Samples of a channel that float32 adds up by itself, before float64 takes over. With 2048, maps
# of 56x56 are cut in two and take 15% longer; longer sums lose digits.
LONGEST = 2**12
# Channels that BLAS adds up well in rows, and as many as are multiplied together for that.
WIDE, WIDEST = 12, 32
# Maps with fewer positions go together with those of other images in sums, and in apply. One
# number for both costs 8% (32) or 13% (16) of a layer on maps of 4x4, and little elsewhere.
SMALL_IN_SUMS, SMALL_IN_APPLY = 32, 16
# Deviations from zero beyond which a mean is subtracted first, for accuracy, and beyond which
# float32 has so few digits for the deviations that the rounding of its sums has a direction.
FAR, VERY_FAR = 4, 2**10


def _triton() -> ModuleType:
    """These passes in Triton, which is imported when it is first used."""
    from whitenorm.gpu import passes

    return passes


class Term(NamedTuple):
    """``matrix @ (samples - shift)``: matrix [G, k, k], samples [B, G, k, L], shift [G, k, 1]."""

    matrix: Tensor
    samples: Tensor
    shift: Tensor | None = None


class Moments(NamedTuple):
    """Of a grouped view, in the dtype of the algebra but for the shift and the samples."""

    shift: Tensor | None  # [G, k, 1]; the other passes are to subtract it too, if there is one
    mean: Tensor  # [G, k, 1]
    central: Tensor  # [G, k, k], the sum of (x - mean) (x - mean)^T
    samples: Tensor  # the view itself, or a copy less the shift
    left: Tensor | None  # what of the shift is left to subtract from that


def moments(x: Tensor, dtype: torch.dtype) -> Moments:
    """Mean and central moment from the sums of x and of x x^T.

    Where a mean is far from zero these lose digits, and are taken again of x - shift, if one can
    see it without waiting for a device; else a shift is subtracted at once. Where that makes a
    copy of all samples, the next pass shall use it.
    """
    count, work = max(x.shape[0] * x.shape[-1], 1), work_dtype(x)
    if gate.lends_passes(x) and (found := gate.attempt(_triton().moments, x)) is not None:
        shift, mean, central = found
        return Moments(shift, mean, central, x, shift)
    if may_read_values(x):
        if x.numel() <= PIECE:  # so few that better sums take no time
            work = dtype
        mean, central = _central(*sums(x, None, dtype, work=work), count)
        if work != dtype and not surely_finite(central):  # large values have larger squares
            work = dtype
            mean, central = _central(*sums(x, None, dtype, work=work), count)
        variance = central.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)  # times count
        if not (torch.addcmul(variance, mean, mean, value=-count / FAR**2) < 0).any():
            return Moments(None, mean, central, x, None)
        if (torch.addcmul(variance, mean, mean, value=-count / VERY_FAR**2) < 0).any():
            work = dtype
        shift = mean.to(work_dtype(x))
    else:
        shift = _mean_of_some(x)
        if off_cpu(x) and x.numel() <= PIECE:
            work = dtype
    samples, left = less(x, shift)
    offset, central = _central(*sums(samples, left, dtype, work=work), count)
    return Moments(shift, shift + offset, central, samples, left)


def less(x: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """x - shift, and None, where two passes share that copy; else x and the shift as they are.

    On the CPU each pass copies piece by piece, in the cache; elsewhere a copy is of everything.
    """
    if shift is None or not off_cpu(x) or torch.compiler.is_compiling() or gate.lends_passes(x):
        return x, shift
    if x.numel() <= PIECE or _go_together(x, SMALL_IN_SUMS):
        return x, shift
    return x - shift, None


def _central(total: Tensor, outer: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The mean and the second central moment from the sums of x and of x x^T."""
    mean = total / count
    return mean, torch.baddbmm(outer, total, mean.mT, alpha=-1)


def _mean_of_some(x: Tensor) -> Tensor:
    """The mean [G, k, 1] of the first sixteenth of the samples, rounded up; 0 if there are none.

    It is at most four standard deviations from the mean of all, whatever the data: near enough
    to subtract so that a mean far larger than the deviation costs no digits.
    """
    dim = 0 if x.shape[0] > 1 else -1
    some = x.narrow(dim, 0, -(-x.shape[dim] // 16))
    total = some.sum((0, -1), dtype=work_dtype(x)).unsqueeze(-1)
    return total / max(some.shape[0] * some.shape[-1], 1)


def sums(
    x: Tensor,
    shift: Tensor | None,
    dtype: torch.dtype,
    g: Tensor | None = None,
    work: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """The sums over all samples of g, [G, k, 1], and of g (x - shift)^T, [G, k, k], in dtype.

    Without g, those of x - shift and of (x - shift) (x - shift)^T. Products are made in ``work``.
    """
    groups, work = x.shape[1], work or work_dtype(x)
    if g is not None and shift is not None and gate.lends_passes(x):
        found = gate.attempt(_triton().sums, x, g, shift, dtype)
        if found is not None:
            return cast(tuple[Tensor, Tensor], found)
    if (n := _neighbours(x)) > 1:  # and take the blocks on the diagonal
        size = x.shape[2]
        g = g if g is None else _together(g, n)
        total, outer = sums(_together(x, n), _channels_together(shift, n), dtype, g, work)
        blocks = outer.view(-1, n, size, n, size).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
        return total.view(groups, size, 1), blocks.reshape(groups, size, size)
    views = (x,) if g is None else (x, g)
    together = _go_together(x, SMALL_IN_SUMS)
    result: list[Tensor] = []
    copied, longest = together or shift is not None, _longest_sum(x, work)
    for piece, *rest in _pieces(views, work, copied, longest, together):
        right = left = _arranged(piece, shift, work, together)
        if rest:
            left = _arranged(rest[0], None, work, together)
        products = left.sum(-1, keepdim=True), torch.bmm(left, right.mT)
        more = [_over_images(product, groups, dtype) for product in products]
        result = [a.add_(b) for a, b in zip(result, more, strict=True)] if result else more
    total, outer = result
    return total, outer


def _longest_sum(x: Tensor, work: torch.dtype) -> int:
    """How many samples of a channel are added up in one product.

    BLAS adds those of a few channels one after the other, so that fewer may be added. That shows
    sooner in rows, and in half precision, whose coarse values are rounded in one direction.
    """
    size = x.shape[2]
    narrow = 8 if x.dtype == work and not _lies_in_rows(x) else WIDE
    return 128 * size if 1 < size < narrow else LONGEST


def _neighbours(view: Tensor) -> int:
    """How many groups are read together: several in rows, where narrow ones leave gaps.

    A layer with groups of 2 to 8 takes a tenth less time by it on (N, C), and up to half on maps
    that have channels last; and BLAS adds up so many channels better. Other maps have no gaps, and
    gain nothing that is sure.
    """
    groups, size = view.shape[1:3]
    if size == 1 or not _lies_in_rows(view) or torch.compiler.is_compiling() or off_cpu(view):
        return 1
    fitting = [n for n in range(1, max(WIDEST // size, 1) + 1) if groups % n == 0]
    return next((n for n in fitting if n * size >= WIDE), fitting[-1])


def _together(view: Tensor, n: int) -> Tensor:
    """A grouped view whose groups are n neighbouring ones each."""
    images, groups, size, count = view.shape
    return view.view(images, groups // n, n * size, count)


def _channels_together(t: Tensor | None, n: int) -> Tensor | None:
    """[G, k, 1] for such groups."""
    return t if t is None else t.reshape(-1, n * t.shape[1], 1)


def _matrices_together(matrix: Tensor, n: int) -> Tensor:
    """[G, k, k] for such groups, as blocks on the diagonal."""
    blocks = matrix.unflatten(0, (-1, n))
    groups, _, size, _ = blocks.shape
    whole = matrix.new_zeros(groups, n, size, n, size)
    whole.diagonal(dim1=1, dim2=3).copy_(blocks.permute(0, 2, 3, 1))
    return whole.view(groups, n * size, n * size)


def _over_images(t: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """[B * G, ...] summed over B in dtype."""
    if t.shape[0] == groups:
        return t.to(dtype)
    return t.view(-1, groups, *t.shape[1:]).sum(0, dtype=dtype)


def apply(out: Tensor, constant: Tensor, *terms: Term) -> None:
    """Writes the sum of the terms plus a constant [G, k, 1] into ``out``, a grouped view."""
    work = constant.dtype
    lends = terms[-1].shift is not None and gate.lends_passes(terms[-1].samples)
    if lends and gate.attempt(_triton().apply, out, constant, *terms) is not None:
        return
    # What isn't finite would spread to neighbours, through zeros; then its group's matrix isn't.
    n = _neighbours(out)
    if n > 1 and all(surely_finite(term.matrix) for term in terms):
        constant = cast(Tensor, _channels_together(constant, n))
        terms = tuple(
            Term(_matrices_together(m, n), _together(t, n), _channels_together(c, n))
            for m, t, c in terms
        )
        out = _together(out, n)
    groups, together = out.shape[1], _go_together(out, SMALL_IN_APPLY)
    shifts = [term.shift for term in terms]
    matrices = [term.matrix for term in terms]
    views = (out, *[term.samples for term in terms])
    copied = together or any(shift is not None for shift in shifts)
    for piece, *inputs in _pieces(views, work, copied):
        arranged = [_arranged(t, c, work, together) for t, c in zip(inputs, shifts, strict=True)]
        count = arranged[0].shape[0]
        if matrices[0].shape[0] != count:
            matrices = [_repeated(term.matrix, count // groups) for term in terms]
        pairs = list(zip(matrices, arranged, strict=True))
        if _lies_in_rows(piece):
            rows = [(t.mT, m.mT) for m, t in pairs]  # the product of the transposed, transposed
            torch.add(_products(rows), constant.mT, out=piece[0].mT)
        elif together:
            n, length = piece.shape[0], piece.shape[-1]
            maps = _products(pairs).view(groups, -1, n, length).permute(2, 0, 1, 3)
            torch.add(maps, constant, out=piece)
        elif piece.dtype == work and _is_mergeable(piece):
            piece.copy_(constant)
            _products(pairs, piece.flatten(0, 1))
        else:
            torch.add(_products(pairs).view(piece.shape), constant, out=piece)


def affine(constant: Tensor, *terms: Term) -> Tensor:
    """What :func:`apply` writes, as a tensor of its own, in the dtype of the constant."""
    work = constant.dtype
    return sum([m @ (t.to(work) if c is None else t - c) for m, t, c in terms], constant)


def _products(pairs: list[tuple[Tensor, Tensor]], to: Tensor | None = None) -> Tensor:
    """The sum of the matrix products, added to ``to`` if there is one."""
    for pair in pairs:
        to = torch.bmm(*pair) if to is None else to.baddbmm_(*pair)
    return cast(Tensor, to)


def _repeated(matrix: Tensor, times: int) -> Tensor:
    """[G, k, k] as often; not with repeat(), which is slow on a transposed matrix."""
    return matrix.contiguous().expand(times, *matrix.shape).reshape(-1, *matrix.shape[1:])


def _lies_in_rows(view: Tensor) -> bool:
    """Whether the channels of a sample of a grouped view lie side by side in memory."""
    return view.stride(2) == 1 and view.stride(3) != 1


def _is_mergeable(view: Tensor) -> bool:
    """Whether images and groups of a grouped view are one dimension without a copy."""
    n, groups = view.shape[:2]
    return n == 1 or groups == 1 or view.stride(0) == groups * view.stride(1)


def _go_together(view: Tensor, small: int) -> bool:
    """Whether the maps of several images are copied together, since each is small."""
    n, _, size, count = view.shape
    return n > 1 and count < max(small, size) and not torch.compiler.is_compiling()


def _pieces(
    views: tuple[Tensor, ...],
    work: torch.dtype,
    copied: bool,
    longest: int = LONGEST,
    added: bool = False,
) -> Iterable[tuple[Tensor, ...]]:
    """The views cut alike: so few samples of an image, and as many images as stay in the cache.

    If images are ``added`` up, ``longest`` is a limit for the samples of all of them. Where there
    is no cache to mind, the whole is one piece.
    """
    n, groups, size, count = views[0].shape
    if torch.compiler.is_compiling() or off_cpu(views[0]):
        return (views,)
    copied = copied or not all(v.dtype == work and _is_mergeable(v) for v in views)
    positions = -(-count // max(-(-count // longest), 1))  # about equal, and at most longest
    if copied:
        images = PIECE // max(groups * size * positions, 1)
    else:  # with each map goes a k x k matrix for each group, and has to stay in the cache too
        images = READ * PIECE // (groups * size * max(positions, 8 * size))
    if added:
        images = min(images, longest // max(positions, 1))
    images = max(images, 1)
    if images >= n and positions >= count:
        return (views,)
    cut = [
        [part for some in view.split(images) for part in some.split(positions, -1)]
        for view in views
    ]
    return zip(*cut, strict=True)


def _arranged(piece: Tensor, shift: Tensor | None, work: torch.dtype, together: bool) -> Tensor:
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
    if piece.dtype != work:
        piece = piece.to(work)
    if shift is not None and _lies_in_rows(piece):  # subtracted row by row, as the memory lies
        return (piece[0].permute(2, 0, 1) - shift.permute(2, 0, 1)).permute(1, 2, 0)
    if shift is not None:
        piece = piece - shift
    return piece.flatten(0, 1)
