r"""Whitening of embeddings, as a head or as a loss for self-supervised learning."""

from __future__ import annotations

import warnings
from itertools import combinations
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from whitenorm.arguments import check_options
from whitenorm.distributed import ProcessGroup, add_up, of_first
from whitenorm.functional import decorrelated_batch_norm
from whitenorm.layout import spans_of
from whitenorm.precision import no_autocast, work_dtype

__all__ = ["whiten", "whitening_mse"]


def whiten(
    x: Tensor,
    axis: int = 1,
    *,
    whitening: str = "cholesky",
    eps: float = 1e-5,
    group_size: int | None = None,
    shuffle_groups: bool = False,
    slices: int = 1,
    shrinkage: float | str = 0.0,
    iterations: int = 5,
    generator: torch.Generator | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    r"""Whitens a batch of embeddings by its own statistics.

    The features become uncorrelated over the samples, with mean 0 and variance 1 (``axis=1``), or
    the samples over the features (``axis=0``, channel whitening: Weng et al., NeurIPS 2022). With
    ``slices``, the batch is cut at random into that many equal parts, and each is whitened by
    itself, mean included, as W-MSE does. With ``shuffle_groups``, the features are put into groups
    at random, as Shuffled-DBN does (Hua et al., ICCV 2021).

    Args:
        x: Embeddings, shape (N, D).
        axis: Which of the two is whitened; the other one is what is averaged over. With 0,
            samples and features change their roles in everything below.
        whitening: ``"zca"``, ``"pca"``, ``"cholesky"`` or ``"newton"``.
        eps: Added to the variances.
        group_size: How many features are whitened together; None for all.
        shuffle_groups: Whether groups are random rather than neighbouring features.
        slices: Into how many slices the samples are cut; it has to divide their number.
        shrinkage: How far covariances are drawn towards their diagonals: a number from 0 to 1,
            ``"auto"`` or ``"bounded"``.
        iterations: Steps of ``"newton"``.
        generator: Of what is random.
        process_group: Replicas of torch.distributed whose batches count as one, for ``axis=1``.
            Each cuts its own batch, and a slice is one of each replica.

    Returns:
        Shape and dtype of ``x``; samples and features keep their places.

    Example:
        >>> z = torch.randn(64, 4, dtype=torch.float64).cumsum(1)
        >>> torch.allclose(whiten(z).T.cov(correction=0), torch.eye(4).double(), atol=1e-3)
        True
    """
    if axis not in (0, 1, -1, -2):
        raise ValueError(f"axis must be 0 or 1, got {axis!r}")
    _check_embeddings(x)
    whitens_samples = axis in (0, -2)
    if whitens_samples:
        if process_group is not None:
            raise ValueError(
                "axis=0 whitens samples by their own features, and can't join those of other "
                "replicas: leave process_group out, or use axis=1"
            )
        x = x.mT
    samples, features = x.shape
    group_size = features if group_size is None else group_size
    options = _Options(whitening, eps, group_size, slices, shrinkage, iterations, process_group)
    options.check(samples, features)
    y = x
    if slices > 1:
        order = _permutation(samples, x, generator)
        y = y[order]
    if shuffle_groups:
        columns = _permutation(features, x, generator)
        if process_group is not None:
            of_first(columns, process_group)
        y = y[:, columns]
    y = _whitened(y, options)
    if shuffle_groups:
        y = y[:, columns.argsort()]
    if slices > 1:
        y = y[order.argsort()]
    return y.mT if whitens_samples else y


def whitening_mse(
    *views: Tensor,
    whitening: str = "cholesky",
    eps: float = 1e-5,
    group_size: int | None = None,
    slices: int = 1,
    repeats: int = 1,
    shrinkage: float | str = 0.0,
    iterations: int = 5,
    generator: torch.Generator | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    r"""The W-MSE loss of several views of the same examples (Ermolov et al., ICML 2021).

    Each view :math:`z^{(a)}` of shape (N, D) is whitened by its own mean and covariance. Then

    .. math:: L = \frac{2}{V (V - 1) N} \sum_{a < b} \sum_i
                  \Big( 2 - 2 \frac{\langle w^{(a)}_i, w^{(b)}_i \rangle}
                                   {\lVert w^{(a)}_i \rVert \lVert w^{(b)}_i \rVert} \Big)

    is the mean squared distance of the normalized :math:`w` over all pairs of views. Embeddings
    that are the same for all examples can't make it small, so that no negative examples are
    needed. With ``slices``, the samples are cut at random into that many parts, the same for all
    views, and each is whitened by itself; ``repeats`` averages the loss over several such cuts.

    The authors advise at least twice as many samples in a slice as features. Where a slice has few
    samples, or embeddings are about to collapse, ``eps`` or ``shrinkage`` keeps gradients finite.
    Their code's ``w_eps`` of :math:`e` is an ``eps`` of :math:`e (m - 1) / (m - e m)` here, where
    :math:`m` is the number of samples in a slice.

    Args:
        views: Two tensors of shape (N, D) or more; row i of each comes from the same example.
        whitening: ``"cholesky"``, as in the paper, ``"zca"``, ``"pca"`` or ``"newton"``.
        eps: Added to the variances.
        group_size: How many features are whitened together; None for all, as in the paper.
        slices: Into how many slices the samples are cut; it has to divide their number.
        repeats: Over how many random cuts to average. Without slices there is nothing to cut.
        shrinkage: How far covariances are drawn towards their diagonals: a number from 0 to 1,
            ``"auto"`` or ``"bounded"``.
        iterations: Steps of ``"newton"``.
        generator: Of the random cuts.
        process_group: Replicas of torch.distributed whose batches count as one. Each has the loss
            of the joint batch, and gradients whose mean over the replicas, which
            :class:`~torch.nn.parallel.DistributedDataParallel` takes, are those of the joint
            batch. Each cuts its own batch, and a slice is one of each replica.

    Returns:
        The loss, from 0 to 4: float32 for embeddings in half precision.

    Example:
        >>> z = torch.randn(128, 8)
        >>> whitening_mse(z, z).item() < 1e-5 < 1 < whitening_mse(z, torch.randn(128, 8)).item()
        True
    """
    if len(views) < 2:
        raise ValueError(f"whitening_mse compares views: give two or more, got {len(views)}")
    for view in views:
        _check_embeddings(view)
        if view.shape != views[0].shape:
            raise ValueError(
                "views must have the same shape, a row for each example, got "
                f"{tuple(views[0].shape)} and {tuple(view.shape)}"
            )
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 1:
        raise ValueError(f"repeats must be a positive integer, got {repeats!r}")
    samples, features = views[0].shape
    group_size = features if group_size is None else group_size
    options = _Options(whitening, eps, group_size, slices, shrinkage, iterations, process_group)
    options.check(samples, features)
    with no_autocast(views[0].device.type):
        z = torch.stack(views, 1)  # [N, V, D]
        z = z.to(work_dtype(z)).unsqueeze(1)
        if slices > 1:
            orders = [_permutation(samples, z, generator) for _ in range(repeats)]
            z = torch.cat([z[order] for order in orders], 1)  # [N, R, V, D]
        unit = F.normalize(_whitened(z, options), dim=-1).unbind(2)
        cosines = [(a * b).sum(-1) for a, b in combinations(unit, 2)]
        distances = 2 - 2 * torch.stack(cosines).mean((0, 2))  # [N]
        if process_group is None:
            return distances.mean()
        return _mean_over_replicas(distances, process_group)


def _mean_over_replicas(values: Tensor, group: ProcessGroup) -> Tensor:
    """The mean of all replicas' values, with gradients for the mean of the replicas' gradients."""
    own = values.sum()
    number = own.new_full((), values.shape[0])
    count, total = add_up([number, own.detach()], group)
    count = count.clamp(min=1)
    scaled = own * (dist.get_world_size(group) / count)
    return scaled + (total / count - scaled).detach()


class _Options(NamedTuple):
    """How embeddings are whitened."""

    whitening: str
    eps: float
    group_size: int
    slices: int
    shrinkage: float | str
    iterations: int
    process_group: ProcessGroup | None

    def check(self, samples: int, features: int) -> None:
        """Raises a ValueError that says what is wrong; warns if slices have too few samples."""
        check_options(
            self.eps,
            self.group_size,
            self.whitening,
            "whitening",
            self.shrinkage,
            self.iterations,
        )
        if not isinstance(self.slices, int) or isinstance(self.slices, bool) or self.slices < 1:
            raise ValueError(f"slices must be a positive integer, got {self.slices!r}")
        if samples % self.slices:
            raise ValueError(
                f"{samples} samples can't be cut into {self.slices} equal slices: use a batch "
                "size that slices divides, and drop_last=True in the DataLoader"
            )
        if self.process_group is not None or torch.compiler.is_compiling():
            return
        held, size = samples // self.slices, min(self.group_size, features)
        if held < 2:
            raise ValueError(
                f"a slice needs 2 samples or more to have a covariance: {samples} samples in "
                f"{self.slices} slices are {held} in each"
            )
        if held <= size and self.shrinkage == 0:
            warnings.warn(
                f"{held} samples in a slice cannot show how {size} features vary: their "
                f"covariance is singular, and eps={self.eps} decides the rest. Use fewer slices, "
                f"shrinkage='auto', a larger batch or group_size < {held}.",
                stacklevel=3,
            )


def _check_embeddings(x: Tensor) -> None:
    if x.dim() != 2 or x.shape[1] == 0 or not x.is_floating_point():
        raise ValueError(
            f"expected embeddings of shape (N, D) in floating point, got shape {tuple(x.shape)} "
            f"and {x.dtype}; for feature maps use decorrelated_batch_norm"
        )


def _permutation(length: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    device = like.device if generator is None else generator.device
    return torch.randperm(length, generator=generator, device=device).to(like.device)


def _whitened(x: Tensor, options: _Options) -> Tensor:
    """[N, ..., D] with each slice of neighbouring samples whitened by itself.

    The slices, and what stands between samples and features, become groups of features: all are
    whitened at once, and with one collective where there are replicas.
    """
    sliced = x.unflatten(0, (options.slices, x.shape[0] // options.slices))
    sliced = sliced.movedim(1, 0)  # [N / slices, slices, ..., D]
    parts = []
    for channels, _, size in spans_of(x.shape[-1], options.group_size):
        part = sliced[..., channels]
        whitened = decorrelated_batch_norm(
            part.flatten(1),
            training=True,
            eps=options.eps,
            group_size=size,
            whitening=options.whitening,
            running="whitening",  # nothing is averaged, and this is at hand
            shrinkage=options.shrinkage,
            iterations=options.iterations,
            process_group=options.process_group,
        )
        parts.append(whitened.reshape(part.shape).movedim(0, 1).flatten(0, 1))
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
