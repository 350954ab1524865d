"""Merges whitening into the weights, so that inference costs what a plain network costs."""

import time

import torch
from torch import nn

import whitenorm

torch.manual_seed(0)


def block(inputs, outputs):
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(conv, whitenorm.DecorrelatedBatchNorm2d(outputs), nn.ReLU())


class Residual(nn.Module):
    """Two blocks with a way around them."""

    def __init__(self, channels):
        super().__init__()
        self.first, self.second = block(channels, channels), block(channels, channels)

    def forward(self, x):
        return x + self.second(self.first(x))


def seconds(model, x, repeats=10):
    model(x)
    start = time.perf_counter()
    for _ in range(repeats):
        model(x)
    return (time.perf_counter() - start) / repeats


model = nn.Sequential(
    block(3, 32), Residual(32), nn.MaxPool2d(2), whitenorm.DecorrelatedBatchNorm2d(32),
    nn.Flatten(), nn.Linear(32 * 16 * 16, 10),
)  # fmt: skip

with torch.no_grad():
    for _ in range(3):
        model(torch.randn(32, 3, 32, 32))  # in place of training
    model.eval()
    folded = whitenorm.fold(model)

    x = torch.randn(16, 3, 32, 32)
    difference = (folded(x) - model(x)).abs().max() / model(x).abs().max()
    print(folded.fold_report)
    print(f"outputs differ by {difference:.1e} of the largest")
    before, after = seconds(model, x), seconds(folded, x)
    print(f"{before * 1e3:.1f} ms a batch before, {after * 1e3:.1f} ms folded")
