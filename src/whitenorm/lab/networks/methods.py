r"""The methods that the studies compare, each a row of ``METHODS``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm.lab.lookup import check_options, choose, look_up
from whitenorm.lab.networks.natural import WhitenedLinear, reparameterize
from whitenorm.modules import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d
from whitenorm.samplewise import GroupWhitening


@dataclass(frozen=True)
class Method:
    """One way to normalize a network: all that a model and a trainer need to know about it.

    ``norm(num_features, spatial_dims)`` gives the layer for inputs (N, C) if ``spatial_dims`` is
    0, (N, C, H, W) if it is 2. ``linear`` stands for ``nn.Linear(in_features, out_features)``.
    ``first_linear``, if given, is the network's first one.
    ``after_iteration(model, inputs, iteration)`` is called after every update, with its batch of
    inputs and how many updates are done; once before the first, with 0. It changes parameters in
    place.
    """

    name: str
    norm: Callable[[int, int], nn.Module] | None = None
    linear: Callable[[int, int], nn.Module] = nn.Linear
    first_linear: Callable[[int, int], nn.Module] | None = None
    after_iteration: Callable[[nn.Module, Tensor, int], None] | None = None


@dataclass(frozen=True)
class Row:
    """A row of ``METHODS``: its options with their defaults, and what they become.

    ``build(**options)`` gives the fields of :class:`Method` that differ from a plain network's.
    """

    options: Mapping[str, Any]
    build: Callable[..., Mapping[str, Any]]


def make_method(name: str, **options: Any) -> Method:
    """The method of that name, with its row's defaults for the options that aren't given.

    Example:
        >>> make_method("dbn", group_size=8).norm(32, 2)
        DecorrelatedBatchNorm2d(32, eps=1e-05, momentum=0.1, affine=True, \
track_running_stats=True, group_size=8, whitening='zca', running='whitening', \
shrinkage=0.0)
    """
    row = look_up(METHODS, "method", name)
    check_options("method", name, options, row.options)
    return Method(name, **row.build(**{**row.options, **options}))


def batch_norm(features: int, dims: int, **options: Any) -> nn.Module:
    """BN, also for the places in a network that a method doesn't change."""
    return (nn.BatchNorm2d if dims else nn.BatchNorm1d)(features, **options)


def _layer_norm(features: int, dims: int, **options: Any) -> nn.Module:
    # Over all of a sample's channels and positions, with a scale and shift a channel.
    if dims:
        return nn.GroupNorm(1, features, **options)
    return nn.LayerNorm(features, options["eps"], options["affine"])


def _of_a_sample(
    layer: Callable[..., nn.Module], features: int, dims: int, num_groups: int, **options: Any
) -> nn.Module:
    # GroupNorm, or what has its arguments.
    return layer(num_groups, features, **options)


def _decorrelated(features: int, dims: int, group_size: int | None, **options: Any) -> nn.Module:
    layer = DecorrelatedBatchNorm2d if dims else DecorrelatedBatchNorm1d
    return layer(features, group_size=features if group_size is None else group_size, **options)


def _natural(eps: float, interval: int, variant: str) -> dict[str, Any]:
    """Natural Neural Networks, as published (2015) or as in the authors' scripts of DBN.

    As published, the inputs of all layers are whitened, first before update 0, from the batch. In
    the scripts the first layer is plain, and the others are whitened after every interval from a
    tenth as many examples as the interval has updates.
    """
    choose("variant", variant, ("published", "authors"))
    if interval < 1:
        raise ValueError(f"interval must be a positive number of updates, got {interval!r}")
    if not eps > 0:
        raise ValueError(f"eps must be positive, got {eps!r}: U divides by sqrt(variance + eps)")

    def after_iteration(model: nn.Module, inputs: Tensor, iteration: int) -> None:
        if iteration % interval == 0 and variant == "published":
            reparameterize(model, inputs, eps)
        elif iteration % interval == 0 and iteration > 0:
            random = torch.Generator().manual_seed(iteration)
            chosen = torch.randperm(len(inputs), generator=random)[: max(interval // 10, 2)]
            reparameterize(model, inputs[chosen.to(inputs.device)], eps)

    first = nn.Linear if variant == "authors" else None
    return {
        "linear": WhitenedLinear,
        "first_linear": first,
        "after_iteration": after_iteration,
    }


def _norm(layer: Callable[..., nn.Module], **options: Any) -> Row:
    """The row of a method that is a norm alone."""
    return Row(options, lambda **chosen: {"norm": partial(layer, **chosen)})


_SAMPLE = {"eps": 1e-5, "affine": True, "num_groups": 8}
_BATCH = {"eps": 1e-5, "momentum": 0.1, "affine": True}
# As in the paper, which the layer's own defaults aren't; group_size None: the whole layer.
_DBN = {**_BATCH, "group_size": 16, "running": "whitening", "shrinkage": 0.0}

METHODS: dict[str, Row] = {
    "plain": Row({}, dict),
    "bn": _norm(batch_norm, **_BATCH),
    "ln": _norm(_layer_norm, eps=1e-5, affine=True),
    "nnn": Row({"eps": 1.0, "interval": 200, "variant": "published"}, _natural),
    "dbn": _norm(_decorrelated, **_DBN, whitening="zca", iterations=5),
    "dbn-pca": _norm(partial(_decorrelated, whitening="pca"), **_DBN),
    "gn": _norm(partial(_of_a_sample, nn.GroupNorm), **_SAMPLE),
    "gw": _norm(partial(_of_a_sample, GroupWhitening), **_SAMPLE, shrinkage="bounded"),
}
