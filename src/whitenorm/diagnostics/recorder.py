r"""Measures of activations, taken during a training's own forward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from whitenorm.diagnostics.activations import (
    condition_number,
    covariance_spectrum,
    effective_rank,
    mean_correlation,
)

__all__ = [
    "MEASURES",
    "ActivationRecorder",
]

MEASURES: Mapping[str, Callable[[Tensor], float]] = {
    "mean_correlation": mean_correlation,
    "condition_number": lambda activations: condition_number(covariance_spectrum(activations)),
    "condition_number_90": lambda activations: condition_number(
        covariance_spectrum(activations), 0.9
    ),
    "effective_rank": effective_rank,
}


class ActivationRecorder:
    r"""Measures the outputs of named layers during a training's own forward passes.

    Only passes in train mode count and are measured. Nothing else is touched.

    Args:
        model: The model that is trained.
        layers: Names of the layers, as in ``model.named_modules()``.
        measures: Name and function of each measure, which takes a layer's output; by default
            ``MEASURES``.
        every: Passes from one measurement to the next; the first pass is measured.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        >>> with ActivationRecorder(model, ["0"], every=10) as recorder:
        ...     for _ in range(20):
        ...         y = model(torch.randn(8, 4))
        >>> [(record["layer"], record["step"]) for record in recorder.records]
        [('0', 0), ('0', 10)]
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Iterable[str],
        measures: Mapping[str, Callable[[Tensor], float]] = MEASURES,
        every: int = 1,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be a positive integer, got {every!r}")
        known = dict(model.named_modules())
        self.layers = {name: known.get(name) for name in layers}
        if unknown := [name for name, module in self.layers.items() if module is None]:
            raise ValueError(
                f"the model has no layer {', '.join(map(repr, unknown))}; it has "
                f"{', '.join(repr(name) for name in known if name)}"
            )
        self.measures = measures
        self.every = every
        self.records: list[dict[str, Any]] = []
        self._handles: list[RemovableHandle] = []
        self._passes = dict.fromkeys(self.layers, 0)

    def __enter__(self) -> ActivationRecorder:
        for name, module in self.layers.items():
            assert module is not None
            self._handles.append(module.register_forward_hook(self._hook(name)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        @torch.no_grad()
        def measure(module: nn.Module, args: Any, output: Tensor) -> None:
            if not module.training:
                return
            step = self._passes[name]
            self._passes[name] += 1
            if step % self.every == 0:
                values = {key: function(output) for key, function in self.measures.items()}
                self.records.append({"layer": name, "step": step, **values})

        return measure
