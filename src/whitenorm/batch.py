r"""Whitening with the batch's own statistics, and the exact gradient through them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import SimpleNamespace
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
    moments,
    no_autocast,
    part,
    restored,
    samples,
    scaled,
    sums,
    work_dtype,
)
from whitenorm.whitening import WHITENINGS, decompose, whitening_matrix

__all__ = ["Options", "Statistics", "batch_statistics", "whiten"]


class Options(NamedTuple):
    """What whitening is done, in which memory format, and over which replicas."""

    rows: bool
    eps: float
    group_size: int
    whitening: str
    iterations: int
    process_group: ProcessGroup | None = None


class Statistics(NamedTuple):
    """Of a block of equal groups: mean (channels,), second central moment and W [G, k, k].

    The rest is what the passes and the derivative of W take: see :class:`_BatchWhitening`.
    """

    samples: float | Tensor
    mean: Tensor
    moment: Tensor
    W: Tensor
    small: tuple[Tensor | None, ...]


@torch.no_grad()
def batch_statistics(x: Tensor, options: Options) -> list[Statistics]:
    """The statistics of x, block after block."""
    own = x.numel() / x.shape[1]
    shifts, means, central = [], [], []
    for view in _views(x, options):
        shift, mean, moment = moments(view, algebra_dtype(x))
        shifts.append(shift)
        means.append(mean)
        central.append(moment)
    count: float | Tensor = max(own, 1)
    if options.process_group is not None:
        count, means, central = combine(own, means, central, options.process_group)
    method, work = WHITENINGS[options.whitening], work_dtype(x)
    statistics = []
    for shift, mean, moment in zip(shifts, means, central, strict=True):
        S = moment / count
        S.diagonal(dim1=-2, dim2=-1).add_(options.eps)
        exact, *cache = decompose(S, options.eps, options.whitening, options.iterations)
        W = exact.to(work, copy=True)  # Dynamo wants no tensor twice
        offset = (mean if shift is None else mean - shift).to(work)
        if method.benign:
            small = (shift, offset, W, None, None, *[t.to(work) for t in cache])
        else:
            small = (shift, offset, W, S, exact, *cache)
        statistics.append(Statistics(count, mean.flatten(), moment, W, small))
    return statistics


def whiten(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    options: Options,
    statistics: list[Statistics],
) -> Tensor:
    """Whitens x with its own statistics; the gradient passes through them."""
    small = [tensor for block in statistics for tensor in block.small]
    y = _BatchWhitening.apply(x, weight, bias, options, statistics[0].samples, *small)
    return cast(Tensor, y)


def _views(x: Tensor, options: Options) -> list[Tensor]:
    """The samples of the block of whole groups, then of the remainder."""
    parts = blocks(x.shape[1], options.group_size)
    if len(parts) == 1:
        return [samples(x, parts[0][2], options.rows)]
    return [samples(x[:, channels], size, options.rows) for channels, _, size in parts]


class _BatchWhitening(Function):
    r"""y = P (x - mu) + bias, P = diag(weight) W, where mu and W are functions of the same x.

    The mean mu is shift + offset, where offset is what the shift, if any, leaves of it. ``small``
    holds (shift, offset, W), and (S, W, \*cache) as the derivative of W needs them, of the block
    of whole groups, then of the remainder.
    """

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        options: Options,
        count: float | Tensor,
        *small: Tensor | None,
    ) -> Tensor:
        y = empty(x, options.rows)
        parts = zip(_views(x, options), _views(y, options), strict=True)
        for (view, out), (channels, (shift, offset, W, *_)) in zip(
            parts, _blocks_of(x, options, small), strict=True
        ):
            P = scaled(W, weight, channels)
            if bias is None:
                constant = torch.bmm(P, -offset)
            else:
                beta = part(bias, channels).view_as(offset).to(offset.dtype)
                constant = torch.baddbmm(beta, P, offset, alpha=-1)
            affine(out, constant, Term(P, view, shift))
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.options, ctx.count, *small = inputs
        ctx.save_for_backward(x, weight, bias, *small)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, *small = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        with no_autocast(g.device.type):
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                grads = _differentiable_backward(g, x, weight, bias, wanted, ctx.options)
            else:
                grads = _backward(g, x, weight, bias, wanted, ctx.options, ctx.count, small)
        return (*grads, None, None, *[None] * len(small))


class _AsGiven(inspect.Signature):
    """apply() binds its arguments to forward's signature, which takes as long as an eigh."""

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        return SimpleNamespace(args=args, kwargs=kwargs, apply_defaults=lambda: None)


_BatchWhitening.forward.__signature__ = _AsGiven()  # type: ignore[attr-defined]

_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def _blocks_of(
    x: Tensor, options: Options, small: Sequence[Any]
) -> list[tuple[slice, tuple[Any, ...]]]:
    """The channels of each block with its small tensors."""
    parts = blocks(x.shape[1], options.group_size)
    each = len(small) // len(parts)
    return [(c, tuple(small[i * each : (i + 1) * each])) for i, (c, _, _) in enumerate(parts)]


def _backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: tuple[bool, bool, bool],
    options: Options,
    count: float | Tensor,
    small: list[Any],
) -> _Gradients:
    """Gradients of input, weight and bias from s = sum g_i and A = sum g_i (x_i - mu)^T.

    dx_i = P^T g_i + (2/m) dS (x_i - mu) - P^T s / m
    """
    method, work = WHITENINGS[options.whitening], work_dtype(x)
    parts = _blocks_of(x, options, small)
    views, gradients = _views(x, options), _views(g, options)
    totals, outers = [], []
    for (_, (shift, offset, *_)), view, gradient in zip(parts, views, gradients, strict=True):
        s, A = sums(view, shift, work, gradient)
        totals.append(s)
        outers.append(torch.baddbmm(A, s, offset.mT, alpha=-1))
    dweight = dbias = None
    if weight is not None:
        products = [(A * W).sum(-1) for A, (_, (_, _, W, *_)) in zip(outers, parts, strict=True)]
        dweight = _joined(products).to(weight.dtype)
    if bias is not None:
        dbias = _joined(totals).to(bias.dtype)
    if not wanted[0]:
        return None, dweight, dbias

    if options.process_group is not None:
        sums_of_all = add_up(totals + outers, options.process_group)
        totals, outers = sums_of_all[: len(totals)], sums_of_all[len(totals) :]
    dx = empty(x, options.rows)
    for (channels, (shift, offset, W, S, exact, *cache)), view, gradient, out, s, A in zip(
        parts, views, gradients, _views(dx, options), totals, outers, strict=True
    ):
        P, dW = scaled(W, weight, channels).mT, scaled(A, weight, channels)
        dW = dW if exact is None else dW.to(exact.dtype)
        Q = (method.vjp(S, exact, tuple(cache), dW, options.iterations) * (2 / count)).to(work)
        constant = torch.baddbmm(torch.bmm(P, s / -count), Q, offset, alpha=-1)
        affine(out, constant, Term(P, gradient), Term(Q, view, shift))
    return dx, dweight, dbias


def _joined(parts: list[Tensor]) -> Tensor:
    """The blocks' channels in one vector."""
    return parts[0].flatten() if len(parts) == 1 else torch.cat([p.flatten() for p in parts])


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
        block = x[:, channels]
        view = samples(block, size, options.rows).to(work_dtype(x))
        centred = view - view.mean((0, -1), keepdim=True)
        outer = (centred @ centred.mT).sum(0, dtype=algebra_dtype(x))
        covariance = outer / (view.shape[0] * view.shape[-1])
        W = whitening_matrix(covariance, options.eps, options.whitening, options.iterations)
        y = scaled(W, weight, channels).to(view.dtype) @ centred
        if bias is not None:
            y = y + bias[channels].view(-1, size, 1)
        outputs.append(restored(y, block, options.rows))
    inputs = [t for t, want in zip((x, weight, bias), wanted, strict=True) if want]
    y = torch.cat(outputs, 1).to(g.dtype)
    grads = iter(torch.autograd.grad(y, cast(list[Tensor], inputs), g, create_graph=True))
    dx, dweight, dbias = (next(grads) if want else None for want in wanted)
    return dx, dweight, dbias
