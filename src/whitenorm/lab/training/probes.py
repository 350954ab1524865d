r"""What a run measures on the way, a row of ``PROBES`` each: diagnostics of the library.

A probe sees the model in train mode, as the optimizer does, and leaves it as it was.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm.diagnostics import (
    fisher_condition_numbers,
    fisher_of_model,
    jacobian_singular_values,
)
from whitenorm.lab.data.datasets import Dataset
from whitenorm.lab.lookup import look_up
from whitenorm.lab.randomness import generator


def take(name: str, model: nn.Module, dataset: Any, **options: Any) -> dict[str, float]:
    """The values of a probe of a model, by column."""
    probe = look_up(PROBES, "probe", name)
    if not isinstance(dataset, Dataset):
        raise ValueError(f"probe {name!r} needs a data set in memory, not a streamed one")
    return probe(model, dataset, **options)


def _sample(model: nn.Module, dataset: Dataset, samples: int) -> Tensor:
    x = dataset.train_x
    # Files may be sorted by class, so the first examples would not do.
    chosen = torch.randperm(len(x), generator=generator(0, "probe"))[:samples]
    return x[chosen.to(x.device)].to(next(model.parameters()))


def _fisher(model: nn.Module, dataset: Dataset, samples: int = 2000) -> dict[str, float]:
    """Condition numbers of the last layer's Fisher matrix; infinite where it is singular."""
    fisher = fisher_of_model(model, _sample(model, dataset, samples), bias=False)
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


PROBES: dict[str, Callable[..., dict[str, float]]] = {"fisher": _fisher, "jacobian": _jacobian}
