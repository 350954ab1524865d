r"""Correlation and conditioning of activations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whitenorm.precision import algebra_dtype

__all__ = [
    "condition_number",
    "correlation",
    "covariance",
    "covariance_spectrum",
    "effective_rank",
    "eigenvalues",
    "mean_correlation",
]


def covariance_spectrum(activations: Tensor, group_size: int | None = None) -> Tensor:
    r"""Eigenvalues of the covariance (with 1/m) of activations, non-increasing: shape (C,).

    With a ``group_size``, those of each group of channels, one group after the other. Whitened
    activations have eigenvalues of 1 in every group.

    Args:
        activations: Shape (N, C) or (N, C, ...); every position counts as a sample.
        group_size: As in :class:`whitenorm.DecorrelatedBatchNorm2d`; None for all channels.
    """
    S = covariance(activations)
    size = len(S) if group_size is None else group_size
    parts = [S[i : i + size, i : i + size] for i in range(0, len(S), size)]
    return torch.cat([eigenvalues(part) for part in parts])


def effective_rank(activations: Tensor) -> float:
    r"""Effective rank of activations (N, C, ...): how many directions they vary in, from 1 to C.

    *The effective rank: a measure of effective dimensionality*, Roy and Vetterli, 2007, of the
    centred samples: :math:`\exp(-\sum_i p_i \log p_i)`, where :math:`p_i = s_i / \sum_j s_j` and
    :math:`s_i` are the singular values, the roots of the covariance's eigenvalues. It is C for
    white activations, 1 for channels that are multiples of one, 0 if nothing varies, and NaN
    where something isn't finite.

    Example:
        >>> x = torch.randn(100, 1)
        >>> effective_rank(torch.cat([x, -x, 2 * x], 1))
        1.0
    """
    values = covariance_spectrum(activations)
    if not values.isfinite().all():
        return math.nan
    rounding = len(values) * torch.finfo(values.dtype).eps * values[0]
    singular = values[values > rounding].sqrt()
    return (
        float(torch.special.entr(singular / singular.sum()).sum().exp()) if len(singular) else 0.0
    )


def correlation(activations: Tensor) -> Tensor:
    """Correlation matrix of activations (N, C, ...), shape (C, C); NaN for a constant channel."""
    S = covariance(activations)
    deviation = S.diagonal().sqrt()
    return S / deviation.outer(deviation)


def mean_correlation(activations: Tensor) -> float:
    """Mean absolute correlation of the pairs of channels that vary; NaN if there is no pair."""
    matrix = correlation(activations)
    off_diagonal = ~torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
    return float(matrix[off_diagonal].abs().nanmean())


def condition_number(matrix_or_eigenvalues: Tensor, at: float = 1.0) -> float:
    r"""Largest eigenvalue over the one at a fraction of the spectrum, :math:`\lambda_1/\lambda_j`.

    :math:`j = \lfloor \mathtt{at} \cdot n \rfloor` counts from the largest of n; ``at=1`` is the
    usual condition number. It is infinite where :math:`\lambda_j` is zero to working precision,
    and NaN where something isn't finite.

    Args:
        matrix_or_eigenvalues: A symmetric positive semi-definite matrix, or its eigenvalues.
        at: In (0, 1].
    """
    if not 0 < at <= 1:
        raise ValueError(f"at must be in (0, 1], got {at!r}")
    given = matrix_or_eigenvalues.detach()
    if given.dim() not in (1, 2) or (given.dim() == 2 and given.shape[0] != given.shape[1]):
        raise ValueError(
            f"expected a square matrix or a vector of eigenvalues, got shape {tuple(given.shape)}"
        )
    values = eigenvalues(given) if given.dim() == 2 else given.sort(descending=True).values
    n = len(values)
    largest = float(values[0])
    chosen = float(values[max(int(at * n + 1e-9), 1) - 1])  # 0.9 * 10 may be 8.999...
    if not values.isfinite().all():
        return math.nan
    return largest / chosen if chosen > n * torch.finfo(given.dtype).eps * largest else math.inf


def eigenvalues(matrix: Tensor) -> Tensor:
    """Of a symmetric matrix, non-increasing; NaN where it isn't finite, which LAPACK refuses."""
    if not matrix.isfinite().all():
        return matrix.new_full((len(matrix),), math.nan)
    values: Tensor = torch.linalg.eigvalsh(matrix)
    return values.flip(-1)


def covariance(activations: Tensor) -> Tensor:
    """Covariance (with 1/m) of activations (N, C, ...), shape (C, C), in float64."""
    if activations.dim() < 2:
        raise ValueError(f"expected activations (N, C, ...), got shape {tuple(activations.shape)}")
    x = activations.detach().movedim(1, -1).flatten(0, -2)
    constant = (x == x[:1]).all(0)  # whose mean, rounded, may leave a deviation that isn't there
    x = x.to(algebra_dtype(x))
    x = torch.where(constant, 0, x - x.mean(0))
    return x.mT @ x / len(x)
