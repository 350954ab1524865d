r"""Batch whitening as a function: what training and inference do, in the order of Algorithm 1."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from whitenorm.arguments import check_options, check_tensors, check_training
from whitenorm.distributed import ProcessGroup, add_up, combine
from whitenorm.gpu import gate
from whitenorm.layout import (
    Span,
    grouped,
    grouped_spans,
    is_channels_last,
    joined_channels,
    joined_matrices,
    new_output,
    of_channels,
    of_groups,
    spans_of,
    ungrouped,
)
from whitenorm.passes import Term, affine, apply, less, moments, sums
from whitenorm.precision import algebra_dtype, is_traced, no_autocast, surely_finite, work_dtype
from whitenorm.shrinkage import kept_share, shrink
from whitenorm.transforms import Transformable, call, is_wrapped, save, transposed
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
    running: str = "covariance",
    shrinkage: float | str = 0.0,
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
        weight: Scale of each channel, shape (C,); or a matrix for each group, which takes the
            place of diag(weight), of the shape of ``running_matrix``.
        bias: Shift of each channel, shape (C,).
        training: Whether to use the batch's statistics rather than the running ones.
        momentum: Weight of the batch in the running statistics; None for a cumulative average,
            which needs ``num_batches_tracked``.
        eps: Added to the diagonal of the covariance.
        group_size: How many contiguous channels are whitened together.
        whitening: ``"zca"``, ``"pca"``, ``"cholesky"`` or ``"newton"``.
        running: What ``running_matrix`` averages: the ``"covariance"`` (without eps, and unbiased,
            as BatchNorm's running variance), or the ``"whitening"`` matrix, as in the paper.
        shrinkage: How far covariances are drawn towards their diagonals in training: a number from
            0 (the paper) to 1 (BatchNorm), ``"auto"`` or ``"bounded"``. By default 0, unlike the
            layers.
        iterations: Steps of ``"newton"``.
        num_batches_tracked: Counts, in place, the batches that the running statistics hold.
        process_group: Replicas of torch.distributed whose batches count as one in training.

    Example:
        >>> x = torch.randn(256, 8, dtype=torch.float64).cumsum(1)
        >>> y = decorrelated_batch_norm(x, training=True, group_size=8)
        >>> torch.allclose(y.T.cov(correction=0), torch.eye(8, dtype=torch.float64), atol=1e-3)
        True
    """
    check_options(eps, group_size, whitening, running, shrinkage, iterations)
    check_tensors(input, running_mean, running_matrix, weight, bias, group_size)
    if training:
        check_training(input, running_mean, momentum, num_batches_tracked, process_group)
    elif running_mean is None or running_matrix is None:
        raise ValueError(
            "inference needs running_mean and running_matrix (one of them is None); "
            "give both, or pass training=True to use the statistics of the batch"
        )
    method = _Method(eps, group_size, whitening, iterations, running, shrinkage, process_group)
    with no_autocast(input.device.type):
        if not training:
            mean, matrix = cast(Tensor, running_mean), cast(Tensor, running_matrix)
            if running == "covariance":
                matrix = whitening_of_running_covariance(
                    matrix, input.shape[1], eps, whitening, iterations
                )
            return _inference(input, mean, matrix, weight, bias, group_size)
        if gate.serves(input, weight, bias, method):
            running_statistics = running_mean, running_matrix, momentum, num_batches_tracked
            whitened = gate.train(input, weight, bias, method, *running_statistics)
            if whitened is not None:
                return whitened
        if running_mean is None and process_group is None and torch.compiler.is_exporting():
            return _differentiable_forward(input, weight, bias, method)  # y alone, no more nodes
        y, mean, W, _, _, _, *covariance = call(_BatchWhitening, input, weight, bias, method)
        if running_mean is not None and (input.numel() > 0 or process_group is not None):
            matrix = covariance[0] if running == "covariance" else W
            _update(running_mean, running_matrix, momentum, num_batches_tracked, mean, matrix)
        return cast(Tensor, y)


class _Method(NamedTuple):
    """Which whitening is done, what of it is averaged, and which replicas take part."""

    eps: float
    group_size: int
    whitening: str
    iterations: int
    running: str
    shrinkage: float | str
    process_group: ProcessGroup | None


# --- inference ----------------------------------------------------------------------------------


def whitening_of_running_covariance(
    covariance: Tensor, channels: int, eps: float, whitening: str, iterations: int
) -> Tensor:
    """What inference multiplies by: (G, k, k), of which the last group may use a corner alone."""
    covariance = covariance.to(algebra_dtype(covariance))
    parts = [
        whitening_matrix(of_groups(covariance, span), eps, whitening, iterations)
        for span in spans_of(channels, covariance.shape[-1])
    ]
    return joined_matrices(parts)


def covariance_of_running_whitening(matrix: Tensor, channels: int, eps: float) -> Tensor:
    """(W^T W)^-1 - eps I: whose whitening these matrices are, by ZCA or Cholesky."""
    matrix = matrix.to(algebra_dtype(matrix))
    parts = []
    for span in spans_of(channels, matrix.shape[-1]):
        inverse = torch.linalg.inv_ex(of_groups(matrix, span)).inverse
        parts.append(inverse @ inverse.mT)
        parts[-1].diagonal(dim1=-2, dim2=-1).sub_(eps)
    return joined_matrices(parts)


def _inference(
    x: Tensor,
    mean: Tensor,
    matrix: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    group_size: int,
) -> Tensor:
    """P (x - mean) + bias, P = diag(weight) W or weight W, in differentiable operations."""
    work, outputs = work_dtype(x), []
    for span in spans_of(x.shape[1], group_size):
        channels, groups, size = span
        part = x[:, channels].to(work)
        centred = part - mean[channels].to(work).view(-1, *[1] * (x.dim() - 2))
        rows = is_channels_last(centred)
        # A copy, since a batch in training may change the running average before backward.
        W = matrix[groups, :size, :size].to(work, copy=True)
        P = _scaled(W, weight, span)
        y = P @ grouped(centred, size, rows)
        if bias is not None:
            y = y + bias[channels].to(work).view(-1, size, 1)
        outputs.append(ungrouped(y, centred, rows).to(x.dtype))
    return joined_channels(outputs)


def _scaled(matrix: Tensor, weight: Tensor | None, span: Span) -> Tensor:
    """diag(weight) matrix, or weight matrix if it is one, for the weights of this span."""
    if weight is None:
        return matrix
    if weight.dim() == 1:
        scale = of_channels(weight, span.channels).to(matrix.dtype)
        return scale.view(*matrix.shape[:-1], 1) * matrix
    return of_groups(weight, span).to(matrix.dtype) @ matrix


def _transposed(weight: Tensor | None) -> Tensor | None:
    """The weight whose matrix is the transpose; a diagonal one is its own."""
    return weight if weight is None or weight.dim() == 1 else weight.mT


# --- training -----------------------------------------------------------------------------------


class _BatchWhitening(Transformable):
    """y = P (x - mu) + bias, P = diag(weight) W, where mu and W are functions of the same x.

    A weight that is a matrix for each group takes the place of diag(weight).

    Gives y and, as constants, the batch's mean (C,), W [G, k, k], what the derivative of W needs
    (see :class:`whitenorm.whitening.Whitening`), the shift (C,) of the passes, the share of each
    group's covariances that shrinkage keeps [G, 1, 1], both empty if there is none, and the
    unbiased covariance [G, k, k] if that is averaged.
    """

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, method: _Method
    ) -> tuple[Tensor, ...]:
        rows, work, algebra = is_channels_last(x), work_dtype(x), algebra_dtype(x)
        spans = spans_of(x.shape[1], method.group_size)
        views = grouped_spans(x, spans, rows)

        # The mean and the second moment of each group, of all replicas' samples.
        statistics = [moments(view, algebra) for view in views]
        shifts = [found.shift for found in statistics]
        means, central = [f.mean for f in statistics], [f.central for f in statistics]
        count: float | Tensor = max(_samples(x), 1)
        if method.process_group is not None:
            own = _samples(x)
            count, means, central = combine(own, means, central, method.process_group)

        # The whitening matrix, and what its derivative will need.
        matrices, factors, shares = [], [], []
        for i, moment in enumerate(central):
            S = moment / count
            kept = kept_share(S, method.eps, method.shrinkage, count)
            if kept is not None:
                S, central[i] = shrink(S, kept), shrink(moment, kept)
                shares.append(kept)
            S.diagonal(dim1=-2, dim2=-1).add_(method.eps)
            W, factor = decompose(S, method.eps, method.whitening, method.iterations)
            matrices.append(W.to(work, copy=True))  # no tensor may be given back twice
            rounds = WHITENINGS[method.whitening].rounds
            factors.append(factor.to(work) if rounds else factor)

        # The output.
        constants, terms = [], []
        for i, found in enumerate(statistics):
            offset = _offset(means[i], shifts[i], work)
            P = _scaled(matrices[i], weight, spans[i])
            if bias is None:
                constants.append(torch.bmm(P, -offset))
            else:
                beta = of_channels(bias, spans[i].channels).view_as(offset).to(work)
                constants.append(torch.baddbmm(beta, P, offset, alpha=-1))
            terms.append([Term(P, found.samples, found.left)])
        if is_traced():
            y = _differentiable_forward(x, weight, bias, method)
        else:
            y = _mapped(x, spans, constants, terms)
        outputs = [y, _joined(means), joined_matrices(matrices), joined_matrices(factors)]
        if all(shift is None for shift in shifts):
            outputs.append(x.new_empty(0))
        else:
            pairs = zip(shifts, means, strict=True)
            outputs.append(_joined([_or_zeros(shift, mean, work) for shift, mean in pairs]))
        outputs.append(torch.cat(shares) if shares else x.new_empty(0))
        if method.running == "covariance":
            outputs.append(joined_matrices([moment / (count - 1) for moment in central]))
        return tuple(outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, bias, ctx.method = inputs
        _, mean, W, factor, shift, kept, *_ = output
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.constants = (None,) * len(output[1:])
        save(ctx, x, weight, bias, mean, W, factor, shift, kept)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if g is None:
            return None, None, None, None
        x, weight, bias, *statistics = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        with no_autocast(g.device.type):
            differentiable = torch.is_grad_enabled() and not torch.compiler.is_compiling()
            if differentiable or is_wrapped(g):
                grads = _differentiable_backward(g, x, weight, bias, wanted, ctx.method)
            else:
                grads = _backward(g, x, weight, bias, wanted, ctx.method, *statistics)
        return (*grads, None)

    @staticmethod
    def push_forward(
        ctx: Any, saved: list[Any], *tangents: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, weight, bias, *_ = saved
        given = tuple(t for t in tangents if t is not None)
        wanted = (tangents[0] is not None, tangents[1] is not None, tangents[2] is not None)

        def pull_back(g: Tensor) -> tuple[Tensor, ...]:
            grads = _differentiable_backward(g, x, weight, bias, wanted, ctx.method)
            return tuple(grad for grad in grads if grad is not None)

        with no_autocast(x.device.type):
            return (transposed(pull_back, x, given), *ctx.constants)


# apply() asks for it at every call, which is 5% of a layer on [256, 128] if it is made anew.
_BatchWhitening.forward.__signature__ = inspect.signature(  # type: ignore[attr-defined]
    _BatchWhitening.forward
)


def _samples(x: Tensor) -> int:
    """How many there are of each channel; not by a quotient, which graphs don't see through."""
    return x.shape[0] * x.shape[2:].numel()


def _offset(mean: Tensor, shift: Tensor | None, work: torch.dtype) -> Tensor:
    """What is left of the mean after the shift, in the dtype of the passes."""
    return (mean if shift is None else mean - shift).to(work)


def _or_zeros(shift: Tensor | None, mean: Tensor, work: torch.dtype) -> Tensor:
    return torch.zeros_like(mean, dtype=work) if shift is None else shift


def _joined(parts: list[Tensor]) -> Tensor:
    """The channels of all spans in one vector."""
    return parts[0].flatten() if len(parts) == 1 else torch.cat([p.flatten() for p in parts])


_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def _backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: tuple[bool, bool, bool],
    method: _Method,
    mean: Tensor,
    W: Tensor,
    factor: Tensor,
    shift: Tensor,
    kept: Tensor,
) -> _Gradients:
    """Gradients of input, weight and bias from s = sum g_i and A = sum g_i (x_i - mu)^T.

    dx_i = P^T g_i + (2/m) dS (x_i - mu) - P^T s / m
    """
    rows, work = is_channels_last(x), work_dtype(x)
    spans = spans_of(x.shape[1], method.group_size)
    views, gradients = grouped_spans(x, spans, rows), grouped_spans(g, spans, rows)
    shifts: list[Tensor | None] = [None] * len(spans)
    if shift.numel() > 0:
        shifts = [of_channels(shift, span.channels).view(-1, span.size, 1) for span in spans]
    offsets, totals, outers = [], [], []
    for i, (channels, _, size) in enumerate(spans):
        offsets.append(_offset(of_channels(mean, channels).view(-1, size, 1), shifts[i], work))
        views[i], shifts[i] = less(views[i], shifts[i])
        s, A = sums(views[i], shifts[i], work, gradients[i])
        totals.append(s)
        outers.append(torch.baddbmm(A, s, offsets[i].mT, alpha=-1))
    dweight = dbias = None
    if weight is not None:
        pairs = [(A, of_groups(W, span)) for A, span in zip(outers, spans, strict=True)]
        if weight.dim() == 1:
            dweight = _joined([(A * part).sum(-1) for A, part in pairs]).to(weight.dtype)
        else:
            dweight = joined_matrices([A @ part.mT for A, part in pairs], 0.0).to(weight.dtype)
    if bias is not None:
        dbias = _joined(totals).to(bias.dtype)
    if not wanted[0]:
        return None, dweight, dbias

    count: float | Tensor = max(_samples(x), 1)
    if method.process_group is not None:
        own = outers[0].new_full((1,), _samples(x))
        count, *sums_of_all = add_up([own, *totals, *outers], method.process_group)
        totals, outers = sums_of_all[: len(spans)], sums_of_all[len(spans) :]
    constants, terms = [], []
    for i, span in enumerate(spans):
        P = _scaled(of_groups(W, span), weight, span).mT
        dW, F = _scaled(outers[i], _transposed(weight), span), of_groups(factor, span)
        # F is the one of S, W and F that the derivative takes its values from.
        dS = WHITENINGS[method.whitening].vjp(F, F, F, dW.to(F.dtype), method.iterations)
        if kept.numel() > 0:
            dS = shrink(dS, of_channels(kept, span.groups).to(dS.dtype))
        Q = (dS * (2 / count)).to(work)
        constant = torch.bmm(P, totals[i] / -count)
        constants.append(torch.baddbmm(constant, Q, offsets[i], alpha=-1))
        terms.append([Term(P, gradients[i]), Term(Q, views[i], shifts[i])])
    return _mapped(x, spans, constants, terms), dweight, dbias


def _mapped(
    x: Tensor, spans: tuple[Span, ...], constants: list[Tensor], terms: list[list[Term]]
) -> Tensor:
    """The sum of the terms of each span plus a constant [G, k, 1], laid out as x."""
    rows = is_channels_last(x)
    if torch.compiler.is_compiling():  # where torch.func allows no writing into parts of a tensor
        parts = []
        for span, constant, some in zip(spans, constants, terms, strict=True):
            parts.append(ungrouped(affine(constant, *some), x[:, span.channels], rows))
        return new_output(x, rows).copy_(joined_channels(parts))
    y = new_output(x, rows)
    for out, constant, some in zip(grouped_spans(y, spans, rows), constants, terms, strict=True):
        apply(out, constant, *some)
    return y


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
            "gradients of gradients, batched gradients and forward mode don't pass through "
            "statistics of several replicas; use a layer that isn't synchronized for these"
        )

    def whitened(*wanted_inputs: Tensor) -> Tensor:
        given = iter(wanted_inputs)
        pairs = zip((x, weight, bias), wanted, strict=True)
        inputs: list[Any] = [next(given) if want else t for t, want in pairs]
        return _differentiable_forward(inputs[0], inputs[1], inputs[2], method)

    inputs = [t for t, want in zip((x, weight, bias), wanted, strict=True) if want]
    pull_back: Any = torch.func.vjp(whitened, *cast(list[Tensor], inputs))[1]
    grads = iter(pull_back(g))
    dx, dweight, dbias = (next(grads) if want else None for want in wanted)
    return dx, dweight, dbias


def _differentiable_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, method: _Method
) -> Tensor:
    """y in differentiable operations."""
    rows, outputs = is_channels_last(x), []
    for span in spans_of(x.shape[1], method.group_size):
        channels, _, size = span
        part = x[:, channels]
        view = grouped(part, size, rows).to(work_dtype(x))
        centred = view - view.mean((0, -1), keepdim=True)
        outer = (centred @ centred.mT).sum(0, dtype=algebra_dtype(x))
        count = view.shape[0] * view.shape[-1]
        covariance = outer / count
        kept = kept_share(covariance.detach(), method.eps, method.shrinkage, count)
        covariance = shrink(covariance, kept)
        W = whitening_matrix(covariance, method.eps, method.whitening, method.iterations)
        y = _scaled(W, weight, span).to(view.dtype) @ centred
        if bias is not None:
            y = y + bias[channels].view(-1, size, 1)
        outputs.append(ungrouped(y, part, rows))
    return joined_channels(outputs).to(x.dtype)


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
    if is_wrapped(mean) and not is_wrapped(running_mean):
        raise RuntimeError(
            "running statistics can't be updated inside a transform of torch.func that they don't "
            "enter as arguments: pass them by torch.func.functional_call(module, (parameters, "
            "buffers), x), or use track_running_stats=False or eval()"
        )
    finite = None
    if not surely_finite(matrix):
        finite = torch.linalg.vector_norm(matrix, torch.inf) < torch.inf  # two launches, no wait
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
            if is_wrapped(running):  # vmap has no rule for lerp_
                running.copy_(torch.lerp(running, value, factor))
            else:
                running.lerp_(value, factor)
