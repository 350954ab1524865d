r"""Networks without shortcuts: the multilayer perceptron, VGG-A and S-plain."""

import math
from collections.abc import Iterable

from torch import nn

from whitenorm.lab.lookup import choose
from whitenorm.lab.networks.methods import Method, batch_norm
from whitenorm.lab.networks.parts import (
    Body,
    Shape,
    activation_layer,
    blocks_a_stage,
    conv_unit,
    network,
    pooling,
    stack,
)


def mlp(
    method: Method, shape: Shape, hidden: Iterable[int] = (100,), activation: str = "relu"
) -> Body:
    """linear - norm - activation for each hidden layer."""
    layers, width = nn.Sequential(), math.prod(shape)
    linear = method.first_linear or method.linear
    for features in hidden:
        layers.append(
            network(
                ("linear", linear(width, features)),
                ("norm", method.norm and method.norm(features, 0)),
                ("activation", activation_layer(activation)(features)),
            )
        )
        width, linear = features, method.linear
    return [("flatten", nn.Flatten()), ("hidden", layers)], width


def vgg_a(
    method: Method,
    shape: Shape,
    width: int = 64,
    activation: str = "relu",
    norm_position: str = "before",
) -> Body:
    """Eight 3x3 convolutions, pooled after the 1st, 2nd, 4th, 6th and 8th, and a linear layer.

    "before" is convolution - norm - activation. "after" the activation is, as in the authors'
    scripts, norm - convolution - activation: the norm comes right before the next convolution,
    after the pooling, and the first norm gets the image. The linear layer keeps BN.
    """
    choose("norm_position", norm_position, ("before", "after"))
    channels, height, breadth = shape
    if min(height, breadth) < 32:
        raise ValueError(f"model 'vgg-a' needs pictures of 32x32 at least, got shape {shape}")
    act, features = activation_layer(activation), nn.Sequential()
    for index, multiple in enumerate((1, 2, 4, 4, 8, 8, 8, 8), start=1):
        out = multiple * width
        if norm_position == "before":
            unit = conv_unit(method.norm, channels, out, activation=act)
        else:
            unit = network(
                ("norm", method.norm and method.norm(channels, 2)),
                *conv_unit(None, channels, out, activation=act).named_children(),
            )
        if index in (1, 2, 4, 6, 8):
            unit.add_module("pool", nn.MaxPool2d(2))
        features.append(unit)
        channels = out
    size = channels * (height // 32) * (breadth // 32)
    head = network(
        ("linear", nn.Linear(size, 8 * width)),
        ("norm", method.norm and batch_norm(8 * width, 0)),
        ("activation", act(8 * width)),
    )
    return [("features", features), ("flatten", nn.Flatten()), ("head", head)], 8 * width


def splain(
    method: Method, shape: Shape, depth: int = 20, width: int = 48, activation: str = "relu"
) -> Body:
    """The CIFAR residual network without its shortcuts, and with one width throughout."""
    layers, act = 2 * blocks_a_stage(depth, 2), activation_layer(activation)

    def unit(channels: int, features: int, stride: int = 1) -> nn.Module:
        return conv_unit(method.norm, channels, features, stride=stride, activation=act)

    features = [unit(shape[0], width), *stack(unit, width, [(layers, width)] * 3)]
    return [("features", nn.Sequential(*features)), *pooling()], width
