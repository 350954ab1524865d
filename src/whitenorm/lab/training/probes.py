r"""What a run measures on the way, a row of ``PROBES`` each: diagnostics of the library.

A probe sees the model in train mode, as the optimiser does, and leaves it as it was.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm.diagnostics import (
    ActivationRecorder,
    fisher_condition_numbers,
    fisher_of_model,
    jacobian_singular_values,
)
from whitenorm.isometry import undisturbed
from whitenorm.lab.data.datasets import Dataset
from whitenorm.lab.randomness import generator

__all__ = ["PROBES", "take"]


def take(name: str, model: nn.Module, dataset: Any, **options: Any) -> dict[str, float]:
    """The values of a probe of a model, by column."""
    if name not in PROBES:
        raise ValueError(f"unknown probe {name!r}; there are {', '.join(PROBES)}")
    if not isinstance(dataset, Dataset):
        raise ValueError(f"probe {name!r} needs a data set in memory, not a streamed one")
    return PROBES[name](model, dataset, **options)


def _sample(model: nn.Module, dataset: Dataset, samples: int) -> Tensor:
    n = len(dataset.train_x)
    # Files may be sorted by class, so the first examples would not do.
    chosen = torch.randperm(n, generator=generator(0, "probe"))[:samples]
    parameter = next(model.parameters())
    return dataset.train_x[chosen.to(dataset.train_x.device)].to(parameter)


def _fisher(
    model: nn.Module, dataset: Dataset, samples: int = 2000, bias: bool = False
) -> dict[str, float]:
    """Condition numbers of the last layer's Fisher matrix; infinite where it is singular."""
    fisher = fisher_of_model(model, _sample(model, dataset, samples), bias=bias)
    numbers = fisher_condition_numbers(fisher, dataset.num_classes)
    return {"at_90_percent": numbers.at_90_percent, "at_smallest": numbers.at_smallest}


def _jacobian(model: nn.Module, dataset: Dataset, samples: int = 64) -> dict[str, float]:
    """Singular values of the input-output Jacobian over a batch; isometry is all near 1."""
    values = jacobian_singular_values(model, _sample(model, dataset, samples)).flatten()
    logs = values.clamp(min=torch.finfo(values.dtype).tiny).log10()
    low, median, high = torch.quantile(values, values.new_tensor([0.05, 0.5, 0.95])).tolist()
    return {
        "low": low,
        "median": median,
        "high": high,
        "log10_deviation": float(logs.std()),
        "log10_rms": float(logs.square().mean().sqrt()),
    }


def _activations(model: nn.Module, dataset: Dataset, samples: int = 1000) -> dict[str, float]:
    """Correlation and conditioning of what the activations see, averaged over layers."""
    x = _sample(model, dataset, samples)
    names = _before_activations(model)
    with torch.no_grad(), undisturbed(model, x), ActivationRecorder(model, names) as recorder:
        model(x)
    correlations = [record["mean_correlation"] for record in recorder.records]
    conditions = [record["condition_number_90"] for record in recorder.records]
    return {
        "correlation": statistics.fmean(correlations),
        "condition": math.exp(statistics.fmean(map(math.log, conditions))),
    }


def _before_activations(model: nn.Module) -> list[str]:
    """The layers whose outputs go into a unit's activation."""
    names = []
    for name, module in model.named_modules():
        children = [child for child, _ in module.named_children()]
        if "activation" in children[1:]:
            before = children[children.index("activation") - 1]
            names.append(f"{name}.{before}" if name else before)
    return names


PROBES: dict[str, Callable[..., dict[str, float]]] = {
    "fisher": _fisher,
    "jacobian": _jacobian,
    "activations": _activations,
}
