r"""Batch whitening as a function: what training and inference do, in the order of Algorithm 1."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function

from whitenorm.arguments import check_options, check_tensors, check_training
from whitenorm.distributed import ProcessGroup, add_up, combine
from whitenorm.layout import (
    Span,
    grouped,
    grouped_spans,
    is_channels_last,
    joined_matrices,
    new_output,
    of_channels,
    spans_of,
    ungrouped,
)
from whitenorm.passes import Term, apply, moments, shift_for, sums
from whitenorm.precision import algebra_dtype, no_autocast, surely_finite, work_dtype
from whitenorm.whitening import WHITENINGS, decompose, whitening_matrix

__all__ = ["decorrelated_batch_norm"]


def decorrelated_batch_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_matrix: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    *,
    group_size: int = 16,
    whitening: str = "zca",
    running: str = "whitening",
    iterations: int = 5,
    num_batches_tracked: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    r"""Whitens groups of channels as :func:`torch.nn.functional.batch_norm` scales channels.

    In training the batch's own mean and covariance are used, and the running statistics, where
    given, are updated in place; a batch that holds NaN or inf leaves them as they were. Otherwise
    the running statistics are used. :class:`whitenorm.DecorrelatedBatchNorm2d` has the formulas.

    Args:
        input: Shape (N, C) or (N, C, ...); every position counts as a sample.
        running_mean: Shape (C,).
        running_matrix: Shape (ceil(C / k), k, k), where k = min(group_size, C). A last group of
            r < k channels uses the corner [:r, :r] of its matrix.
        weight: Scale of each channel, shape (C,).
        bias: Shift of each channel, shape (C,).
        training: Whether to use the batch's statistics rather than the running ones.
        momentum: Weight of the batch in the running statistics; None for a cumulative average,
            which needs ``num_batches_tracked``.
        eps: Added to the diagonal of the covariance.
        group_size: How many contiguous channels are whitened together.
        whitening: ``"zca"``, ``"pca"``, ``"cholesky"`` or ``"newton"``.
        running: What ``running_matrix`` averages: the ``"whitening"`` matrix as in the paper, or
            the ``"covariance"`` (without eps, and unbiased, as BatchNorm's running variance).
        iterations: Steps of ``"newton"``.
        num_batches_tracked: Counts, in place, the batches that the running statistics hold.
        process_group: Replicas of torch.distributed whose batches count as one in training.

    Example:
        >>> x = torch.randn(256, 8, dtype=torch.float64).cumsum(1)
        >>> y = decorrelated_batch_norm(x, training=True, group_size=8)
        >>> torch.allclose(y.T.cov(correction=0), torch.eye(8, dtype=torch.float64), atol=1e-3)
        True
    """
    check_options(eps, group_size, whitening, running, iterations)
    check_tensors(input, running_mean, running_matrix, weight, bias, group_size)
    if training:
        check_training(input, running_mean, momentum, num_batches_tracked, process_group)
    elif running_mean is None or running_matrix is None:
        raise ValueError(
            "inference needs running_mean and running_matrix (one of them is None); "
            "give both, or pass training=True to use the statistics of the batch"
        )
    method = _Method(eps, group_size, whitening, iterations, process_group)
    with no_autocast(input.device.type):
        if not training:
            mean, matrix = cast(Tensor, running_mean), cast(Tensor, running_matrix)
            if running == "covariance":
                matrix = whitening_of_running_covariance(
                    matrix, input.shape[1], eps, whitening, iterations
                )
            return _inference(input, mean, matrix, weight, bias, group_size)
        y, mean, covariance, W, _, count = _BatchWhitening.apply(input, weight, bias, method)
        if running_mean is not None and (input.numel() > 0 or process_group is not None):
            matrix = W if running == "whitening" else covariance * (count / (count - 1))
            _update(running_mean, running_matrix, momentum, num_batches_tracked, mean, matrix)
        return cast(Tensor, y)


class _Method(NamedTuple):
    """Which whitening is done, of which groups, with the statistics of which replicas."""

    eps: float
    group_size: int
    whitening: str
    iterations: int
    process_group: ProcessGroup | None


# --- inference ----------------------------------------------------------------------------------


def whitening_of_running_covariance(
    covariance: Tensor, channels: int, eps: float, whitening: str, iterations: int
) -> Tensor:
    """What inference multiplies by: (G, k, k), of which the last group may use a corner alone."""
    covariance = covariance.to(algebra_dtype(covariance))
    parts = [
        whitening_matrix(_of_groups(covariance, span), eps, whitening, iterations)
        for span in spans_of(channels, covariance.shape[-1])
    ]
    return joined_matrices(parts)


def _inference(
    x: Tensor,
    mean: Tensor,
    matrix: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    group_size: int,
) -> Tensor:
    """diag(weight) W (x - mean) + bias, in differentiable operations."""
    work, outputs = work_dtype(x), []
    for channels, groups, size in spans_of(x.shape[1], group_size):
        part = x[:, channels].to(work)
        centred = part - mean[channels].to(work).view(-1, *[1] * (x.dim() - 2))
        rows = is_channels_last(centred)
        P = _scaled(matrix[groups, :size, :size], weight, channels).to(work)
        y = P @ grouped(centred, size, rows)
        if bias is not None:
            y = y + bias[channels].to(work).view(-1, size, 1)
        outputs.append(ungrouped(y, centred, rows).to(x.dtype))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)


def _scaled(matrix: Tensor, weight: Tensor | None, channels: slice) -> Tensor:
    """diag(weight) matrix, for the weights of these channels."""
    if weight is None:
        return matrix
    return of_channels(weight, channels).to(matrix.dtype).view(*matrix.shape[:-1], 1) * matrix


# --- training -----------------------------------------------------------------------------------


class _BatchWhitening(Function):
    """y = P (x - mu) + bias, P = diag(weight) W, where mu and W are functions of the same x.

    Gives y and, as constants, the batch's mean (C,), biased covariance and W (both [G, k, k]),
    what the derivative of W needs (see :class:`whitenorm.whitening.Whitening`), and the number of
    samples a channel.
    """

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, method: _Method
    ) -> tuple[Tensor, ...]:
        rows, work, algebra = is_channels_last(x), work_dtype(x), algebra_dtype(x)
        spans = spans_of(x.shape[1], method.group_size)
        views = grouped_spans(x, spans, rows)

        # The mean and the covariance of each group, of all replicas' samples.
        own = x.numel() / x.shape[1]
        statistics = [moments(view, algebra) for view in views]
        means, central = [mean for mean, _ in statistics], [outer for _, outer in statistics]
        if method.process_group is None:
            count = means[0].new_full((), max(own, 1))
        else:
            count, means, central = combine(own, means, central, method.process_group)
        covariances = [outer / count for outer in central]

        # The whitening matrix, and what its derivative will need.
        matrices, factors = [], []
        for covariance in covariances:
            S = covariance.clone()
            S.diagonal(dim1=-2, dim2=-1).add_(method.eps)
            W, factor = decompose(S, method.eps, method.whitening, method.iterations)
            matrices.append(W.to(work, copy=True))
            rounded = WHITENINGS[method.whitening].needs_factor_only
            factors.append(factor.to(work) if rounded else factor)

        # The output.
        y = new_output(x, rows)
        for i, (view, out) in enumerate(zip(views, grouped_spans(y, spans, rows), strict=True)):
            shift = shift_for(means[i], covariances[i], x)
            offset = (means[i] if shift is None else means[i] - shift).to(work)
            P = _scaled(matrices[i], weight, spans[i].channels)
            constant = torch.bmm(P, -offset)
            if bias is not None:
                constant += of_channels(bias, spans[i].channels).view_as(constant)
            apply(out, constant, Term(P, view, shift))
        mean = torch.cat([mean.flatten() for mean in means])
        parts = (covariances, matrices, factors)
        return (y, mean, *(joined_matrices(part) for part in parts), count)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, bias, ctx.method = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, bias, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if g is None:
            return None, None, None, None
        x, weight, bias, *statistics = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        with no_autocast(g.device.type):
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                grads = _differentiable_backward(g, x, weight, bias, wanted, ctx.method)
            else:
                grads = _backward(g, x, weight, bias, wanted, ctx.method, *statistics)
        return (*grads, None)


_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def _backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: tuple[bool, bool, bool],
    method: _Method,
    mean: Tensor,
    covariance: Tensor,
    W: Tensor,
    factor: Tensor,
    count: Tensor,
) -> _Gradients:
    """Gradients of input, weight and bias from s = sum g_i and A = sum g_i (x_i - mu)^T.

    dx_i = P^T g_i + (2/m) dS (x_i - mu) - P^T s / m
    """
    rows, work = is_channels_last(x), work_dtype(x)
    spans = spans_of(x.shape[1], method.group_size)
    views, gradients = grouped_spans(x, spans, rows), grouped_spans(g, spans, rows)
    shifts, offsets, totals, outers = [], [], [], []
    for span, view, gradient in zip(spans, views, gradients, strict=True):
        mu = of_channels(mean, span.channels).view(-1, span.size, 1)
        shift = shift_for(mu, _of_groups(covariance, span), x)
        offset = (mu if shift is None else mu - shift).to(work)
        s, A = sums(view, shift, work, gradient)
        shifts.append(shift)
        offsets.append(offset)
        totals.append(s)
        outers.append(torch.baddbmm(A, s, offset.mT, alpha=-1))
    dweight = dbias = None
    if weight is not None:
        pairs = zip(spans, outers, strict=True)
        products = [(A * _of_groups(W, span)).sum(-1).flatten() for span, A in pairs]
        dweight = torch.cat(products).to(weight.dtype)
    if bias is not None:
        dbias = torch.cat([s.flatten() for s in totals]).to(bias.dtype)
    if not wanted[0]:
        return None, dweight, dbias

    if method.process_group is not None:
        sums_of_all = add_up(totals + outers, method.process_group)
        totals, outers = sums_of_all[: len(spans)], sums_of_all[len(spans) :]
    dx = new_output(x, rows)
    for i, (span, out) in enumerate(zip(spans, grouped_spans(dx, spans, rows), strict=True)):
        P = _scaled(_of_groups(W, span), weight, span.channels).mT
        dW = _scaled(outers[i], weight, span.channels)
        dS = _covariance_gradient(
            dW, _of_groups(covariance, span), _of_groups(factor, span), method
        )
        Q = (dS * (2 / count)).to(work)
        constant = torch.bmm(P, (totals[i] / -count).to(work))
        constant = torch.baddbmm(constant, Q, offsets[i], alpha=-1)
        apply(out, constant, Term(P, gradients[i]), Term(Q, views[i], shifts[i]))
    return dx, dweight, dbias


def _covariance_gradient(
    dW: Tensor, covariance: Tensor, factor: Tensor, method: _Method
) -> Tensor:
    """The gradient of S from that of W."""
    row, dW = WHITENINGS[method.whitening], dW.to(factor.dtype)
    S = covariance
    if not row.needs_factor_only:
        S = covariance.clone()
        S.diagonal(dim1=-2, dim2=-1).add_(method.eps)
    return row.vjp(S, factor, factor, dW, method.iterations)


def _of_groups(matrices: Tensor, span: Span) -> Tensor:
    """The matrices of a span's groups, without what stands beside those of a remainder."""
    part = of_channels(matrices, span.groups)
    return part if part.shape[-1] == span.size else part[:, : span.size, : span.size]


def _differentiable_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: tuple[bool, bool, bool],
    method: _Method,
) -> _Gradients:
    """The same gradients as differentiable functions of g and the inputs, for double backward."""
    if method.process_group is not None:
        raise RuntimeError(
            "gradients of gradients don't pass through statistics of several replicas; "
            "use a layer that isn't synchronised where create_graph=True is needed"
        )
    rows, outputs = is_channels_last(x), []
    for channels, _, size in spans_of(x.shape[1], method.group_size):
        part = x[:, channels]
        view = grouped(part, size, rows).to(work_dtype(x))
        centred = view - view.mean((0, -1), keepdim=True)
        outer = (centred @ centred.mT).sum(0, dtype=algebra_dtype(x))
        covariance = outer / (view.shape[0] * view.shape[-1])
        W = whitening_matrix(covariance, method.eps, method.whitening, method.iterations)
        y = _scaled(W, weight, channels).to(view.dtype) @ centred
        if bias is not None:
            y = y + bias[channels].view(-1, size, 1)
        outputs.append(ungrouped(y, part, rows))
    inputs = [t for t, want in zip((x, weight, bias), wanted, strict=True) if want]
    y = torch.cat(outputs, 1).to(g.dtype)
    grads = iter(torch.autograd.grad(y, cast(list[Tensor], inputs), g, create_graph=True))
    dx, dweight, dbias = (next(grads) if want else None for want in wanted)
    return dx, dweight, dbias


# --- the running statistics ---------------------------------------------------------------------


@torch.no_grad()
def _update(
    running_mean: Tensor,
    running_matrix: Tensor | None,
    momentum: float | None,
    num_batches_tracked: Tensor | None,
    mean: Tensor,
    matrix: Tensor,
) -> None:
    """Moves the running statistics towards the batch's, unless the batch isn't finite."""
    finite = None if surely_finite(matrix) else matrix.isfinite().all()
    factor: float | Tensor
    if momentum is None:
        factor = 1 / (cast(Tensor, num_batches_tracked) + 1).to(running_mean.dtype)
    else:
        factor = momentum
    if num_batches_tracked is not None:
        num_batches_tracked += 1 if finite is None else finite
    for running, value in ((running_mean, mean), (running_matrix, matrix)):
        if running is not None:
            value = value.to(running.dtype)
            if finite is not None:
                value = torch.where(finite, value, running)
            running.lerp_(value, factor)
