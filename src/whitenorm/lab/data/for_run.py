r"""The data of a run: read, cut to its subset, or made up for a trial."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from whitenorm.lab.data.datasets import (
    SOURCES,
    DataError,
    Dataset,
    load_dataset,
    load_imagefolder,
    status,
    synthetic_dataset,
)
from whitenorm.lab.data.images import Pictures
from whitenorm.lab.data.sources import folder_of
from whitenorm.lab.records.run import Run, canonical_json

__all__ = ["load", "missing", "synthesise"]

WORKERS = 2


def load(run: Run, root: Path | None = None) -> Dataset | Pictures | None:
    """The data set of a run, with its subset and held-out part; None if it needs none.

    With the option ``stream`` the pictures stay on disk.
    """
    if run.dataset["name"] == "none":
        return None
    if run.dataset.get("stream"):
        return _stream(run, root)
    settings = {"dataset": run.dataset, "subset": run.subset, "validation": run.validation}
    return _load(canonical_json(settings), str(root or os.environ.get("WHITENORM_DATA", "")))


@lru_cache(maxsize=2)  # the runs of a process rarely need more at a time, and some are large
def _load(settings: str, root: str) -> Dataset:
    values = json.loads(settings)
    data = load_dataset(**values["dataset"], root=root or None)
    for part, n in values["subset"].items():
        data = _subset(data, part, n)
    return data.validation(values["validation"], seed=0) if values["validation"] else data


def _subset(data: Dataset, part: str, n: int) -> Dataset:
    if part not in ("train", "test"):
        raise ValueError(f"subset is of 'train' or 'test', got {part!r}")
    x, y = getattr(data, f"{part}_x"), getattr(data, f"{part}_y")
    if n > len(x):
        raise ValueError(f"{data.name} has {len(x)} {part} examples, {n} were asked for")
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:n]
    return replace(data, **{f"{part}_x": x[chosen], f"{part}_y": y[chosen]})


def _stream(run: Run, root: Path | None) -> Pictures:
    if run.subset or run.validation:
        raise ValueError("a streamed data set takes neither subset nor validation")
    options = {key: v for key, v in run.dataset.items() if key not in ("name", "stream")}
    name, size = run.dataset["name"], options.pop("size", 224)
    folder = folder_of(name, root)
    train = load_imagefolder(folder, "train", size, train=True, seed=run.seed, **options)
    return Pictures(name, train, load_imagefolder(folder, "val", size), WORKERS)


def synthesise(run: Run, n: int) -> Dataset | None:
    """A made-up data set of n examples in place of the run's."""
    if run.dataset["name"] == "none":
        return None
    left_out = ("stream", "colour") if run.dataset.get("stream") else ()
    return synthetic_dataset(
        n=n, **{key: v for key, v in run.dataset.items() if key not in left_out}
    )


def missing(names: Iterable[str], root: Path | None = None) -> dict[str, str]:
    """Which of these data sets aren't there, and for each what to do about it."""
    found: dict[str, str] = {}
    for name in names:
        if name == "none" or SOURCES[name].folder is None:
            continue
        try:
            state = next(row for row in status(root) if row.name == name)
        except DataError as error:
            found[name] = str(error)
            continue
        if state.state != "present":
            hint = f" (whitenorm data --fetch {name})" if state.may_fetch else ""
            found[name] = (
                f"{state.title} is {state.state} at {state.path}; it comes from "
                f"{state.where}{hint}"
            )
    return found
