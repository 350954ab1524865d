r"""The networks of the paper, each a row of ``MODELS``, with a method's layers in their places.

Every network ends in a linear layer called ``classifier``. Convolutions that a normalisation
follows have no bias; the linear layers of the MLP keep theirs, as in the authors' scripts.
"""

from __future__ import annotations

import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from whitenorm.lab.networks.methods import Method
from whitenorm.lab.networks.parts import (
    activation_layer,
    batch_norm,
    blocks_a_stage,
    choose,
    conv_unit,
    initialise,
    network,
    pooled,
)
from whitenorm.lab.networks.residual import imagenet_resnet, resnet, wrn

__all__ = ["MODELS", "build_model", "parameter_count"]


def build_model(
    name: str,
    method: Method,
    *,
    num_classes: int,
    input_shape: tuple[int, ...],
    generator: torch.Generator | None = None,
    **options: Any,
) -> nn.Module:
    """The network of that name with a method's layers in it.

    =================== ==========================================================================
    name                options, with their defaults
    =================== ==========================================================================
    ``mlp``             hidden=(100,), activation="relu"
    ``vgg-a``           width=64, activation="relu", norm_position="before" | "after" activation
    ``splain``          depth=20, width=48, activation="relu"
    ``resnet``          depth=20, placement="all" | "first", activation="relu"
    ``wrn``             depth=28, widen=10, dropout=0.0, placement="all" | "stem"
    ``imagenet-resnet`` depth=50, stem="plain" | "extra-conv"
    =================== ==========================================================================

    Args:
        name: Key in ``MODELS``.
        method: From :func:`whitenorm.lab.networks.methods.make_method`.
        num_classes: Number of outputs.
        input_shape: Of one sample: (features,) or any other for the MLP, (C, H, W) for the rest.
        generator: Draws the initial weights; torch's own by default.
        options: Of the network.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; there are {', '.join(MODELS)}")
    build = MODELS[name]
    known = [p for p in inspect.signature(build).parameters if p not in _GIVEN]
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(
            f"model {name!r} has no option {', '.join(map(repr, unknown))}; "
            f"it has {', '.join(known)}"
        )
    if name != "mlp":
        if len(input_shape) != 3:
            raise ValueError(f"model {name!r} needs inputs (C, H, W), got shape {input_shape}")
        if method.linear is not nn.Linear:
            raise ValueError(
                f"method {method.name!r} changes linear layers alone, and model {name!r} is made "
                "of convolutions; use it with model 'mlp'"
            )
    model = build(method, num_classes, input_shape, **options)
    initialise(model, "lecun" if name in _LECUN else "he", generator)
    return model


_GIVEN = ("method", "num_classes", "input_shape")
_LECUN = ("mlp", "vgg-a", "splain")  # where the paper names no other initialisation


def parameter_count(model: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(parameter.numel() for parameter in model.parameters())


# --- multilayer perceptron ----------------------------------------------------------------------


def _mlp(
    method: Method,
    num_classes: int,
    input_shape: tuple[int, ...],
    hidden: Iterable[int] = (100,),
    activation: str = "relu",
) -> nn.Module:
    """linear - norm - activation for each hidden layer, then a linear layer."""
    layers, width = nn.Sequential(), math.prod(input_shape)
    for features in hidden:
        layer: OrderedDict[str, nn.Module] = OrderedDict(linear=method.linear(width, features))
        if method.norm is not None:
            layer["norm"] = method.norm(features, 0)
        layer["activation"] = activation_layer(activation)(features)
        layers.append(nn.Sequential(layer))
        width = features
    return network(
        ("flatten", nn.Flatten()),
        ("hidden", layers),
        ("classifier", method.linear(width, num_classes)),
    )


# --- VGG-A and S-plain --------------------------------------------------------------------------


def _vgg_a(
    method: Method,
    num_classes: int,
    input_shape: tuple[int, ...],
    width: int = 64,
    activation: str = "relu",
    norm_position: str = "before",
) -> nn.Module:
    """Eight 3x3 convolutions, pooled after the 1st, 2nd, 4th, 6th and 8th, and two linear layers.

    "before" is convolution - norm - activation. "after" the non-linearity is, as in the authors'
    scripts, norm - convolution - activation: the norm sees what the next convolution will, after
    the pooling, and the first one sees the image. The first linear layer keeps BN.
    """
    choose("norm_position", norm_position, ("before", "after"))
    channels, height, breadth = input_shape
    if min(height, breadth) < 32:
        raise ValueError(
            f"model 'vgg-a' needs pictures of 32x32 at least, got shape {input_shape}"
        )
    act, features = activation_layer(activation), nn.Sequential()
    for index, multiple in enumerate((1, 2, 4, 4, 8, 8, 8, 8), start=1):
        out = multiple * width
        if norm_position == "before":
            unit = conv_unit(method.norm, channels, out, activation=act)
        else:
            unit = conv_unit(None, channels, out, activation=act)
            if method.norm is not None:
                unit = network(("norm", method.norm(channels, 2)), *unit.named_children())
        if index in (1, 2, 4, 6, 8):
            unit.add_module("pool", nn.MaxPool2d(2))
        features.append(unit)
        channels = out
    size = channels * (height // 32) * (breadth // 32)
    head: OrderedDict[str, nn.Module] = OrderedDict(linear=nn.Linear(size, 8 * width))
    if method.norm is not None:
        head["norm"] = batch_norm(8 * width, 0)
    head["activation"] = act(8 * width)
    return network(
        ("features", features),
        ("flatten", nn.Flatten()),
        ("head", nn.Sequential(head)),
        ("classifier", nn.Linear(8 * width, num_classes)),
    )


def _splain(
    method: Method,
    num_classes: int,
    input_shape: tuple[int, ...],
    depth: int = 20,
    width: int = 48,
    activation: str = "relu",
) -> nn.Module:
    """The CIFAR residual network without its shortcuts, and with one width throughout."""
    blocks, act = blocks_a_stage(depth, 2), activation_layer(activation)
    features = nn.Sequential(conv_unit(method.norm, input_shape[0], width, activation=act))
    for stage in range(3):
        for index in range(2 * blocks):
            stride = 2 if stage > 0 and index == 0 else 1
            features.append(conv_unit(method.norm, width, width, stride=stride, activation=act))
    return network(("features", features), *pooled(width, num_classes))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": _mlp,
    "vgg-a": _vgg_a,
    "splain": _splain,
    "resnet": resnet,
    "wrn": wrn,
    "imagenet-resnet": imagenet_resnet,
}
