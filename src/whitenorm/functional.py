r"""Batch whitening as a function: statistics -> whitening matrix -> apply, train and eval."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function

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
    with torch.autocast(input.device.type, enabled=False):
        for channels, groups, size in _blocks(input.shape[1], group_size):
            x = input[:, channels]
            gamma = None if weight is None else weight[channels]
            beta = None if bias is None else bias[channels]
            if training:
                y, mean, covariance, W = _train(x, gamma, beta, eps, size, whitening, iterations)
                outputs.append(y)
                batch.append((mean, W if running == "whitening" else covariance))
            else:
                matrix = cast(Tensor, running_matrix)[groups, :size, :size]
                if running == "covariance":
                    matrix = whitening_matrix(
                        matrix.to(algebra_dtype(x)), eps, whitening, iterations
                    )
                outputs.append(_infer(x, cast(Tensor, running_mean)[channels], matrix, gamma, beta))
        if training and running_mean is not None:
            _update(batch, running_mean, running_matrix, momentum, num_batches_tracked, input)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)


# --- training -----------------------------------------------------------------------------------


def _train(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    size: int,
    whitening: str,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Whitens x with its own statistics: the output, and the batch's mean, covariance and W."""
    work, algebra = _work_dtype(x), algebra_dtype(x)
    with torch.no_grad():
        samples = _samples(x, size)
        count = samples.shape[0] * samples.shape[-1]
        mean = samples.sum(-1, dtype=work).to(algebra).sum(0) / max(count, 1)
        shift = mean.to(work)
    # Everything below sees x - shift, so that a mean far larger than the deviation costs no
    # digits; `offset` is what rounding the mean to `shift` has left. The shifted copy is what the
    # backward pass keeps, except in half precision, where keeping x and shifting anew is smaller.
    kept, pending = (x, shift) if x.dtype != work else (x - _per_channel(shift, x), None)
    with torch.no_grad():
        offset = mean - shift
        centred = _centred(kept, pending, size)
        moment = (centred @ centred.mT).sum(0, dtype=algebra) / max(count, 1)
        covariance = moment - offset.unsqueeze(-1) * offset.unsqueeze(-2)
        S = covariance + eps * torch.eye(size, dtype=algebra, device=x.device)
        W, *cache = decompose(S, eps, whitening, iterations)
    options = _Options(eps, size, whitening, iterations)
    y = _BatchWhitening.apply(kept, weight, bias, options, pending, offset, S, W, *cache)
    return cast(Tensor, y), mean.flatten(), covariance * (count / max(count - 1, 1)), W


class _Options(NamedTuple):
    eps: float
    size: int
    whitening: str
    iterations: int


class _BatchWhitening(Function):
    r"""y = P (x - mu) + bias, P = diag(weight) W, where mu and W are functions of the same x.

    The backward pass reads the activations twice: once for s = sum g_i and A = sum g_i (x_i-mu)^T,
    once to write dx_i = P^T g_i + (2/m) dS (x_i-mu) - P^T s / m. All the rest is k x k.
    """

    @staticmethod
    def forward(
        kept: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        options: _Options,
        shift: Tensor | None,
        offset: Tensor,
        S: Tensor,
        W: Tensor,
        *cache: Tensor,
    ) -> Tensor:
        P = _scaled(W, weight)
        constant = -(P @ offset.unsqueeze(-1))
        if bias is not None:
            constant = constant + bias.view_as(constant)
        return _affine([(P, _centred(kept, shift, options.size))], constant, kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        kept, weight, bias, ctx.options, *small = inputs
        ctx.save_for_backward(kept, weight, bias, *small)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        kept, weight, bias, shift, offset, S, W, *cache = ctx.saved_tensors
        options = cast(_Options, ctx.options)
        wanted = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            grads = _differentiable_backward(g, (kept, weight, bias), wanted, shift, options)
            return (*grads, *([None] * (5 + len(cache))))

        centred = _centred(kept, shift, options.size)
        gradient = _samples(g, options.size, rows=_is_rows(kept)).to(centred.dtype)
        count = centred.shape[0] * centred.shape[-1]
        s = gradient.sum(-1).to(W.dtype).sum(0).unsqueeze(-1)
        A = (gradient @ centred.mT).sum(0, dtype=W.dtype) - s * offset.unsqueeze(-2)
        dweight = (A * W).sum(-1).flatten().to(weight.dtype) if wanted[1] else None
        dbias = s.flatten().to(bias.dtype) if wanted[2] else None
        if not wanted[0]:
            return (None, dweight, dbias, *([None] * (5 + len(cache))))

        P, dW = _scaled(W, weight), _scaled(A, weight)
        vjp = WHITENINGS[options.whitening].vjp
        Q = vjp(S, W, tuple(cache), dW, options.iterations) * (2 / max(count, 1))
        constant = -(Q @ offset.unsqueeze(-1)) - P.mT @ s / max(count, 1)
        dx = _affine([(P.mT, gradient), (Q, centred)], constant, kept)
        return (dx, dweight, dbias, *([None] * (5 + len(cache))))


def _differentiable_backward(
    g: Tensor,
    inputs: tuple[Tensor, Tensor | None, Tensor | None],
    wanted: tuple[bool, ...],
    shift: Tensor | None,
    options: _Options,
) -> list[Tensor | None]:
    """The same gradients as functions of g and the inputs, for double backward."""
    kept, weight, bias = inputs
    x = _centred(kept, shift, options.size)
    x = x - x.mean((0, -1), keepdim=True)
    algebra = algebra_dtype(x)
    covariance = (x @ x.mT).to(algebra).sum(0) / (x.shape[0] * x.shape[-1])
    W = whitening_matrix(covariance, options.eps, options.whitening, options.iterations)
    y = _scaled(W, weight).to(x.dtype) @ x
    if bias is not None:
        y = y + bias.view(-1, options.size, 1)
    y = _restored(y, kept)
    sources = [t for t, want in zip(inputs, wanted, strict=True) if want and t is not None]
    grads = iter(torch.autograd.grad(y, sources, g, create_graph=True))
    return [next(grads) if want else None for want in wanted]


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

    size = batch[0][1].shape[-1]
    for (mean, matrix), (channels, groups, size) in zip(
        batch, _blocks(input.shape[1], size), strict=True
    ):
        move(running_mean[channels], mean)
        if running_matrix is not None:
            move(running_matrix[groups, :size, :size], matrix)


# --- inference ----------------------------------------------------------------------------------


def _infer(
    x: Tensor, mean: Tensor, W: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """y = diag(weight) W (x - mean) + bias with given statistics, in differentiable operations."""
    work = _work_dtype(x)
    centred = x.to(work) - _per_channel(mean.to(work), x)
    y = _scaled(W.to(work), weight) @ _samples(centred, W.shape[-1])
    if bias is not None:
        y = y + bias.to(work).view(-1, W.shape[-1], 1)
    return _restored(y, centred).to(x.dtype)


# --- the passes over the activations ------------------------------------------------------------
#
# A tensor (N, C, ...) is seen as [B, G, k, L]: G groups of k channels, B * L samples. Contiguous
# maps are [N, G, k, positions]; channels-last ones, and (N, C), are [1, G, k, N * positions].


def _is_rows(x: Tensor) -> bool:
    return x.stride(1) == 1


def _samples(x: Tensor, size: int, rows: bool | None = None) -> Tensor:
    """x as [B, G, k, L]; a view wherever the memory format allows one."""
    n, channels = x.shape[:2]
    if _is_rows(x) if rows is None else rows:
        rest = x.movedim(1, -1).reshape(-1, channels // size, size)
        return rest.permute(1, 2, 0).unsqueeze(0)
    return x.reshape(n, channels // size, size, x.shape[2:].numel())


def _restored(samples: Tensor, like: Tensor) -> Tensor:
    """The inverse of ``_samples(like, size)``."""
    if _is_rows(like):
        n, channels, *positions = like.shape
        rows = samples.permute(0, 3, 1, 2).reshape(n, *positions, channels)
        return rows.contiguous().movedim(-1, 1)
    return samples.reshape(like.shape)


def _centred(kept: Tensor, shift: Tensor | None, size: int) -> Tensor:
    samples = _samples(kept, size)
    return samples if shift is None else samples - shift.unsqueeze(-1)


def _affine(terms: list[tuple[Tensor, Tensor]], constant: Tensor, like: Tensor) -> Tensor:
    """A new tensor as ``like``: the sum of matrix @ samples over the terms, plus a constant."""
    n, channels, *positions = like.shape
    strides, step = [], channels
    for length in reversed(positions):
        strides.insert(0, step)
        step *= length
    if _is_rows(like):
        out = like.new_empty_strided(like.shape, (step, 1, *strides))
    else:
        out = like.new_empty(like.shape)
    # `out` must not be a view, or an in-place ReLU could not follow; so it is written through one.
    view = _samples(out, constant.shape[-2], rows=_is_rows(like))
    work = terms[0][1].dtype
    total = constant.to(work)
    for matrix, samples in terms:
        total = total + matrix.to(work) @ samples
    view.copy_(total)
    return out


def _scaled(matrix: Tensor, weight: Tensor | None) -> Tensor:
    return matrix if weight is None else weight.view(*matrix.shape[:-1], 1) * matrix


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (like.dim() - 2))


def _blocks(channels: int, group_size: int) -> Iterator[tuple[slice, slice, int]]:
    """(channels, groups, size) of the whole groups, then of the remainder."""
    size = min(group_size, channels)
    whole = channels - channels % size
    yield slice(0, whole), slice(0, whole // size), size
    if whole < channels:
        yield slice(whole, channels), slice(whole // size, None), channels - whole


def _work_dtype(x: Tensor) -> torch.dtype:
    """The dtype of the passes: the input's own, but at least float32."""
    return torch.promote_types(x.dtype, torch.float32)


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
            raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {choice!r}")
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
    expected = {name: (channels,) for name in vectors}
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
