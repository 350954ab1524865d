r"""Stochastic axis swapping (figure 2): the illustration, and its measure in a real layer."""

from typing import Any

import torch
from torch import Tensor

from whitenorm import whitening_matrix
from whitenorm.diagnostics import axis_swapping, covariance, whitening_axis_swapping
from whitenorm.lab.data.datasets import Dataset
from whitenorm.lab.networks.build import build_model
from whitenorm.lab.networks.methods import make_method
from whitenorm.lab.randomness import generator
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.trainer import Outcome


def illustrate(run: Run, dataset: None = None, **_: Any) -> Outcome:
    """Two batches that share their blue points; the red ones stretch them along another axis.

    The two batches have the same eigenvectors but for chance, and eigenvalues in the other order.
    """
    random = generator(run.seed, "illustration")
    blue = torch.randn(60, 2, generator=random, dtype=torch.float64)
    turn = torch.tensor([[3**0.5, 1.0], [-1.0, 3**0.5]], dtype=torch.float64) / 2  # by 30 degrees
    first, second = (
        torch.randn(20, 2, generator=random, dtype=torch.float64) * torch.tensor(stretch) @ turn
        for stretch in ((3.0, 0.5), (0.5, 3.0))
    )
    norm = _norm(run, 2).double()
    with torch.no_grad():
        shared = [norm(torch.cat([blue, red]))[: len(blue)] for red in (first, second)]
    measure = axis_swapping(*shared)
    moved = (shared[0] - shared[1]).norm() / shared[0].norm()
    arrays = {
        "blue": blue.tolist(),
        "red": [first.tolist(), second.tolist()],
        "whitened": [points.tolist() for points in shared],
    }
    final = {"swapped": measure.swapped, "drift": measure.drift, "moved": float(moved)}
    return Outcome("finished", final, arrays=arrays)


def measure_swapping(run: Run, dataset: Dataset, **_: Any) -> Outcome:
    """How often axes swap between two batches, in the first hidden layer as it is initialized.

    ``run.iterations`` pairs of batches, of each size 2^i from the layer's width up to
    ``run.batch_size``; swapping and drift are averaged over the pairs.
    """
    norm = _norm(run, run.model["hidden"][0])
    activations = first_activations(run, dataset)
    random = generator(run.seed, "batches")
    largest = run.batch_size or len(activations)
    history: dict[str, list[float | None]] = {"batch_size": [], "swapped": [], "drift": []}
    size = activations.shape[1]
    while size <= largest:
        pairs = []
        for _pair in range(run.iterations or 1):
            order = torch.randperm(len(activations), generator=random)[: 2 * size]
            first, second = (
                whitening_matrix(covariance(activations[part]), norm.eps, norm.whitening)
                for part in order.chunk(2)
            )
            pairs.append(whitening_axis_swapping(first, second, covariance(activations)))
        history["batch_size"].append(size)
        for name in ("swapped", "drift"):
            history[name].append(sum(getattr(pair, name) for pair in pairs) / len(pairs))
        size *= 2
    final = {name: history[name][-1] for name in ("swapped", "drift")}
    return Outcome("finished", final, history)


@torch.no_grad()
def first_activations(run: Run, dataset: Dataset) -> Tensor:
    """What a perceptron's first norm layer is given, for all training examples at the start."""
    model = build_model(
        **run.model,
        method=make_method("plain"),
        num_classes=dataset.num_classes,
        input_shape=dataset.input_shape,
        generator=generator(run.seed, "initialisation"),
    )
    activations: Tensor = model.get_submodule("hidden.0.linear")(dataset.train_x.flatten(1))
    return activations


def _norm(run: Run, features: int) -> Any:
    norm = make_method(**run.method).norm
    if norm is None or not hasattr(layer := norm(features, 0), "whitening"):
        raise ValueError(f"axes can swap in a method that whitens, not in {run.method['name']!r}")
    return layer
