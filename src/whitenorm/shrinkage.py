r"""Covariance -> the same, drawn towards its own diagonal, for batches that say little about it.

With few samples the correlations of a batch are mostly chance, and whitening blows up directions
in which the batch happens to vary little. Shrinkage multiplies all covariances between channels by
:math:`1 - r` and leaves the variances: :math:`r = 0` whitens as the paper does, :math:`r = 1`
scales each channel by itself, as BatchNorm does.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["ESTIMATES", "LEAST", "kept_share", "shrink"]

ESTIMATES = ("auto", "bounded")
LEAST = 0.05  # of the estimate, if it is bounded


def kept_share(
    covariance: Tensor, eps: float, shrinkage: float | str, samples: float | Tensor
) -> Tensor | None:
    r"""1 - r of each matrix, [n, 1, 1]; None if nothing is to be shrunk.

    ``"auto"`` estimates the best r from the correlations :math:`R` of the batch alone (Schäfer and
    Strimmer, 2005), with the variance that a correlation of :math:`m` normal samples has:

    .. math:: r = \min\Big(1, \frac{\sum_{i \ne j} (1 - R_{ij}^2)^2 / (m - 1)}
                                   {\sum_{i \ne j} R_{ij}^2}\Big)

    It tends to 0 with many samples, and to 1 where correlations are no larger than chance.
    ``"bounded"`` is the same but at least 0.05: however many samples, no direction is amplified
    more than :math:`1 / \sqrt{0.05} = 4.5` times as much as channels without correlations are.
    That is for channels which depend on each other, such as 16 that are computed from 9 pixels:
    directions without variance turn with every update of the weights, faster than running
    averages follow.

    Args:
        covariance: [n, k, k].
        eps: Added to the variances, so that channels without any have no correlations either.
        shrinkage: r, ``"auto"`` or ``"bounded"``.
        samples: How many samples the covariance was estimated from.
    """
    if shrinkage == 0:
        return None
    if not isinstance(shrinkage, str):
        return covariance.new_full((covariance.shape[0], 1, 1), 1 - shrinkage)
    variance = covariance.diagonal(dim1=-2, dim2=-1) + eps
    if eps == 0:  # a channel without variance has no correlations
        variance = variance.clamp(min=torch.finfo(variance.dtype).tiny)
    inverse_root = variance.rsqrt()
    squared = (covariance * inverse_root.unsqueeze(-1) * inverse_root.unsqueeze(-2)).square()
    squared = squared.diagonal_scatter(torch.zeros_like(inverse_root), dim1=-2, dim2=-1)
    size = covariance.shape[-1]
    total = squared.sum((-2, -1), keepdim=True)
    # The sum of (1 - R^2)^2 over i != j, multiplied out, for R is 0 on the diagonal now.
    spread = size * (size - 1) - 2 * total + squared.square().sum((-2, -1), keepdim=True)
    tiny = torch.finfo(total.dtype).tiny
    return (1 - spread / ((samples - 1) * total).clamp(min=tiny)).clamp(
        min=0, max=1 - LEAST if shrinkage == "bounded" else 1
    )


def shrink(S: Tensor, kept: Tensor | None) -> Tensor:
    """kept S + (1 - kept) diag(S), for symmetric S; also its derivative, kept being a constant."""
    if kept is None:
        return S
    return torch.lerp(torch.diag_embed(S.diagonal(dim1=-2, dim2=-1)), S, kept)
