r"""Optimizers and learning-rate schedules, each a row of a table.

A schedule is a function of the position alone, so a resumed run needs no state of it. The options
of a row are its keyword arguments.
"""

from __future__ import annotations

import inspect
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

from whitenorm.lab.lookup import check_options, look_up

__all__ = ["OPTIMISERS", "SCHEDULES", "learning_rate", "make_optimiser"]


def _sgd(
    parameters: Iterable[nn.Parameter],
    *,
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
    *,
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


def _halve(iteration: int, epoch: float, *, interval: int) -> float:
    return float(0.5 ** (iteration // interval))


def _steps(iteration: int, epoch: float, *, at: Sequence[float], factor: float = 0.1) -> float:
    return float(factor ** bisect_right(sorted(at), epoch))


OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"sgd": _sgd, "adam": _adam}

SCHEDULES: dict[str, Callable[..., float]] = {
    "constant": _constant,
    "halve": _halve,  # every `interval` iterations
    "steps": _steps,  # times `factor` at each of the epochs `at`
}


def make_optimiser(
    settings: Mapping[str, Any], parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer of a run: ``{"name": "sgd", "lr": 0.1, "momentum": 0.9}``."""
    make = look_up(OPTIMISERS, "optimiser", settings["name"])
    return make(parameters, **_options("optimiser", make, settings))


def learning_rate(
    settings: Mapping[str, Any], base: float, iteration: int, iterations_per_epoch: int
) -> float:
    """The learning rate of the iteration that follows ``iteration`` others.

    Example:
        >>> learning_rate({"name": "halve", "interval": 40}, 1.0, 80, iterations_per_epoch=1)
        0.25
        >>> learning_rate({"name": "steps", "at": [2], "factor": 0.2}, 0.5, 20, 10)
        0.1
    """
    schedule = look_up(SCHEDULES, "schedule", settings["name"])
    options = _options("schedule", schedule, settings)
    return base * schedule(iteration, iteration / iterations_per_epoch, **options)


def _options(kind: str, row: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The options that settings give to a row, if it has these and needs no others."""
    options = dict(settings)
    name, known = options.pop("name"), _keyword_arguments(row)
    check_options(kind, name, options, known)
    if absent := [key for key, needed in known.items() if needed and key not in options]:
        raise ValueError(
            f"{kind} {name!r} needs {', '.join(absent)}: give {kind}.{absent[0]}, e.g. with "
            f"--set {kind}.{absent[0]}=VALUE"
        )
    return options


@cache
def _keyword_arguments(row: Callable[..., Any]) -> dict[str, bool]:
    """Each keyword argument of a function, and whether it has to be given."""
    return {
        name: parameter.default is parameter.empty
        for name, parameter in inspect.signature(row).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
