r"""What the networks are made of: units of convolution, norm and activation, and their start."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from whitenorm.lab.networks.methods import make_method
from whitenorm.modules import TranslatedReLU

Norm = Callable[[int, int], nn.Module]

ACTIVATIONS: dict[str, Callable[[int], nn.Module]] = {
    "relu": lambda _: nn.ReLU(inplace=True),
    "elu": lambda _: nn.ELU(inplace=True),
    "tanh": lambda _: nn.Tanh(),
    "trelu": TranslatedReLU,
    "identity": lambda _: nn.Identity(),
}


def batch_norm(features: int, dims: int) -> nn.Module:
    """The BN that a network keeps where a method has no place."""
    norm = make_method("bn").norm
    assert norm is not None
    return norm(features, dims)


def choose(name: str, value: Any, choices: Iterable[Any]) -> Any:
    """The value, if it is one of the choices."""
    if value not in (choices := list(choices)):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def activation_layer(name: str) -> Callable[[int], nn.Module]:
    """``features -> layer`` for an activation's name."""
    return ACTIVATIONS[choose("activation", name, ACTIVATIONS)]


def conv_unit(
    norm: Norm | None,
    channels: int,
    features: int,
    kernel: int = 3,
    stride: int = 1,
    activation: Callable[[int], nn.Module] | None = None,
) -> nn.Sequential:
    """convolution - norm - activation, without those that are None."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    parts["conv"] = nn.Conv2d(
        channels, features, kernel, stride, padding=kernel // 2, bias=norm is None
    )
    if norm is not None:
        parts["norm"] = norm(features, 2)
    if activation is not None:
        parts["activation"] = activation(features)
    return nn.Sequential(parts)


def network(*parts: tuple[str, nn.Module]) -> nn.Sequential:
    """A sequence of named parts."""
    return nn.Sequential(OrderedDict(parts))


def pooled(features: int, num_classes: int) -> tuple[tuple[str, nn.Module], ...]:
    """The end of a network: average over positions, then a linear layer."""
    return (
        ("pool", nn.AdaptiveAvgPool2d(1)),
        ("flatten", nn.Flatten()),
        ("classifier", nn.Linear(features, num_classes)),
    )


def blocks_a_stage(depth: int, offset: int) -> int:
    """n of a network with three stages of n blocks, two layers a block: depth = 6n + offset."""
    if depth <= offset or (depth - offset) % 6:
        examples = ", ".join(str(6 * n + offset) for n in (1, 3, 5, 7))
        raise ValueError(f"depth must be 6n+{offset} ({examples}, ...), got {depth}")
    return (depth - offset) // 6


@torch.no_grad()
def initialise(model: nn.Module, scheme: str, generator: torch.Generator | None = None) -> None:
    """Draws the weights of all linear layers and convolutions anew; their biases become 0.

    ``"lecun"`` (Efficient BackProp, 1998): normal with variance 1 / fan_in. ``"he"``, as the
    reference residual networks have it: convolutions normal with variance 2 / fan_out, linear
    layers uniform within 1 / sqrt(fan_in).
    """
    if scheme not in ("lecun", "he"):
        raise ValueError(f"scheme must be 'lecun' or 'he', got {scheme!r}")
    for module in model.modules():
        if not isinstance(module, nn.Linear | nn.Conv2d):
            continue
        fan_in = module.weight[0].numel()
        if scheme == "lecun":
            nn.init.normal_(module.weight, std=fan_in**-0.5, generator=generator)
        elif isinstance(module, nn.Conv2d):
            fan_out = module.weight.numel() // module.in_channels
            nn.init.normal_(module.weight, std=(2 / fan_out) ** 0.5, generator=generator)
        else:
            bound = fan_in**-0.5
            nn.init.uniform_(module.weight, -bound, bound, generator=generator)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
