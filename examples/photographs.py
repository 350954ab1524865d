"""Trains one small network on patches of photographs with BatchNorm and with DBN.

    python examples/photographs.py

From which of scikit-learn's two photographs is a patch of 12x12? Full-batch gradient descent for
150 updates; prints training loss and test error at five learning rates.
"""

from itertools import pairwise

import torch
from sklearn.datasets import load_sample_images
from torch import nn

from whitenorm import DecorrelatedBatchNorm1d

RATES = (0.03, 0.1, 0.3, 1, 3)


def load():
    """Patches from some tiles of 48x48 to train on, and from others to test on."""
    generator, parts = torch.Generator().manual_seed(0), ([], [])
    for label, picture in enumerate(load_sample_images().images):
        grey = torch.tensor(picture).float().mean(2) / 255
        tiles = grey.unfold(0, 48, 48).unfold(1, 48, 48).reshape(-1, 48, 48)
        patches = tiles.unfold(1, 12, 12).unfold(2, 12, 12).reshape(len(tiles), 16, 144)
        order = torch.randperm(len(tiles), generator=generator)
        held = len(tiles) // 4
        for part, own in zip(parts, (order[held:], order[:held]), strict=True):
            x = patches[own].flatten(0, 1)
            part.append((x, torch.full((len(x),), label)))
    (x, y), (test_x, test_y) = ([torch.cat(t) for t in zip(*p, strict=True)] for p in parts)
    mean = x.mean()
    return x - mean, y, test_x - mean, test_y


def network(norm_layer):
    sizes = [144, 64, 64, 64, 64]
    blocks = [[nn.Linear(a, b), norm_layer(b), nn.ReLU(inplace=True)] for a, b in pairwise(sizes)]
    return nn.Sequential(*[layer for block in blocks for layer in block], nn.Linear(64, 2))


def train(norm_layer, data, lr, updates=150):
    torch.manual_seed(0)
    x, y, test_x, test_y = data
    model = network(norm_layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(updates):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = (model.eval()(test_x).argmax(1) != test_y).float().mean()
    return f"{loss.item():13.5f}, {100 * error.item():4.1f}%"


def main():
    data = load()
    methods = {"BatchNorm": nn.BatchNorm1d, "DBN": DecorrelatedBatchNorm1d}
    print("training loss and test error")
    print("learning rate" + "".join(f"{name:>21}" for name in methods))
    for lr in RATES:
        ends = (train(norm_layer, data, lr) for norm_layer in methods.values())
        print(f"{lr:13}" + "".join(f"{end:>21}" for end in ends))


if __name__ == "__main__":
    main()
