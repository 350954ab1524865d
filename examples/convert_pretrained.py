"""Turns a trained network with BatchNorm into one that whitens, and trains it further."""

import copy
import logging

import torch
from sklearn.datasets import load_digits
from torch import nn

import whitenorm

logging.basicConfig(format="%(name)s: %(message)s", level=logging.INFO)
torch.manual_seed(0)

digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
y = torch.tensor(digits.target)
order = torch.randperm(len(x))
train, test = order[:1200], order[1200:]


def fit(model, epochs, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    for _ in range(epochs):
        model.train()
        for batch in train[torch.randperm(len(train))].split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return model.eval()


def accuracy(model):
    return (model(x[test]).argmax(1) == y[test]).float().mean().item()


pretrained = fit(
    nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    ),
    epochs=3, lr=0.02,
)  # fmt: skip

model = whitenorm.convert_batchnorm(copy.deepcopy(pretrained), group_size=16)

difference = (model(x[test]) - pretrained(x[test])).abs().max().item()
print(f"converted: outputs differ by at most {difference:.1e}, accuracy {accuracy(model):.3f}")
fit(model, epochs=3, lr=0.02)
print(f"trained on with whitening: accuracy {accuracy(model):.3f}")
