r"""Optimizers and learning-rate schedules, each a row of a table: a function and its options.

A schedule is a function of the position alone, so a resumed run needs no state of it.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import SGD, Adam, Optimizer

from whitenorm.lab.lookup import check_options, look_up

_Row = tuple[Callable[..., Any], dict[str, Any]]
NEEDED = None  # in place of a default: the option has to be given

OPTIMISERS: dict[str, _Row] = {
    "sgd": (SGD, {"lr": NEEDED, "momentum": 0.0, "weight_decay": 0.0, "nesterov": False}),
    "adam": (Adam, {"lr": NEEDED, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}),
}


def _halve(iteration: int, epoch: float, interval: int) -> float:
    return float(0.5 ** (iteration // interval))


def _steps(iteration: int, epoch: float, at: Sequence[float], factor: float) -> float:
    return float(factor ** bisect_right(sorted(at), epoch))


def _one_cycle(iteration: int, epoch: float, epochs: float, peak: float) -> float:
    """Up from 1/25 to 1 at the epoch ``peak``, and down to 0 at the end, in straight lines."""
    if epoch < peak:
        return 0.04 + 0.96 * epoch / peak
    return max(epochs - epoch, 0.0) / (epochs - peak)


SCHEDULES: dict[str, _Row] = {
    "constant": (lambda iteration, epoch: 1.0, {}),
    "halve": (_halve, {"interval": NEEDED}),  # every `interval` iterations
    "one-cycle": (_one_cycle, {"epochs": NEEDED, "peak": NEEDED}),
    "steps": (_steps, {"at": NEEDED, "factor": 0.1}),  # times `factor` at the epochs `at`
}


def make_optimiser(settings: Mapping[str, Any], parameters: Iterable[nn.Parameter]) -> Optimizer:
    """The optimizer of a run: ``{"name": "sgd", "lr": 0.1, "momentum": 0.9}``."""
    make, options = _row(OPTIMISERS, "optimiser", settings)
    optimiser: Optimizer = make(parameters, **options)
    return optimiser


def learning_rate(
    settings: Mapping[str, Any], base: float, iteration: int, iterations_per_epoch: int
) -> float:
    """The learning rate of the iteration that follows ``iteration`` others.

    Example:
        >>> learning_rate({"name": "halve", "interval": 40}, 1.0, 80, iterations_per_epoch=1)
        0.25
        >>> learning_rate({"name": "steps", "at": [2], "factor": 0.2}, 0.5, 20, 10)
        0.1
        >>> learning_rate({"name": "one-cycle", "epochs": 10, "peak": 2}, 0.5, 60, 10)
        0.25
    """
    schedule, options = _row(SCHEDULES, "schedule", settings)
    factor: float = schedule(iteration, iteration / iterations_per_epoch, **options)
    return base * factor


def _row(table: Mapping[str, _Row], kind: str, settings: Mapping[str, Any]) -> _Row:
    """The function that settings name, and all of its options."""
    function, defaults = look_up(table, kind, settings["name"])
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items() if k != "name"}
    check_options(kind, settings["name"], given, defaults)
    options = {**defaults, **given}
    if missing := [key for key, value in options.items() if value is NEEDED]:
        raise ValueError(
            f"{kind} {settings['name']!r} needs {', '.join(missing)}: give {kind}.{missing[0]}, "
            f"e.g. with --set {kind}.{missing[0]}=VALUE"
        )
    return function, options
