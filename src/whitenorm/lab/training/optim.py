r"""Optimisers and learning-rate schedules, each a row of a table.

A schedule is a function of the position alone, so a resumed run needs no state of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

__all__ = ["OPTIMISERS", "SCHEDULES", "learning_rate", "make_optimiser"]


def _sgd(
    parameters: Iterable[nn.Parameter],
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov
    )


def _adam(
    parameters: Iterable[nn.Parameter],
    lr: float,
    betas: Sequence[float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    beta1, beta2 = betas
    return torch.optim.Adam(
        parameters, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay
    )


def _constant(iteration: int, epoch: float) -> float:
    return 1.0


def _halve(iteration: int, epoch: float, interval: int, factor: float = 0.5) -> float:
    return float(factor ** (iteration // interval))


def _steps(iteration: int, epoch: float, at: Sequence[float], factor: float = 0.1) -> float:
    return float(factor ** bisect_right(sorted(at), epoch))


OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"sgd": _sgd, "adam": _adam}

SCHEDULES: dict[str, Callable[..., float]] = {
    "constant": _constant,
    "halve": _halve,  # every `interval` updates
    "steps": _steps,  # times `factor` at each of the epochs `at`
}


def make_optimiser(
    settings: Mapping[str, Any], parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimiser of a run: ``{"name": "sgd", "lr": 0.1, "momentum": 0.9}``."""
    return _row(OPTIMISERS, "optimiser", settings)(parameters, **_options(settings))


def learning_rate(
    settings: Mapping[str, Any], base: float, iteration: int, steps_per_epoch: int
) -> float:
    """The learning rate of the update that follows ``iteration`` updates.

    Example:
        >>> learning_rate({"name": "halve", "interval": 40}, 1.0, iteration=80, steps_per_epoch=1)
        0.25
        >>> learning_rate({"name": "steps", "at": [2], "factor": 0.2}, 0.5, 20, 10)
        0.1
    """
    schedule = _row(SCHEDULES, "schedule", settings)
    return base * schedule(iteration, iteration / steps_per_epoch, **_options(settings))


def _row(table: Mapping[str, Any], kind: str, settings: Mapping[str, Any]) -> Any:
    name = settings["name"]
    if name not in table:
        raise ValueError(f"unknown {kind} {name!r}; there are {', '.join(table)}")
    return table[name]


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "name"}
