r"""What the networks are made of: units of convolution, norm and activation; initial weights."""

from collections import OrderedDict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from whitenorm.lab.lookup import choose
from whitenorm.modules import TranslatedReLU
from whitenorm.patches import whiten_convolution_

Norm = Callable[[int, int], nn.Module] | None
Activation = Callable[[int], nn.Module]
Part = tuple[str, nn.Module | None]
Shape = tuple[int, ...]  # of one input
Body = tuple[list[Part], int]  # the parts of a network before its last layer, and their features

ACTIVATIONS: dict[str, Activation] = {
    "relu": lambda _: nn.ReLU(inplace=True),
    "elu": lambda _: nn.ELU(inplace=True),
    "tanh": lambda _: nn.Tanh(),
    "trelu": TranslatedReLU,
    "identity": lambda _: nn.Identity(),
}
INITIALIZATIONS = ("lecun", "he", "uniform")


def activation_layer(name: str) -> Activation:
    """``features -> layer`` for an activation's name."""
    return ACTIVATIONS[choose("activation", name, ACTIVATIONS)]


def network(*parts: Part) -> nn.Sequential:
    """A sequence of named parts, without those that are None."""
    return nn.Sequential(OrderedDict((name, part) for name, part in parts if part is not None))


def conv_unit(
    norm: Norm,
    channels: int,
    features: int,
    kernel: int = 3,
    stride: int = 1,
    activation: Activation | None = None,
) -> nn.Sequential:
    """convolution - norm - activation, without those that are None."""
    bias = norm is None
    return network(
        ("conv", nn.Conv2d(channels, features, kernel, stride, padding=kernel // 2, bias=bias)),
        ("norm", norm and norm(features, 2)),
        ("activation", activation and activation(features)),
    )


def pooling() -> list[Part]:
    """The average over positions, after which an input is a vector."""
    return [("pool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten())]


def blocks_a_stage(depth: int, offset: int) -> int:
    """n of a network with three stages of n blocks, two layers a block: depth = 6n + offset."""
    if depth <= offset or (depth - offset) % 6:
        examples = ", ".join(str(6 * n + offset) for n in (1, 3, 5, 7))
        raise ValueError(f"depth must be 6n+{offset} ({examples}, ...), got {depth}")
    return (depth - offset) // 6


def stack(
    block: Callable[[int, int, int], nn.Module], channels: int, stages: Iterable[tuple[int, int]]
) -> nn.Sequential:
    """The blocks of all stages, each given as (number of blocks, features).

    ``block(channels, features, stride)`` gives a block. Every stage but the first begins by
    halving the picture.
    """
    blocks = nn.Sequential()
    for stage, (count, features) in enumerate(stages):
        for index in range(count):
            blocks.append(block(channels, features, 2 if stage > 0 and index == 0 else 1))
            channels = features
    return blocks


@torch.no_grad()
def initialize(model: nn.Module, scheme: str, generator: torch.Generator | None = None) -> None:
    """Draws the weights of all linear layers and convolutions; biases become 0 but for "uniform".

    ``"lecun"`` (Efficient BackProp, 1998): normal with variance 1 / fan_in. ``"he"``, as in the
    reference residual networks: convolutions normal with variance 2 / fan_out, linear layers
    uniform within 1 / sqrt(fan_in). ``"uniform"``, as in the authors' scripts of perceptrons: all
    within 1 / sqrt(fan_in), a third of LeCun's variance, biases too.
    """
    choose("initialization", scheme, INITIALIZATIONS)
    for module in model.modules():
        if not isinstance(module, nn.Linear | nn.Conv2d):
            continue
        bound = module.weight[0].numel() ** -0.5
        if scheme == "lecun":
            nn.init.normal_(module.weight, std=bound, generator=generator)
        elif scheme == "he" and isinstance(module, nn.Conv2d):
            fan_out = module.weight.numel() // module.in_channels
            nn.init.normal_(module.weight, std=(2 / fan_out) ** 0.5, generator=generator)
        else:
            nn.init.uniform_(module.weight, -bound, bound, generator=generator)
        if module.bias is not None and scheme == "uniform":
            nn.init.uniform_(module.bias, -bound, bound, generator=generator)
        elif module.bias is not None:
            nn.init.zeros_(module.bias)


def whiten_first_convolution(model: nn.Module, pictures: Tensor) -> None:
    """Sets a network's first convolution to whiten the patches of pictures, and freezes it."""
    convolutions = (module for module in model.modules() if isinstance(module, nn.Conv2d))
    first = next(convolutions, None)
    if first is None:
        raise ValueError(
            "first_convolution='whitened' needs a network that has convolutions, and this one "
            "has none: use 'drawn', or another network"
        )
    whiten_convolution_(first, pictures)
    first.requires_grad_(False)
