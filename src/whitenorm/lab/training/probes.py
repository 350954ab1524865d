r"""What a run measures on the way, a row of ``PROBES`` each: diagnostics of the library.

A probe sees the model in train mode, as the optimizer does, and leaves it as it was.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm.diagnostics import (
    correlation,
    covariance_spectrum,
    fisher_condition_numbers,
    fisher_of_model,
    jacobian_singular_values,
    undisturbed,
)
from whitenorm.lab.data.datasets import Dataset
from whitenorm.lab.lookup import look_up
from whitenorm.lab.randomness import generator
from whitenorm.modules import DecorrelatedBatchNorm


def take(name: str, model: nn.Module, dataset: Any, **options: Any) -> Mapping[str, Any]:
    """The values of a probe of a model, by column: numbers, or matrices as lists."""
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


def _whiteness(model: nn.Module, dataset: Dataset) -> dict[str, float]:
    """How white the test set's activations are after DBN layers in evaluation, before the scale.

    The largest and the mean eigenvalue of their covariance, the geometric mean over layers; both
    are 1 where running statistics fit the test set.
    """
    found: list[Tensor] = []

    def look(layer: DecorrelatedBatchNorm, inputs: Any, output: Tensor) -> None:
        if layer.weight is not None and layer.bias is not None:
            output = (output - layer.bias) / layer.weight
        found.append(covariance_spectrum(output, layer.group_size))

    layers = [m for m in model.modules() if isinstance(m, DecorrelatedBatchNorm)]
    handles = [layer.register_forward_hook(look) for layer in layers]
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(dataset.test_x.to(next(model.parameters())))
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    if not found:
        return {}
    values = [[float(each.max()), float(each.mean())] for each in found]
    largest, mean = torch.tensor(values).clamp(min=1e-30).log().mean(0).exp().tolist()
    return {"largest": largest, "mean": mean}


@torch.no_grad()
def _correlations(
    model: nn.Module, dataset: Dataset, layer: str, neurons: int, samples: int = 2000
) -> dict[str, list[list[float]]]:
    """Correlations between the first neurons of a layer: of its inputs, and of its outputs."""
    seen: dict[str, list[list[float]]] = {}

    def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        for name, activations in (("before", inputs[0]), ("after", output)):
            seen[name] = correlation(activations[:, :neurons]).mul(1e3).round().div(1e3).tolist()

    x = _sample(model, dataset, samples)
    handle = model.get_submodule(layer).register_forward_hook(look)
    try:
        with undisturbed(model, x):
            model(x)
    finally:
        handle.remove()
    return seen


PROBES: dict[str, Callable[..., Mapping[str, Any]]] = {
    "correlations": _correlations,
    "fisher": _fisher,
    "jacobian": _jacobian,
    "whiteness": _whiteness,
}
