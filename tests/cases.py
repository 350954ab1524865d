"""What the tests run over: shapes, group sizes, and data that other implementations fail on."""

import pytest
import torch
from torch import nn

from whitenorm import (
    DecorrelatedBatchNorm1d,
    DecorrelatedBatchNorm2d,
    DecorrelatedBatchNorm3d,
    whitening,
)

WHITENINGS = tuple(whitening.WHITENINGS)  # a new row is tested by being there
TIE_FREE = tuple(name for name in WHITENINGS if name != "pca")  # with a derivative at ties

SHAPES = {
    "NC": (DecorrelatedBatchNorm1d, (96, 12)),
    "NCL": (DecorrelatedBatchNorm1d, (16, 12, 9)),
    "NCHW": (DecorrelatedBatchNorm2d, (8, 12, 5, 4)),
    "NCDHW": (DecorrelatedBatchNorm3d, (4, 12, 3, 4, 2)),
}


def some(chosen, every):
    """All of a list as parameters, those that weren't chosen as slow ones."""
    return [e if e in chosen else pytest.param(e, marks=pytest.mark.slow) for e in every]


def correlated(shape, seed=0, dtype=torch.float64):
    """Data whose channels are mixed by a random matrix and moved by a random mean."""
    generator = torch.Generator().manual_seed(seed)
    channels = shape[1]
    mixing = torch.randn(channels, channels, generator=generator, dtype=torch.float64)
    mean = torch.randn(channels, generator=generator, dtype=torch.float64)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    x = (x.movedim(1, -1) @ (mixing / channels**0.5) + mean).movedim(-1, 1)
    return x.contiguous().to(dtype)


def colouring(channels, size, seed=0):
    """A matrix for each group, as a weight, no two elements of which are alike."""
    size = min(size, channels)
    return correlated((-(-channels // size), size, size), seed)


def tied(samples=8, channels=4):
    """Data with an exactly isotropic covariance: every eigenvalue is the same."""
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    hadamard = signs
    while hadamard.shape[0] < samples:
        hadamard = torch.kron(hadamard, signs)
    return hadamard[:, 1 : channels + 1].contiguous() * 1.7 + 0.3


def _zero_variance(x):
    x = x.clone()
    x[:, 1] = 0.5
    return x


def _duplicated(x):
    x = x.clone()
    x[:, 3] = x[:, 0]
    return x


# The data on which eigh-based implementations return NaN, inf or wrong gradients.
HARD = {
    "distinct eigenvalues": correlated((9, 4)),
    "equal eigenvalues": tied(),
    "a channel of zero variance": _zero_variance(correlated((9, 4))),
    "duplicated channels": _duplicated(correlated((9, 4))),
    "fewer samples than channels": correlated((3, 4)),
    "feature maps": correlated((3, 4, 2, 2)),
}


def covariance(y):
    y = y.double().movedim(1, 0).flatten(1)
    y = y - y.mean(1, keepdim=True)
    return y @ y.T / y.shape[1]


def small_classifier(dtype=torch.float64):
    return nn.Sequential(
        nn.Linear(7, 6, dtype=dtype), nn.Tanh(), nn.Linear(6, 4, dtype=dtype)
    ), torch.randn(40, 7, dtype=dtype)


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_state(before, model):
    for name, tensor in model.state_dict().items():
        assert torch.equal(before[name], tensor), name


class Listed(nn.Module):
    """Keeps its layers in a plain list too, and calls them there, as some published models do."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = list(layers)
        for i, layer in enumerate(self.layers):
            self.add_module(f"layer{i}", layer)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
