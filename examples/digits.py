"""Trains one small network on scikit-learn's digits with BatchNorm and with DBN.

    python examples/digits.py

Full-batch gradient descent for 60 steps, three seeds; prints the two curves' ends.
"""

from itertools import pairwise

import torch
from sklearn.datasets import load_digits
from torch import nn

from whitenorm import DecorrelatedBatchNorm1d


def load():
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x, dtype=torch.float32) / 16
    x, y = x - x.mean(0), torch.tensor(y)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1437], order[1437:]
    return x[train], y[train], x[test], y[test]


def network(norm_layer):
    sizes = [64, 100, 100, 100]
    blocks = [[nn.Linear(a, b), norm_layer(b), nn.ReLU(inplace=True)] for a, b in pairwise(sizes)]
    return nn.Sequential(*[layer for block in blocks for layer in block], nn.Linear(100, 10))


def train(norm_layer, data, seed, steps=60, lr=0.5):
    torch.manual_seed(seed)
    x, y, test_x, test_y = data
    model = network(norm_layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (model.eval()(test_x).argmax(1) == test_y).float().mean()
    return loss.item(), accuracy.item()


def main():
    data = load()
    methods = {"BatchNorm": nn.BatchNorm1d, "DBN": DecorrelatedBatchNorm1d}
    print("digits, 3 hidden layers of 100, 60 steps of gradient descent at 0.5, seeds 0-2")
    print(f"{'':10} {'training loss':>24} {'test accuracy':>24}")
    for name, norm_layer in methods.items():
        ends = torch.tensor([train(norm_layer, data, seed) for seed in range(3)])
        (loss, accuracy), (loss_std, accuracy_std) = ends.mean(0), ends.std(0)
        print(
            f"{name:10} {loss:13.5f} ± {loss_std:.5f}   "
            f"{100 * accuracy:13.2f}% ± {100 * accuracy_std:.2f}"
        )


if __name__ == "__main__":
    main()
