r"""A trial of a study: every network of it is built and makes one iteration on made-up data."""

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from whitenorm.lab.data.for_run import synthesize
from whitenorm.lab.execution.jobs import TASKS
from whitenorm.lab.networks.methods import make_method
from whitenorm.lab.records.run import Run, canonical_json
from whitenorm.lab.studies.study import Scale
from whitenorm.lab.training.optim import learning_rate, make_optimiser
from whitenorm.lab.training.trainer import Outcome


@dataclass(frozen=True)
class Trial:
    """What one iteration of one network came to; None for what its task doesn't have."""

    panel: str
    label: str
    run: Run
    parameters: float | None
    loss: float | None
    seconds: float


def dry_run(scale: Scale, device: str = "cpu") -> Iterator[Trial]:
    """Makes one iteration with every network of a scale, evaluates it and takes its probes.

    Each curve is tried at the first point of its grid; methods, optimizers and schedules of the
    other points are made, but not used.
    """
    seen: set[str] = set()
    for panel, curve in scale.curves():
        for point in curve.points():
            run = curve.seed_run(point, 0)
            make_method(**run.method)
            make_optimiser(run.optimiser, [nn.Parameter(torch.zeros(1))])
            learning_rate(run.schedule, run.optimiser["lr"], 0, 1)
        run = curve.seed_run(curve.points()[0], 0)
        parts = [run.task, run.dataset, run.model, run.first_convolution, run.method, run.probes]
        network = canonical_json(parts)
        if network not in seen:
            seen.add(network)
            begun = time.perf_counter()
            final = _try(run, device).final
            results = final.get("parameters"), final.get("train_loss")
            yield Trial(panel.name, curve.label, run, *results, time.perf_counter() - begun)


def _try(run: Run, device: str) -> Outcome:
    perceptron = run.model["name"] in ("mlp", "none")
    n = 128 if perceptron else 2  # wide networks are slow on large pictures
    short: dict[str, Any] = {"iterations": 1, "epochs": None, "batch_size": None}
    whole: dict[str, Any] = {"subset": {}, "validation": 0}  # of the made-up data
    with warnings.catch_warnings():
        # So few examples can't be whitened well; here they need not be.
        warnings.filterwarnings("ignore", "a batch of .* samples a channel cannot show")
        return TASKS[run.task](run.changed(short | whole), synthesize(run, n), device=device)
