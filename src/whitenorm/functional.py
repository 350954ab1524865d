r"""Batch whitening as a function: statistics -> whitening matrix -> apply, train and eval."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function

from whitenorm.passes import Term, affine, is_rows, restored, samples, some_mean, sums, work_dtype
from whitenorm.whitening import WHITENINGS, decompose, whitening_matrix

__all__ = ["decorrelated_batch_norm"]

RUNNING = ("whitening", "covariance")


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

    Example:
        >>> x = torch.randn(256, 8, dtype=torch.float64).cumsum(1)
        >>> y = decorrelated_batch_norm(x, training=True, group_size=8)
        >>> torch.allclose(y.T.cov(correction=0), torch.eye(8, dtype=torch.float64), atol=1e-3)
        True
    """
    check_options(eps, group_size, whitening, running, iterations)
    _check_tensors(input, running_mean, running_matrix, weight, bias, group_size)
    if training:
        _check_training(input, running_mean, momentum, num_batches_tracked)
    elif running_mean is None or running_matrix is None:
        raise ValueError(
            "inference needs running_mean and running_matrix (one of them is None); "
            "give both, or pass training=True to use the statistics of the batch"
        )

    outputs: list[Tensor] = []
    batch: list[tuple[Tensor, Tensor]] = []
    with no_autocast(input.device.type):
        for channels, groups, size in _blocks(input.shape[1], group_size):
            x = input[:, channels]
            gamma = None if weight is None else weight[channels]
            beta = None if bias is None else bias[channels]
            if training:
                options = _Options(eps, size, whitening, iterations)
                y, mean, covariance, W = _train(x, gamma, beta, options)
                outputs.append(y)
                batch.append((mean, W if running == "whitening" else covariance))
            else:
                matrix = cast(Tensor, running_matrix)[groups, :size, :size]
                if running == "covariance":
                    matrix = whitening_matrix(
                        matrix.to(algebra_dtype(x)), eps, whitening, iterations
                    )
                outputs.append(
                    _infer(x, cast(Tensor, running_mean)[channels], matrix, gamma, beta)
                )
        if training and running_mean is not None:
            _update(batch, running_mean, running_matrix, momentum, num_batches_tracked, input)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)


# --- training -----------------------------------------------------------------------------------


def _train(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, options: _Options
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Whitens x with its own statistics: the output, and the batch's mean, covariance and W."""
    algebra = algebra_dtype(x)
    with torch.no_grad():
        view = samples(x, options.size)
        count = max(view.shape[0] * view.shape[-1], 1)
        shift = some_mean(view)
        total, outer = sums(view, shift, algebra)
        offset = total / count
        covariance = outer / count - offset * offset.mT
        S = covariance + options.eps * torch.eye(options.size, dtype=algebra, device=x.device)
        W, *cache = decompose(S, options.eps, options.whitening, options.iterations)
    y = _BatchWhitening.apply(x, weight, bias, options, shift, offset, S, W, *cache)
    unbiased = covariance * (count / max(count - 1, 1))
    return cast(Tensor, y), (shift + offset).flatten(), unbiased, W


class _Options(NamedTuple):
    eps: float
    size: int
    whitening: str
    iterations: int


class _BatchWhitening(Function):
    r"""y = P (x - mu) + bias, P = diag(weight) W, where mu and W are functions of the same x.

    The mean mu is shift + offset, where offset is what the shift leaves of it.
    """

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        options: _Options,
        shift: Tensor,
        offset: Tensor,
        S: Tensor,
        W: Tensor,
        *cache: Tensor,
    ) -> Tensor:
        P = _scaled(W, weight)
        constant = -P @ offset
        if bias is not None:
            constant += bias.view_as(constant)
        return affine(x, constant, Term(P, samples(x, options.size), shift))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.options, *small = inputs
        ctx.save_for_backward(x, weight, bias, *small)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, *small = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        with no_autocast(g.device.type):
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                grads = _differentiable_backward(g, x, weight, bias, wanted, ctx.options)
            else:
                grads = _backward(g, x, weight, bias, wanted, ctx.options, *small)
        return (*grads, None, *[None] * len(small))


_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def _backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: tuple[bool, bool, bool],
    options: _Options,
    shift: Tensor,
    offset: Tensor,
    S: Tensor,
    W: Tensor,
    *cache: Tensor,
) -> _Gradients:
    """Gradients of input, weight and bias from s = sum g_i and A = sum g_i (x_i - mu)^T:

    dx_i = P^T g_i + (2/m) dS (x_i - mu) - P^T s / m.
    """
    view = samples(x, options.size)
    gradient = samples(g, options.size, rows=is_rows(x))
    count = max(view.shape[0] * view.shape[-1], 1)
    s, A = sums(view, shift, W.dtype, gradient)
    A -= s * offset.mT
    dweight = (A * W).sum(-1).flatten().to(weight.dtype) if weight is not None else None
    dbias = s.flatten().to(bias.dtype) if bias is not None else None
    if not wanted[0]:
        return None, dweight, dbias

    P, dW = _scaled(W, weight), _scaled(A, weight)
    dS = WHITENINGS[options.whitening].vjp(S, W, cache, dW, options.iterations)
    Q = dS * (2 / count)
    constant = -Q @ offset - P.mT @ s / count
    return affine(x, constant, Term(P.mT, gradient), Term(Q, view, shift)), dweight, dbias


def _differentiable_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: tuple[bool, bool, bool],
    options: _Options,
) -> _Gradients:
    """The same gradients as differentiable functions of g and the inputs, for double backward."""
    view = samples(x, options.size).to(work_dtype(x))
    centred = view - view.mean((0, -1), keepdim=True)
    outer = (centred @ centred.mT).sum(0, dtype=algebra_dtype(x))
    covariance = outer / (view.shape[0] * view.shape[-1])
    W = whitening_matrix(covariance, options.eps, options.whitening, options.iterations)
    y = _scaled(W, weight).to(view.dtype) @ centred
    if bias is not None:
        y = y + bias.view(-1, options.size, 1)
    inputs = [t for t, want in zip((x, weight, bias), wanted, strict=True) if want]
    y = restored(y, x).to(g.dtype)
    grads = iter(torch.autograd.grad(y, cast(list[Tensor], inputs), g, create_graph=True))
    dx, dweight, dbias = (next(grads) if want else None for want in wanted)
    return dx, dweight, dbias


@torch.no_grad()
def _update(
    batch: list[tuple[Tensor, Tensor]],
    running_mean: Tensor,
    running_matrix: Tensor | None,
    momentum: float | None,
    num_batches_tracked: Tensor | None,
    input: Tensor,
) -> None:
    """Moves the running statistics towards the batch's, unless the batch isn't finite."""
    if input.numel() == 0:
        return
    finite = torch.stack([matrix.isfinite().all() for _, matrix in batch]).all()
    factor: float | Tensor
    if momentum is None:
        factor = 1 / (cast(Tensor, num_batches_tracked) + 1).to(algebra_dtype(input))
    else:
        factor = momentum
    if num_batches_tracked is not None:
        num_batches_tracked += finite

    def move(running: Tensor, value: Tensor) -> None:
        moved = running + factor * (value - running)
        running.copy_(torch.where(finite, moved, running))

    blocks = _blocks(input.shape[1], batch[0][1].shape[-1])
    for (mean, matrix), (channels, groups, size) in zip(batch, blocks, strict=True):
        move(running_mean[channels], mean)
        if running_matrix is not None:
            move(running_matrix[groups, :size, :size], matrix)


# --- inference ----------------------------------------------------------------------------------


def _infer(
    x: Tensor, mean: Tensor, W: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """y = diag(weight) W (x - mean) + bias with given statistics, in differentiable operations."""
    work, size = work_dtype(x), W.shape[-1]
    centred = x.to(work) - mean.to(work).view(-1, *[1] * (x.dim() - 2))
    y = _scaled(W.to(work), weight) @ samples(centred, size)
    if bias is not None:
        y = y + bias.to(work).view(-1, size, 1)
    return restored(y, centred).to(x.dtype)


# --- small pieces -------------------------------------------------------------------------------


def _scaled(matrix: Tensor, weight: Tensor | None) -> Tensor:
    return matrix if weight is None else weight.view(*matrix.shape[:-1], 1) * matrix


def _blocks(channels: int, group_size: int) -> Iterator[tuple[slice, slice, int]]:
    """(channels, groups, size) of the whole groups, then of the remainder."""
    size = min(group_size, channels)
    whole = channels - channels % size
    yield slice(0, whole), slice(0, whole // size), size
    if whole < channels:
        yield slice(whole, channels), slice(whole // size, None), channels - whole


def no_autocast(device_type: str) -> contextlib.AbstractContextManager[Any]:
    """Turns autocast off where it is on; elsewhere it leaves no trace in exported graphs."""
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return contextlib.nullcontext()


def algebra_dtype(x: Tensor) -> torch.dtype:
    """The dtype of the k x k algebra: float64 where the device has it."""
    return torch.float32 if x.device.type == "mps" else torch.float64


# --- errors -------------------------------------------------------------------------------------


def check_options(
    eps: float, group_size: int, whitening: str, running: str, iterations: int
) -> None:
    """Raises a ValueError that says which option is wrong, and what it may be."""
    for name, number in (("group_size", group_size), ("iterations", iterations)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"{name} must be a positive integer, got {number!r}")
    for name, choice, known in (
        ("whitening", whitening, tuple(WHITENINGS)),
        ("running", running, RUNNING),
    ):
        if choice not in known:
            raise ValueError(
                f"{name} must be one of {', '.join(map(repr, known))}, got {choice!r}"
            )
    if not eps >= 0:
        raise ValueError(f"eps must not be negative, got {eps!r}")


def _check_tensors(
    input: Tensor,
    running_mean: Tensor | None,
    running_matrix: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    group_size: int,
) -> None:
    if input.dim() < 2:
        raise ValueError(f"expected input of shape (N, C, ...), got shape {tuple(input.shape)}")
    if not input.is_floating_point():
        raise ValueError(f"expected a floating-point input, got {input.dtype}")
    channels = input.shape[1]
    size = min(group_size, channels)
    vectors = {"running_mean": running_mean, "weight": weight, "bias": bias}
    expected: dict[str, tuple[int, ...]] = dict.fromkeys(vectors, (channels,))
    expected["running_matrix"] = (-(-channels // size), size, size)
    for name, tensor in {**vectors, "running_matrix": running_matrix}.items():
        if tensor is not None and tensor.shape != expected[name]:
            raise ValueError(
                f"{name} must have shape {expected[name]} for an input with {channels} channels "
                f"and group_size={group_size}, got {tuple(tensor.shape)}"
            )


def _check_training(
    input: Tensor,
    running_mean: Tensor | None,
    momentum: float | None,
    num_batches_tracked: Tensor | None,
) -> None:
    if input.numel() == input.shape[1]:
        raise ValueError(
            "Expected more than 1 value per channel when training, "
            f"got input size {tuple(input.shape)}; use a larger batch or call eval()"
        )
    if momentum is None and running_mean is not None and num_batches_tracked is None:
        raise ValueError("momentum=None averages over all batches: give num_batches_tracked too")
