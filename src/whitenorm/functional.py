r"""Batch whitening as a function: statistics -> whitening matrix -> apply, train and eval."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from whitenorm.batch import Options, batch_statistics, whiten
from whitenorm.distributed import ProcessGroup
from whitenorm.passes import (
    algebra_dtype,
    blocks,
    is_rows,
    no_autocast,
    part,
    restored,
    samples,
    scaled,
    surely_finite,
    work_dtype,
)
from whitenorm.whitening import WHITENINGS, whitening_matrix

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
    _check_tensors(input, running_mean, running_matrix, weight, bias, group_size)
    if training:
        _check_training(input, running_mean, momentum, num_batches_tracked, process_group)
    elif running_mean is None or running_matrix is None:
        raise ValueError(
            "inference needs running_mean and running_matrix (one of them is None); "
            "give both, or pass training=True to use the statistics of the batch"
        )

    with no_autocast(input.device.type):
        if training:
            rows = is_rows(input)
            options = Options(rows, eps, group_size, whitening, iterations, process_group)
            statistics = batch_statistics(input, options)
            if running_mean is not None and (input.numel() > 0 or process_group is not None):
                means = [s.mean for s in statistics]
                if running == "whitening":
                    matrices = [s.W for s in statistics]
                else:
                    matrices = [s.moment / (s.samples - 1) for s in statistics]
                _update(
                    running_mean, running_matrix, momentum, num_batches_tracked, means, matrices
                )
            return whiten(input, weight, bias, options, statistics)
        mean, matrix = cast(Tensor, running_mean), cast(Tensor, running_matrix)
        outputs = []
        for channels, groups, size in blocks(input.shape[1], group_size):
            W = matrix[groups, :size, :size]
            if running == "covariance":
                W = whitening_matrix(W.to(algebra_dtype(input)), eps, whitening, iterations)
            P = scaled(W, weight, channels)
            shift = None if bias is None else bias[channels]
            outputs.append(_affine(input[:, channels], mean[channels], P, shift))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)


def _affine(x: Tensor, mean: Tensor, P: Tensor, bias: Tensor | None) -> Tensor:
    """P (x - mean) + bias in differentiable operations."""
    work, size = work_dtype(x), P.shape[-1]
    centred = x.to(work) - mean.to(work).view(-1, *[1] * (x.dim() - 2))
    rows = is_rows(centred)
    y = P.to(work) @ samples(centred, size, rows)
    if bias is not None:
        y = y + bias.to(work).view(-1, size, 1)
    return restored(y, centred, rows).to(x.dtype)


def _update(
    running_mean: Tensor,
    running_matrix: Tensor | None,
    momentum: float | None,
    num_batches_tracked: Tensor | None,
    means: list[Tensor],
    matrices: list[Tensor],
) -> None:
    """Moves the running statistics towards the batch's, unless the batch isn't finite."""
    finite = None  # is known to be true
    if not all(surely_finite(matrix) for matrix in matrices):
        finite = torch.stack([matrix.isfinite().all() for matrix in matrices]).all()
    factor: float | Tensor
    if momentum is None:
        factor = 1 / (cast(Tensor, num_batches_tracked) + 1).to(running_mean.dtype)
    else:
        factor = momentum
    if num_batches_tracked is not None:
        num_batches_tracked += 1 if finite is None else finite

    def move(running: Tensor, value: Tensor) -> None:
        value = value.to(running.dtype)
        running.lerp_(value if finite is None else torch.where(finite, value, running), factor)

    parts = blocks(running_mean.shape[0], matrices[0].shape[-1])
    for mean, matrix, (channels, groups, size) in zip(means, matrices, parts, strict=True):
        move(part(running_mean, channels), mean)
        if running_matrix is not None:
            running = part(running_matrix, groups)
            move(running if running.shape[-1] == size else running[:, :size, :size], matrix)


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
    matrices = (-(-channels // size), size, size)
    for name, tensor, expected in (
        ("running_mean", running_mean, (channels,)),
        ("weight", weight, (channels,)),
        ("bias", bias, (channels,)),
        ("running_matrix", running_matrix, matrices),
    ):
        if tensor is not None and tensor.shape != expected:
            raise ValueError(
                f"{name} must have shape {expected} for an input with {channels} channels "
                f"and group_size={group_size}, got {tuple(tensor.shape)}"
            )


def _check_training(
    input: Tensor,
    running_mean: Tensor | None,
    momentum: float | None,
    num_batches_tracked: Tensor | None,
    process_group: ProcessGroup | None,
) -> None:
    if input.numel() == input.shape[1] and process_group is None:
        raise ValueError(
            "Expected more than 1 value per channel when training, "
            f"got input size {tuple(input.shape)}; use a larger batch or call eval()"
        )
    if momentum is None and running_mean is not None and num_batches_tracked is None:
        raise ValueError("momentum=None averages over all batches: give num_batches_tracked too")
