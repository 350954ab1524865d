r"""Whitening with the batch's own statistics, and the exact gradient through them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function

from whitenorm.distributed import ProcessGroup, add_up, combine
from whitenorm.passes import (
    Term,
    affine,
    algebra_dtype,
    blocks,
    empty,
    no_autocast,
    restored,
    samples,
    scaled,
    some_mean,
    sums,
    work_dtype,
)
from whitenorm.whitening import WHITENINGS, decompose, whitening_matrix

__all__ = ["Options", "Statistics", "whiten_batch"]


class Options(NamedTuple):
    """What whitening is done, in which memory format, and over which replicas."""

    rows: bool
    eps: float
    group_size: int
    whitening: str
    iterations: int
    process_group: ProcessGroup | None = None


class Statistics(NamedTuple):
    """Of a block of equal groups: mean (channels,), second central moment and W [G, k, k]."""

    samples: float | Tensor
    mean: Tensor
    moment: Tensor
    W: Tensor


def whiten_batch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, options: Options
) -> tuple[Tensor, list[Statistics]]:
    """Whitens x with its own statistics, which come out as well."""
    with torch.no_grad():
        own = x.numel() / x.shape[1]
        shifts, means, moments = [], [], []
        for view in _views(x, options):
            shift = some_mean(view)
            total, outer = sums(view, shift, algebra_dtype(x))
            offset = total / max(own, 1)
            shifts.append(shift)
            means.append(shift + offset)
            moments.append(outer - total * offset.mT)
        count: float | Tensor = max(own, 1)
        if options.process_group is not None:
            count, means, moments = combine(own, means, moments, options.process_group)
        small, statistics = [], []
        for shift, mean, moment in zip(shifts, means, moments, strict=True):
            S = moment / count
            S.diagonal(dim1=-2, dim2=-1).add_(options.eps)
            W, *cache = decompose(S, options.eps, options.whitening, options.iterations)
            small += [shift, mean - shift, S, W, *cache]
            statistics.append(Statistics(count, mean.flatten(), moment, W))
    y = _BatchWhitening.apply(x, weight, bias, options, count, *small)
    return cast(Tensor, y), statistics


def _views(x: Tensor, options: Options) -> list[Tensor]:
    parts = blocks(x.shape[1], options.group_size)
    return [samples(x[:, channels], size, options.rows) for channels, _, size in parts]


class _BatchWhitening(Function):
    r"""y = P (x - mu) + bias, P = diag(weight) W, where mu and W are functions of the same x.

    The mean mu is shift + offset, where offset is what the shift leaves of it. ``small`` holds
    (shift, offset, S, W, \*cache) of the block of whole groups, then of the remainder.
    """

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        options: Options,
        count: float | Tensor,
        *small: Tensor,
    ) -> Tensor:
        y, rows = empty(x, options.rows), options.rows
        for channels, (shift, offset, _, W, *_) in _blocks_of(x, options, small):
            P = scaled(W, weight, channels)
            constant = -P @ offset
            if bias is not None:
                constant += bias[channels].view_as(constant)
            size = W.shape[-1]
            term = Term(P, samples(x[:, channels], size, rows), shift)
            affine(samples(y[:, channels], size, rows), constant, term)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.options, ctx.count, *small = inputs
        method = WHITENINGS[ctx.options.whitening]
        kept: list[Tensor | None] = []
        for _, (shift, offset, S, W, *cache) in _blocks_of(x, ctx.options, small):
            kept += [shift, offset, S if method.needs_S else None]
            kept += [None if method.recover else W, *cache]
        ctx.save_for_backward(x, weight, bias, *kept)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, *kept = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        with no_autocast(g.device.type):
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                grads = _differentiable_backward(g, x, weight, bias, wanted, ctx.options)
            else:
                grads = _backward(g, x, weight, bias, wanted, ctx.options, ctx.count, kept)
        return (*grads, None, None, *[None] * len(kept))


# apply() looks up the signature of forward at every call, which takes as long as an eigh.
_BatchWhitening.forward.__signature__ = inspect.signature(  # type: ignore[attr-defined]
    _BatchWhitening.forward
)

_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def _blocks_of(
    x: Tensor, options: Options, small: Sequence[Any]
) -> list[tuple[slice, tuple[Any, ...]]]:
    """The channels of each block with its small tensors."""
    channels = [c for c, _, _ in blocks(x.shape[1], options.group_size)]
    each = len(small) // len(channels)
    return [(c, tuple(small[i * each : (i + 1) * each])) for i, c in enumerate(channels)]


def _backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: tuple[bool, bool, bool],
    options: Options,
    count: float | Tensor,
    kept: list[Any],
) -> _Gradients:
    """Gradients of input, weight and bias from s = sum g_i and A = sum g_i (x_i - mu)^T.

    dx_i = P^T g_i + (2/m) dS (x_i - mu) - P^T s / m
    """
    method = WHITENINGS[options.whitening]
    parts = _blocks_of(x, options, kept)
    if method.recover is not None:
        parts = [(c, (*p[:3], method.recover(*p[4:]), *p[4:])) for c, p in parts]
    views, gradients = _views(x, options), _views(g, options)
    totals, outers = [], []
    for (_, (shift, offset, _, W, *_)), view, gradient in zip(
        parts, views, gradients, strict=True
    ):
        s, A = sums(view, shift, W.dtype, gradient)
        totals.append(s)
        outers.append(A - s * offset.mT)
    dweight = dbias = None
    if weight is not None:
        products = [(A * part[3]).sum(-1) for A, (_, part) in zip(outers, parts, strict=True)]
        dweight = torch.cat([product.flatten() for product in products]).to(weight.dtype)
    if bias is not None:
        dbias = torch.cat([s.flatten() for s in totals]).to(bias.dtype)
    if not wanted[0]:
        return None, dweight, dbias

    if options.process_group is not None:
        add_up(totals + outers, options.process_group)
    dx = empty(x, options.rows)
    for (channels, (shift, offset, S, W, *cache)), view, gradient, s, A in zip(
        parts, views, gradients, totals, outers, strict=True
    ):
        P, dW = scaled(W, weight, channels), scaled(A, weight, channels)
        Q = method.vjp(S, W, tuple(cache), dW, options.iterations) * (2 / count)
        constant = -Q @ offset - P.mT @ s / count
        out = samples(dx[:, channels], W.shape[-1], options.rows)
        affine(out, constant, Term(P.mT, gradient), Term(Q, view, shift))
    return dx, dweight, dbias


def _differentiable_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: tuple[bool, bool, bool],
    options: Options,
) -> _Gradients:
    """The same gradients as differentiable functions of g and the inputs, for double backward."""
    if options.process_group is not None:
        raise RuntimeError(
            "gradients of gradients don't pass through statistics of several replicas; "
            "use a layer that isn't synchronised where create_graph=True is needed"
        )
    outputs = []
    for channels, _, size in blocks(x.shape[1], options.group_size):
        part = x[:, channels]
        view = samples(part, size, options.rows).to(work_dtype(x))
        centred = view - view.mean((0, -1), keepdim=True)
        outer = (centred @ centred.mT).sum(0, dtype=algebra_dtype(x))
        covariance = outer / (view.shape[0] * view.shape[-1])
        W = whitening_matrix(covariance, options.eps, options.whitening, options.iterations)
        y = scaled(W, weight, channels).to(view.dtype) @ centred
        if bias is not None:
            y = y + bias[channels].view(-1, size, 1)
        outputs.append(restored(y, part, options.rows))
    inputs = [t for t, want in zip((x, weight, bias), wanted, strict=True) if want]
    y = torch.cat(outputs, 1).to(g.dtype)
    grads = iter(torch.autograd.grad(y, cast(list[Tensor], inputs), g, create_graph=True))
    dx, dweight, dbias = (next(grads) if want else None for want in wanted)
    return dx, dweight, dbias
