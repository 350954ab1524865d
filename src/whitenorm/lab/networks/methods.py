r"""The methods that the studies compare, each a row of ``METHODS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from whitenorm.lab.lookup import check_options, look_up
from whitenorm.lab.networks.natural import WhitenedLinear, reparameterise
from whitenorm.modules import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d

__all__ = ["METHODS", "Method", "Row", "make_method"]


@dataclass(frozen=True)
class Method:
    """One way to normalize a network: all that a model and a trainer need to know about it.

    Args:
        name: Key in ``METHODS``.
        norm: ``norm(num_features, spatial_dims)`` gives the layer for inputs (N, C) if
            ``spatial_dims`` is 0, (N, C, H, W) if it is 2; None for a network without such layers.
        linear: Stands for ``nn.Linear(in_features, out_features)``.
        after_iteration: ``after_iteration(model, inputs, iteration)`` is called after every
            iteration, with its batch of inputs and how many iterations are done; once before the
            first, with 0. It changes parameters in place.
    """

    name: str
    norm: Callable[[int, int], nn.Module] | None = None
    linear: Callable[[int, int], nn.Module] = nn.Linear
    after_iteration: Callable[[nn.Module, Tensor, int], None] | None = None


@dataclass(frozen=True)
class Row:
    """A row of ``METHODS``.

    Args:
        options: What can be chosen, with its default.
        build: ``build(**options)`` gives the fields of :class:`Method` that differ from a plain
            network's.
    """

    options: Mapping[str, Any]
    build: Callable[..., Mapping[str, Any]]


def make_method(name: str, **options: Any) -> Method:
    """The method of that name, with its row's defaults for the options that aren't given.

    Example:
        >>> make_method("dbn", group_size=8).norm(32, 2)
        DecorrelatedBatchNorm2d(32, eps=1e-05, momentum=0.1, affine=True, \
track_running_stats=True, group_size=8, whitening='zca', running='whitening')
    """
    row = look_up(METHODS, "method", name)
    check_options("method", name, options, row.options)
    return Method(name, **row.build(**{**row.options, **options}))


def _batch_norm(**options: Any) -> dict[str, Any]:
    def norm(features: int, dims: int) -> nn.Module:
        return (nn.BatchNorm2d if dims else nn.BatchNorm1d)(features, **options)

    return {"norm": norm}


def _layer_norm(eps: float, affine: bool) -> dict[str, Any]:
    # One group over all of a sample's channels and positions, with a scale and shift a channel;
    # on (N, C) that is nn.LayerNorm(C).
    return {"norm": lambda features, _: nn.GroupNorm(1, features, eps=eps, affine=affine)}


def _decorrelated(group_size: int | None, **options: Any) -> dict[str, Any]:
    def norm(features: int, dims: int) -> nn.Module:
        layer = DecorrelatedBatchNorm2d if dims else DecorrelatedBatchNorm1d
        return layer(
            features, group_size=features if group_size is None else group_size, **options
        )

    return {"norm": norm}


def _natural(eps: float, interval: int) -> dict[str, Any]:
    if interval < 1:
        raise ValueError(f"interval must be a positive number of updates, got {interval!r}")
    if not eps > 0:
        raise ValueError(f"eps must be positive, got {eps!r}: U divides by sqrt(variance + eps)")

    def after_iteration(model: nn.Module, inputs: Tensor, iteration: int) -> None:
        if iteration % interval == 0:
            reparameterise(model, inputs, eps)

    return {"linear": WhitenedLinear, "after_iteration": after_iteration}


_BATCH = {"eps": 1e-5, "momentum": 0.1, "affine": True}
_DBN = {**_BATCH, "group_size": 16, "running": "whitening"}  # group_size None: the whole layer

METHODS: dict[str, Row] = {
    "plain": Row({}, dict),
    "bn": Row(_BATCH, _batch_norm),
    "ln": Row({"eps": 1e-5, "affine": True}, _layer_norm),
    "nnn": Row({"eps": 1.0, "interval": 200}, _natural),
    "dbn": Row({**_DBN, "whitening": "zca", "iterations": 5}, _decorrelated),
    "dbn-pca": Row(_DBN, partial(_decorrelated, whitening="pca")),
}
