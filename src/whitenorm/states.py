r"""States of other layers: converted where that is exact, and what to do about them elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whitenorm.functional import covariance_of_running_whitening, whitening_of_running_covariance
from whitenorm.layout import diagonal_matrices

if TYPE_CHECKING:
    from whitenorm.modules import DecorrelatedBatchNorm

__all__ = ["convert_state", "mismatch"]

# How far, relative to its largest element, a matrix may move that is stored another way.
_EXACT = 1e-4


@torch.no_grad()
def convert_state(layer: DecorrelatedBatchNorm, state: dict[str, Any], prefix: str) -> None:
    """Gives a state of a layer with another kind of scale or running statistics this layer's kind.

    From a scale to matrices always, and from a covariance. From a whitening matrix only where its
    covariance, in this layer's dtype, gives that matrix again. Inference is then the same, and
    training goes on from there.
    """
    scale, channels = state.get(f"{prefix}weight"), layer.num_features
    is_matrix = layer.affine == "matrix"
    if is_matrix and isinstance(scale, Tensor) and scale.shape == (channels,):
        size = min(layer.group_size, layer.num_features)
        state[f"{prefix}weight"] = diagonal_matrices(scale, size)
    wanted = f"{prefix}running_{layer.running}"
    other = "covariance" if layer.running == "whitening" else "whitening"
    matrix = state.get(f"{prefix}running_{other}")
    if layer.running_mean is None or wanted in state or not isinstance(matrix, Tensor):
        return
    if matrix.shape != layer._running_matrix.shape:
        return
    options = (layer.eps, layer.whitening, layer.iterations)
    if layer.running == "whitening":
        converted = whitening_of_running_covariance(matrix, channels, *options)
    elif layer.whitening in ("zca", "cholesky"):
        converted = covariance_of_running_whitening(matrix, channels, layer.eps)
        converted = converted.to(layer._running_matrix.dtype)
        again = whitening_of_running_covariance(converted, channels, *options)
        if not (again - matrix).abs().max() <= _EXACT * matrix.abs().max():
            return
    else:
        return
    state[wanted] = converted.to(layer._running_matrix.dtype)
    del state[f"{prefix}running_{other}"]


def mismatch(layer: DecorrelatedBatchNorm, state: dict[str, Any], prefix: str) -> str | None:
    """What to do about a state of another kind of layer; None if it is of this kind."""
    return _other_running(layer, state, prefix) or _other_weight(layer, state, prefix)


def _other_weight(layer: DecorrelatedBatchNorm, state: dict[str, Any], prefix: str) -> str | None:
    weight = state.get(f"{prefix}weight")
    if not isinstance(weight, Tensor) or weight.dim() != 3:
        return None
    if layer.affine != "matrix":
        return "the state is of a layer with affine='matrix'; build it with that"
    if weight.shape[-1] != min(layer.group_size, layer.num_features):
        return f"the state is of groups of {weight.shape[-1]}; build it with that group_size"
    return None


def _other_running(layer: DecorrelatedBatchNorm, state: dict[str, Any], prefix: str) -> str | None:
    if layer.running_mean is None:
        return None
    matrix = state.get(f"{prefix}running_{layer.running}")
    if matrix is None:
        if f"{prefix}running_var" in state:
            return (
                "the state is BatchNorm's; load it into the model with BatchNorm, then call "
                "whitenorm.convert_batchnorm"
            )
        if any(key.startswith(prefix) and key.endswith("running_wm") for key in state):
            return "the state is IterNorm's; load what whitenorm.iternorm_state_dict makes of it"
        other = "covariance" if layer.running == "whitening" else "whitening"
        matrix = state.get(f"{prefix}running_{other}")
        if matrix is not None and matrix.shape == layer._running_matrix.shape:
            return f"the state is of a layer with running={other!r}; build it with that"
    if matrix is not None and matrix.shape != layer._running_matrix.shape:
        return f"the state is of groups of {matrix.shape[-1]}; build it with that group_size"
    return None
