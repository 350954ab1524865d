r"""Residual networks: CIFAR's 6n+2 with shortcut A, wide ones, and ImageNet's."""

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from whitenorm.lab.lookup import choose
from whitenorm.lab.networks.methods import Method, batch_norm
from whitenorm.lab.networks.parts import (
    Body,
    Norm,
    Shape,
    activation_layer,
    blocks_a_stage,
    conv_unit,
    network,
    pooling,
    stack,
)


class ZeroPaddedShortcut(nn.Module):
    """Shortcut A: every ``stride``-th pixel, and zeros for the new channels. No parameters."""

    def __init__(self, channels: int, features: int, stride: int) -> None:
        super().__init__()
        self.extra = features - channels
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        kept = input[:, :, :: self.stride, :: self.stride]
        return F.pad(kept, (0, 0, 0, 0, 0, self.extra))

    def extra_repr(self) -> str:
        return f"extra={self.extra}, stride={self.stride}"


class Residual(nn.Module):
    """activation(body(x) + shortcut(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut, self.activation = body, shortcut, activation

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.activation(self.body(input) + self.shortcut(input))
        return output


def resnet(
    method: Method,
    shape: Shape,
    depth: int = 20,
    placement: str = "all",
    activation: str = "relu",
) -> Body:
    """6n+2 layers of 16, 32 and 64 channels with shortcut A.

    Placement "first" is the paper's L1: the method's norm in the stem alone, BN elsewhere.
    """
    choose("placement", placement, ("all", "first"))
    norm = method.norm if placement == "all" else batch_norm
    n, act = blocks_a_stage(depth, 2), activation_layer(activation)

    def block(channels: int, features: int, stride: int) -> nn.Module:
        body = nn.Sequential(
            conv_unit(norm, channels, features, stride=stride, activation=act),
            conv_unit(norm, features, features),
        )
        same = channels == features
        shortcut = nn.Identity() if same else ZeroPaddedShortcut(channels, features, stride)
        return Residual(body, shortcut, act(features))

    blocks = stack(block, 16, [(n, 16), (n, 32), (n, 64)])
    stem = conv_unit(method.norm, shape[0], 16, activation=act)
    return [("stem", stem), ("blocks", blocks), *pooling()], 64


class WideBlock(nn.Module):
    """The pre-activation block of wide residual networks, with dropout between convolutions."""

    def __init__(
        self, channels: int, features: int, stride: int, norm: Norm, dropout: float
    ) -> None:
        super().__init__()
        bias = norm is None
        self.norm1 = norm(channels, 2) if norm is not None else nn.Identity()
        self.conv1 = nn.Conv2d(channels, features, 3, stride, padding=1, bias=bias)
        self.norm2 = norm(features, 2) if norm is not None else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(features, features, 3, padding=1, bias=bias)
        changed = channels != features
        self.shortcut = nn.Conv2d(channels, features, 1, stride, bias=bias) if changed else None

    def forward(self, input: Tensor) -> Tensor:
        active = F.relu(self.norm1(input))
        inner = F.relu(self.norm2(self.conv1(active)))
        # Where the width changes, the shortcut starts after the shared norm and activation.
        outer = input if self.shortcut is None else self.shortcut(active)
        output: Tensor = self.conv2(self.dropout(inner)) + outer
        return output


def wrn(
    method: Method,
    shape: Shape,
    depth: int = 28,
    widen: int = 10,
    dropout: float = 0.0,
    placement: str = "all",
) -> Body:
    """WRN-depth-widen: 6n+4 layers of 16 * widen, 32 * widen and 64 * widen channels.

    Placement "all" replaces every norm (with BN: the published network). "stem" is the paper's
    L1: the method's norm is added after the first convolution, and all others are BN.
    """
    choose("placement", placement, ("all", "stem"))
    norm = method.norm if placement == "all" else batch_norm
    n = blocks_a_stage(depth, 4)
    stem = network(
        ("conv", nn.Conv2d(shape[0], 16, 3, padding=1, bias=norm is None)),
        ("norm", method.norm(16, 2) if placement == "stem" and method.norm else None),
    )
    block = partial(WideBlock, norm=norm, dropout=dropout)
    blocks = stack(block, 16, [(n, 16 * widen), (n, 32 * widen), (n, 64 * widen)])
    last = ("norm", norm and norm(64 * widen, 2)), ("activation", nn.ReLU(inplace=True))
    return [("stem", stem), ("blocks", blocks), *last, *pooling()], 64 * widen


# depth -> blocks in each of the four stages, and whether a block is a bottleneck
_IMAGENET = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
}


def imagenet_resnet(
    method: Method,
    shape: Shape,
    depth: int = 50,
    stem: str = "plain",
) -> Body:
    """Residual networks for ImageNet: one layer near the input is the method's, the rest are BN.

    Stem "plain": that layer follows the 7x7 convolution (with BN: the published network). Stem
    "extra-conv", which the authors ran: a 3x3 convolution, the method's layer and a ReLU follow
    the max-pool (with BN: the same network for comparison).
    """
    choose("stem", stem, ("plain", "extra-conv"))
    counts, bottleneck = _IMAGENET[choose("depth", depth, _IMAGENET)]
    act = activation_layer("relu")
    first = method.norm if stem == "plain" else batch_norm
    entry = conv_unit(first, shape[0], 64, kernel=7, stride=2, activation=act)
    entry.add_module("pool", nn.MaxPool2d(3, stride=2, padding=1))
    if stem == "extra-conv":
        entry.add_module("extra", conv_unit(method.norm, 64, 64, activation=act))
    unit = partial(conv_unit, batch_norm)

    def block(channels: int, features: int, stride: int) -> nn.Module:
        if bottleneck:
            width = features // 4
            body = nn.Sequential(
                unit(channels, width, kernel=1, activation=act),
                unit(width, width, stride=stride, activation=act),
                unit(width, features, kernel=1),
            )
        else:
            body = nn.Sequential(
                unit(channels, features, stride=stride, activation=act), unit(features, features)
            )
        same = channels == features
        shortcut = nn.Identity() if same else unit(channels, features, kernel=1, stride=stride)
        return Residual(body, shortcut, act(features))

    features = [width * (4 if bottleneck else 1) for width in (64, 128, 256, 512)]
    blocks = stack(block, 64, zip(counts, features, strict=True))
    return [("stem", entry), ("blocks", blocks), *pooling()], features[-1]
