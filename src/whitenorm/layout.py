r"""How the channels of a tensor (N, C, ...) are seen as groups, and its positions as samples.

A grouped view is [B, G, k, L]: G groups of k channels, and B * L samples of each channel.
Contiguous maps are [N, G, k, positions]. Where the channels of a sample lie side by side in
memory, as in (N, C) and in channels-last maps, the samples are rows: [1, G, k, N * positions].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Span",
    "diagonal_matrices",
    "grouped",
    "grouped_spans",
    "is_channels_last",
    "joined_channels",
    "joined_matrices",
    "new_output",
    "of_channels",
    "of_groups",
    "spans_of",
    "ungrouped",
]


class Span(NamedTuple):
    """Neighbouring groups of one size: their channels, their places among all groups, the size."""

    channels: slice
    groups: slice
    size: int


ALL = slice(None)  # without a number, so that a graph holds for any


def spans_of(channels: int, group_size: int) -> tuple[Span, ...]:
    """The span of whole groups, and that of the remainder if there is one.

    Example:
        >>> spans_of(42, 16)[1]
        Span(channels=slice(32, 42, None), groups=slice(2, 3, None), size=10)
    """
    # Not min(), of which a graph that holds for any number would make an expression.
    size = group_size if group_size < channels else channels
    count, rest = channels // size, channels % size
    if rest == 0:
        return (Span(ALL, ALL, size),)
    whole = Span(slice(0, channels - rest), slice(0, count), size)
    return whole, Span(slice(channels - rest, channels), slice(count, count + 1), rest)


def is_channels_last(x: Tensor) -> bool:
    """Whether the channels of a sample lie side by side in memory."""
    return x.stride(1) == 1


def grouped(x: Tensor, size: int, rows: bool) -> Tensor:
    """x as [B, G, k, L]; a view wherever the memory format allows one."""
    n, channels = x.shape[:2]
    if rows and x.dim() > 2:
        x = x.movedim(1, -1)
    if x.stride(-1) != 1 and not torch.compiler.is_compiling():
        x = x.contiguous()
    if rows:
        return x.reshape(1, -1, channels // size, size).permute(0, 2, 3, 1)
    return x.reshape(n, channels // size, size, x.shape[2:].numel())


def grouped_spans(x: Tensor, spans: tuple[Span, ...], rows: bool) -> list[Tensor]:
    """The grouped view of each span."""
    if len(spans) == 1:
        return [grouped(x, spans[0].size, rows)]
    return [grouped(x[:, span.channels], span.size, rows) for span in spans]


def ungrouped(view: Tensor, like: Tensor, rows: bool) -> Tensor:
    """The inverse of ``grouped(like, size, rows)``, in differentiable operations."""
    if rows:
        n, channels, *positions = like.shape
        flat = view.permute(0, 3, 1, 2).reshape(n, *positions, channels)
        return flat.contiguous().movedim(-1, 1)
    return view.reshape(like.shape)


def new_output(like: Tensor, rows: bool) -> Tensor:
    """An uninitialized tensor as ``like``, with the channels last in memory if it is of rows.

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


def of_channels(t: Tensor, channels: slice) -> Tensor:
    """t[channels], without a call if these are all."""
    return t if channels == ALL else t[channels]


def of_groups(matrices: Tensor, span: Span) -> Tensor:
    """The matrices of a span's groups, without what stands beside those of a remainder."""
    part = of_channels(matrices, span.groups)
    return part if part.shape[-1] == span.size else part[:, : span.size, : span.size]


def joined_channels(parts: list[Tensor]) -> Tensor:
    """The (N, C, ...) outputs of all spans in one tensor."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def joined_matrices(parts: list[Tensor], beside: float = 1.0) -> Tensor:
    """The [G, k, k] matrices of all spans in one tensor; smaller ones end in beside * I."""
    if len(parts) == 1:
        return parts[0]
    whole, rest = parts
    missing = whole.shape[-1] - rest.shape[-1]
    corner = beside * torch.eye(missing, dtype=rest.dtype, device=rest.device)
    return torch.cat([whole, torch.block_diag(rest[0], corner).unsqueeze(0)])


def diagonal_matrices(diagonal: Tensor, size: int) -> Tensor:
    """(C,) values as the diagonals of [G, k, k] matrices; 1 where the last group has no channel.

    Example:
        >>> diagonal_matrices(torch.tensor([2.0, 3, 4]), 2)[1]
        tensor([[4., 0.],
                [0., 1.]])
    """
    missing = -len(diagonal) % size
    return torch.diag_embed(torch.cat([diagonal, diagonal.new_ones(missing)]).view(-1, size))
