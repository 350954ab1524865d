r"""Stochastic axis swapping: how far one whitening's axes are a permutation of another's."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm.precision import algebra_dtype

__all__ = ["AxisSwapping", "axis_swapping", "whitening_axis_swapping"]


class AxisSwapping(NamedTuple):
    """How the axes of one representation turn up in another; each lies between 0 and 1.

    Args:
        swapped: Fraction of axes that became another one.
        agreement: How well a permutation (up to signs) explains the change: the mean absolute
            correlation of an axis with the one it became. 1 for an exact permutation.
        drift: How far the axes are from where they were: half of one minus the mean correlation
            of an axis with itself. 0 if nothing changed, 1 if all of them changed sign.
        permutation: The axis of the second representation that each of the first became.
    """

    swapped: float
    agreement: float
    drift: float
    permutation: Tensor


def axis_swapping(first: Tensor, second: Tensor) -> AxisSwapping:
    """Stochastic axis swapping between two whitenings of the same points.

    An axis "becomes" another by the one-to-one assignment with the largest sum of absolute
    correlations over the points.

    Args:
        first: The points as one batch's statistics whiten them, shape (N, C).
        second: The same points as another batch's do, shape (N, C).
    """
    if first.dim() != 2 or first.shape != second.shape:
        raise ValueError(
            "expected the same points twice, (N, C) and (N, C), got "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    both = torch.cat([first, second], 1).detach()
    both = both.to(algebra_dtype(both))
    both = both - both.mean(0)
    return _axis_swapping(both.mT @ both, first.shape[1])


def whitening_axis_swapping(
    first: Tensor, second: Tensor, covariance: Tensor | None = None
) -> AxisSwapping:
    """The same for two whitening matrices (C, C), and points that have a given covariance.

    Args:
        first: One batch's whitening matrix.
        second: Another batch's whitening matrix.
        covariance: Of the points; by default the mean of the two that the matrices whiten.
    """
    dtype = algebra_dtype(first)
    W1, W2 = first.detach().to(dtype), second.detach().to(dtype)
    if covariance is None:
        S = (torch.linalg.inv(W1.mT @ W1) + torch.linalg.inv(W2.mT @ W2)) / 2
    else:
        S = covariance.detach().to(dtype)
    both = torch.cat([W1, W2])
    return _axis_swapping(both @ S @ both.mT, len(W1))


def _axis_swapping(joint: Tensor, k: int) -> AxisSwapping:
    deviation = joint.diagonal().sqrt()
    # A constant axis is like no other.
    matrix = (joint / deviation.outer(deviation))[:k, k:].nan_to_num(nan=0.0)
    axes = torch.arange(k, device=matrix.device)
    permutation = _assignment(-matrix.abs())
    return AxisSwapping(
        swapped=float((permutation != axes).double().mean()),
        agreement=float(matrix[axes, permutation].abs().mean()),
        drift=float(1 - matrix.diagonal().mean()) / 2,
        permutation=permutation,
    )


def _assignment(cost: Tensor) -> Tensor:
    """Column of each row in the one-to-one assignment of least cost (Hungarian method, O(n^3))."""
    n = len(cost)
    cost = cost.cpu()
    row_price, column_price = cost.new_zeros(n), cost.new_zeros(n)
    owner = torch.full((n,), -1)
    for row in range(n):
        # Shortest augmenting path from `row` to a free column, by reduced costs.
        distance, previous = torch.full_like(column_price, math.inf), torch.full((n,), -1)
        done = torch.zeros(n, dtype=torch.bool)
        current, column, length = row, -1, 0.0
        while True:
            candidate = length + cost[current] - row_price[current] - column_price
            closer = ~done & (candidate < distance)
            distance[closer], previous[closer] = candidate[closer], column
            column = int(torch.where(done, math.inf, distance).argmin())
            done[column], length = True, float(distance[column])
            current = int(owner[column])
            if current < 0:
                break
        row_price[row] += length
        matched = done & (owner >= 0)
        row_price[owner[matched]] += length - distance[matched]
        column_price[done] -= length - distance[done]
        while column >= 0:
            before = int(previous[column])
            owner[column] = owner[before] if before >= 0 else row
            column = before
    permutation = torch.empty(n, dtype=torch.long)
    permutation[owner] = torch.arange(n)
    return permutation
