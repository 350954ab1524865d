"""Stands for `torchvision.models`, which can't be imported beside every build of torch.

Names, structure and calls are torchvision's: `conv1`, `bn1`, `layer1` to `layer4` of blocks with
`bn1`, `bn2` and `downsample`, `fc`, and `norm_layer(channels)` for every normalization.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, norm_layer) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, stride)
        self.bn1 = norm_layer(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = convolution(outputs, outputs, 3)
        self.bn2 = norm_layer(outputs)
        self.downsample = None
        if stride > 1 or inputs != outputs:
            projection = convolution(inputs, outputs, 1, stride)
            self.downsample = nn.Sequential(projection, norm_layer(outputs))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + shortcut)


class ResNet(nn.Module):
    def __init__(self, depths, num_classes=1000, zero_init_residual=False, norm_layer=None):
        super().__init__()
        norm_layer = norm_layer or nn.BatchNorm2d
        self.conv1 = convolution(3, 64, 7, 2)
        self.bn1 = norm_layer(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        inputs = 64
        for i, depth in enumerate(depths):
            outputs, blocks = 64 * 2**i, []
            for j in range(depth):
                stride = 2 if i > 0 and j == 0 else 1
                blocks.append(BasicBlock(inputs, outputs, stride, norm_layer))
                inputs = outputs
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, nn.BatchNorm2d):
                nn.init.ones_(m.weight)
                nn.init.zeros_(m.bias)
        for m in self.modules() if zero_init_residual else ():
            if isinstance(m, BasicBlock):
                nn.init.zeros_(m.bn2.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def resnet18(*, weights=None, progress=True, **options) -> ResNet:
    """With weights, a state of BatchNorm layers whose statistics aren't those of a new network."""
    model = ResNet((2, 2, 2, 2), **options)
    if weights is not None:
        model.load_state_dict(_pretrained(weights))
    return model


def _pretrained(weights: str) -> dict[str, Tensor]:
    if weights not in ("DEFAULT", "IMAGENET1K_V1"):
        raise KeyError(weights)
    donor = ResNet((2, 2, 2, 2))
    generator = torch.Generator().manual_seed(0)
    for name, buffer in donor.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.3, generator=generator)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5, generator=generator)
    return donor.state_dict()
