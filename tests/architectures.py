"""Networks that nobody here wrote, with random weights and statistics, for the tests of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from monai.networks.nets import UNet
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from transformers import (
    EfficientNetConfig,
    EfficientNetForImageClassification,
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
    RegNetConfig,
    RegNetForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
)

from whitenorm import whitening_matrix
from whitenorm.modules import DecorrelatedBatchNorm


class Architecture(NamedTuple):
    """A network, the shape of one input, and what there is to find in it.

    Args:
        build: Makes the network.
        shape: Of one sample.
        norms: Number of BatchNorm layers.
        depthwise: How many of them follow a depthwise convolution.
        traces: Whether all pairs can be seen without running it.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    norms: int
    depthwise: int = 0
    traces: bool = True


ARCHITECTURES = {
    "resnet-50": Architecture(
        lambda: ResNetForImageClassification(ResNetConfig(num_labels=10)), (3, 64, 64), 53
    ),
    # RegNetY with its squeeze-and-excitation and convolutions in groups of 16 channels
    "regnet": Architecture(
        lambda: RegNetForImageClassification(
            RegNetConfig(
                hidden_sizes=[48, 96, 192, 384],
                depths=[1, 2, 3, 1],
                groups_width=16,
                num_labels=10,
            )
        ),
        (3, 64, 64),
        26,
    ),
    # its padding, as TensorFlow's, is computed from the size of the input, so that nothing traces
    "mobilenet-v2": Architecture(
        lambda: MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=10)),
        (3, 64, 64),
        52,
        depthwise=17,
        traces=False,
    ),
    # B0
    "efficientnet": Architecture(
        lambda: EfficientNetForImageClassification(
            EfficientNetConfig(
                width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280, num_labels=10
            )
        ),
        (3, 64, 64),
        49,
        depthwise=16,
    ),
    # residual units, and transposed convolutions on the way up
    "unet-3d": Architecture(
        lambda: UNet(3, 1, 2, (8, 16, 32, 64), (2, 2, 2), num_res_units=2, norm="batch"),
        (1, 16, 16, 16),
        13,
    ),
}


def build(name: str, seed: int = 0) -> nn.Module:
    """The network in inference mode, with random weights and running statistics."""
    torch.manual_seed(seed)
    model = ARCHITECTURES[name].build()
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.3, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    return model.eval()


def sample(name: str, n: int, seed: int = 1) -> Tensor:
    return torch.randn(n, *ARCHITECTURES[name].shape, generator=torch.manual_seed(seed))


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    result = model(x)
    return result if isinstance(result, Tensor) else result.logits


def correlate(model: nn.Module, seed: int = 2) -> nn.Module:
    """Gives the DBN layers of a model running statistics as of correlated channels."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if not isinstance(module, DecorrelatedBatchNorm) or module.running_mean is None:
            continue
        left = module.num_features
        for matrix in getattr(module, f"running_{module.running}"):
            k = min(len(matrix), left)
            left -= k
            factor = torch.randn(k, 2 * k, generator=generator, dtype=torch.float64)
            covariance = factor @ factor.mT / (2 * k)
            matrix[:k, :k] = (
                covariance if module.running == "covariance" else whitening_matrix(covariance)
            )
        module.eval()
    return model
