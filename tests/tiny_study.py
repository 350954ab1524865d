"""A study that takes seconds, and a process that runs it and may be killed."""

import json
import sys
from pathlib import Path

import torch

from whitenorm.lab.execution.runner import run_study
from whitenorm.lab.records.record import Record
from whitenorm.lab.records.run import Run
from whitenorm.lab.studies.claims import final, lower
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import (
    FIRST_SEED,
    Claim,
    Curve,
    Panel,
    PaperNumber,
    Scale,
    Study,
    View,
)

BASE = Run(
    {"name": "digits"},
    {"name": "mlp", "hidden": [16]},
    {"name": "plain"},
    batch_size=64,
    epochs=4,
    subset={"train": 512, "test": 128},
)
EPOCHS = 30  # of the process that is to be killed
GRID = {"optimiser.lr": (0.05, 0.5)}


def tiny_study(probes=None, **changes):
    base = BASE.changed({**changes, "probes": probes or {}})
    methods = {"plain": {"name": "plain"}, "BN": {"name": "bn"}, "DBN": {"name": "dbn"}}
    curves = tuple(Curve(k, base.changed({"method": m}), GRID) for k, m in methods.items())
    return Study(
        name="tiny",
        title="A tiny study",
        reference="no figure",
        question="Does it run?",
        scales={
            "small": Scale(
                (Panel("digits", curves),), seeds=3, duration="seconds", selection=FIRST_SEED
            )
        },
        views=(View("loss", "Training loss", log="y"),),
        claims=(
            Claim("BN beats plain.", "its loss is", lower(final("train_loss"), [("BN", "plain")])),
        ),
        paper=(PaperNumber("digits", "BN", "test_error", 1.25, 0.5),),
    )


def tiny_results(**curves):
    """Results without a grid, from last losses, or whole curves of them, a list a seed."""
    made, records = [], {}
    for label, seeds in curves.items():
        method = {"name": "dbn", "group_size": 1 + len(made)}
        made.append(Curve(label, BASE.changed({"method": method})))
        for seed, values in enumerate(seeds):
            losses = values if isinstance(values, list) else [values]
            steps = list(range(1, len(losses) + 1))
            record = Record(
                made[-1].seed_run({}, seed),
                "tiny",
                "small",
                "diverged" if losses[-1] is None else "finished",
                {
                    "train_loss": losses[-1],
                    "test_error": losses[-1],
                    "seconds": 2.0 * len(losses),
                },
                {
                    "iteration": steps,
                    "seconds": [2.0 * step for step in steps],
                    "train_loss": losses,
                    "test_error": losses,
                },
                {"fisher": {"condition": losses}},
            )
            records[record.id] = record
    plan = Scale((Panel("digits", tuple(made)),), seeds=3, duration="")
    study = tiny_study()
    return Results(type(study)(**{**vars(study), "scales": {"small": plan}}), "small", records)


def comparable(record):
    """A record without what differs from one execution to the next: times and machine."""
    values = json.loads(record.to_json())
    for key in ("environment", "started"):
        values.pop(key)
    for part in (values["final"], values["history"]):
        for key in [key for key in part if key.startswith("seconds")]:
            part.pop(key)
    return values


def comparables(records):
    return {key: comparable(record) for key, record in records.items()}


def without_times(outcome):
    """An outcome, or a record, without what differs from one execution to the next."""
    history = {k: v for k, v in outcome.history.items() if k != "seconds"}
    final = {k: v for k, v in outcome.final.items() if not k.startswith("seconds")}
    return outcome.status, final, history, outcome.probes


def assert_same(a, b):
    """Nested values are the same, tensors to the bit."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


if __name__ == "__main__":
    run_study(
        tiny_study(epochs=EPOCHS),
        "small",
        Path(sys.argv[1]),
        executor="processes",
        workers=2,
        checkpoint_every=0.05,
    )
