r"""IterNorm (Huang et al., CVPR 2019): its layer as settings of DBN, and its checkpoints."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Mapping
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor, nn

from whitenorm.arguments import RUNNING
from whitenorm.layout import joined_matrices
from whitenorm.modules import DecorrelatedBatchNorm

__all__ = ["ITERNORM", "IterNorm", "iternorm_state_dict"]

#: What makes a DBN layer IterNorm, beside ``group_size`` and ``iterations``; for ``**ITERNORM``.
ITERNORM: Mapping[str, Any] = {"whitening": "newton", "running": "whitening", "shrinkage": 0.0}


class IterNorm(DecorrelatedBatchNorm):
    r"""IterNorm by its own arguments: DBN with Newton-Schulz whitening and a running matrix.

    *Iterative Normalization: Beyond Standardization towards Efficient Whitening*, Huang et al.,
    CVPR 2019. It computes what the published module computes, in values, gradients and running
    statistics, with one group or several: from :math:`S`, the covariance with :math:`\epsilon` on
    its diagonal,

    .. math::
        W = P_T / \sqrt{\mathrm{tr}\, S}, \qquad P_0 = I, \qquad
        P_{t+1} = \tfrac12 (3 P_t - P_t^3\, S / \mathrm{tr}\, S).

    It is ``DecorrelatedBatchNorm(num_features, eps, momentum, affine, group_size=...,
    iterations=T, **ITERNORM)``, and does all that a DBN layer does. Its state is a DBN layer's;
    :func:`iternorm_state_dict` makes one of the published module's.

    Args:
        num_features: Number of channels C.
        num_groups: How many groups there are, if ``num_channels`` is None.
        num_channels: Channels of a group. A number that doesn't divide C is halved until it does,
            as in the published module, with a warning if the groups get smaller than they could.
        T: Steps of Newton-Schulz.
        dim: Not used: inputs of 2 to 5 dimensions are taken, whatever it is.
        eps: Added to the diagonal of the covariance.
        momentum: Weight of a batch in the running averages.
        affine: Whether to learn a scale and a shift a channel.
        device: Of the parameters and buffers.
        dtype: Of the parameters and buffers.

    Example:
        >>> norm = IterNorm(64, num_groups=8, T=5)
        >>> norm.group_size, norm.whitening, norm.running
        (8, 'newton', 'whitening')
    """

    def __init__(
        self,
        num_features: int,
        num_groups: int = 1,
        num_channels: int | None = None,
        T: int = 5,
        dim: int = 4,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            num_features,
            eps,
            momentum,
            affine,
            device=device,
            dtype=dtype,
            group_size=_group_size(num_features, num_groups, num_channels),
            iterations=T,
            **ITERNORM,
        )


def _group_size(features: int, groups: int, channels: int | None) -> int:
    """The size of a group as the published module finds it."""
    for name, number in (
        ("num_features", features),
        ("num_groups", groups),
        ("num_channels", 1 if channels is None else channels),
    ):
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} must be a positive integer, got {number!r}")
    asked = -(-features // groups) if channels is None else channels
    size = asked
    while features % size != 0:
        size //= 2
    if size < min(asked, features):
        warnings.warn(
            f"groups of {asked} don't divide {features} channels: IterNorm halves their size "
            f"until it does, to {size}; DecorrelatedBatchNorm2d({features}, group_size={asked}, "
            "**ITERNORM) makes the last group smaller instead",
            stacklevel=3,
        )
    return size


@torch.no_grad()
def iternorm_state_dict(
    model: nn.Module, state_dict: Mapping[str, Any], averaged: str = "whitening"
) -> dict[str, Any]:
    r"""A checkpoint of a network with IterNorm layers as a state for ``model.load_state_dict``.

    For every whitening layer of the model, ``weight``, ``bias`` and ``running_mean`` get DBN's
    shapes, and ``running_wm`` (groups, k, k) becomes ``running_whitening``; also those of the
    variant with a list of groups, whose last group may be smaller. Everything else is handed on as
    it is. Nothing is approximated: what can't be exact is an error. ``T``, ``eps`` and
    ``momentum`` aren't in a checkpoint: build the layers with those of its training.

    Args:
        model: With :class:`IterNorm`, or DBN layers with the settings ``ITERNORM``, where the
            checkpoint's network had IterNorm. It isn't changed.
        state_dict: The checkpoint's. It isn't changed.
        averaged: What ``running_wm`` holds, which its name doesn't tell: the ``"whitening"``
            matrix, or, from a module of the kind IterNormSigma, the ``"covariance"`` with eps. For
            the latter, build the layers with ``running="covariance"``.

    Example:
        >>> published = {"running_mean": torch.zeros(2, 4, 1), "running_wm": torch.ones(2, 4, 4)}
        >>> norm = IterNorm(8, num_groups=2, affine=False)
        >>> norm.load_state_dict(iternorm_state_dict(norm, published))
        <All keys matched successfully>
    """
    if averaged not in RUNNING:
        known = ", ".join(map(repr, RUNNING))
        raise ValueError(f"averaged must be one of {known}, got {averaged!r}")
    modules = dict(model.named_modules(remove_duplicate=False))
    state = cast("dict[str, Any]", copy.copy(state_dict))  # with torch's notes on versions
    if not any(_is_matrix(key) for key in state):
        raise ValueError(
            "the state is not of a network with IterNorm layers: it has no 'running_wm'; give the "
            "state_dict itself, not a checkpoint that holds it"
        )
    for name, module in modules.items():
        if isinstance(module, DecorrelatedBatchNorm):
            _convert(module, f"{name}." if name else "", state, averaged)
    if left := next(filter(_is_matrix, state), None):
        place = left.rpartition(".")[0]
        there = type(modules[place]).__name__ if place in modules else "no layer"
        raise ValueError(
            f"the state has IterNorm's statistics at {place!r}, where the model has {there}: put "
            "whitenorm.IterNorm there, and strip a prefix such as 'module.' from the state's keys"
        )
    return state


def _is_matrix(key: str) -> bool:
    return key.rpartition(".")[2] == "running_wm"


def _convert(
    layer: DecorrelatedBatchNorm, prefix: str, state: dict[str, Any], averaged: str
) -> None:
    """Renames and reshapes, in place, what the state has of IterNorm for this layer."""
    groups = _groups(state, prefix)
    if not groups:
        return
    label = repr(prefix.rstrip(".")) if prefix else type(layer).__name__
    if f"{prefix}running_rot" in state:
        raise ValueError(
            f"{label}: the state is Concept Whitening's, whose rotation no whitening layer holds: "
            "load its running_mean and running_wm alone, and put running_rot behind the layer as "
            "a convolution; docs/family.md has the lines"
        )
    if layer.running_mean is None or layer.running != averaged:
        raise ValueError(
            f"{label}: the state has a running {averaged}, and the layer has "
            + ("none" if layer.running_mean is None else f"running={layer.running!r}")
            + f": build it with running={averaged!r} and track_running_stats=True"
        )
    means = [state.pop(f"{group}running_mean") for group in groups]
    stored = [state.pop(f"{group}running_wm") for group in groups]
    matrices = [matrix for t in stored for matrix in t.reshape(-1, *t.shape[-2:])]
    _check_groups(layer, label, [len(matrix) for matrix in matrices])
    if averaged == "covariance":
        matrices = [_less_eps(matrix, layer.eps) for matrix in matrices]
    parts = [torch.stack(list(alike)) for _, alike in groupby(matrices, key=len)]
    state[f"{prefix}running_{averaged}"] = joined_matrices(parts)
    state[f"{prefix}running_mean"] = torch.cat([mean.flatten() for mean in means])
    state[f"{prefix}num_batches_tracked"] = torch.zeros((), dtype=torch.long)
    for name, own in (("weight", layer.weight), ("bias", layer.bias)):
        given: Tensor | None = state.get(f"{prefix}{name}")
        sizes = [None if t is None else t.numel() for t in (given, own)]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"{label}: the state's {name} has {sizes[0] or 'no'} elements, and the layer's "
                f"{sizes[1] or 'none'}: build the layer with affine={given is not None}"
            )
        if given is not None and own is not None:
            state[f"{prefix}{name}"] = given.reshape(own.shape)


def _groups(state: Mapping[str, Any], prefix: str) -> list[str]:
    """Prefixes of what holds statistics of this layer: itself, or the parts of a list in it."""
    if f"{prefix}running_wm" in state:
        return [prefix]
    part = re.compile(re.escape(prefix) + r"\w+\.(\d+)\.running_wm")
    found = {int(match[1]): match[0] for match in map(part.fullmatch, state) if match}
    return [found[index].removesuffix("running_wm") for index in sorted(found)]


def _check_groups(layer: DecorrelatedBatchNorm, label: str, given: list[int]) -> None:
    channels, size = layer.num_features, min(layer.group_size, layer.num_features)
    own = [min(size, channels - start) for start in range(0, channels, size)]
    if given != own:
        raise ValueError(
            f"{label}: the state has {len(given)} groups, of {given[0]} channels and "
            f"{sum(given)} in all, and the layer {len(own)}, of {own[0]} and {sum(own)} in all: "
            f"build it with {sum(given)} channels and group_size={given[0]}"
        )


def _less_eps(covariance: Tensor, eps: float) -> Tensor:
    precise = covariance.to(torch.float64, copy=True)
    precise.diagonal().sub_(eps)
    return precise
