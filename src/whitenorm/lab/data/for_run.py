r"""What a run uses of a data set: all of it, a subset, or a made-up stand-in for a trial."""

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from whitenorm.lab.data.datasets import Dataset, load_dataset, read_files, synthetic_dataset
from whitenorm.lab.data.images import Pictures, load_imagefolder
from whitenorm.lab.data.sources import DataError, folder_of, status
from whitenorm.lab.lookup import check_options, choose, look_up
from whitenorm.lab.records.run import Run, canonical_json


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


@lru_cache(maxsize=2)  # few, since some are large
def _load(settings: str, root: str) -> Dataset:
    values = json.loads(settings)
    data = load_dataset(**values["dataset"], root=root or None)
    for part, n in values["subset"].items():
        choose("a part of subset", part, ("train", "test"))
        x, y = getattr(data, f"{part}_x"), getattr(data, f"{part}_y")
        if n > len(x):
            raise ValueError(f"{data.name} has {len(x)} {part} examples, {n} were asked for")
        chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:n]
        data = replace(data, **{f"{part}_x": x[chosen], f"{part}_y": y[chosen]})
    return data.validation(values["validation"], seed=0) if values["validation"] else data


def _stream(run: Run, root: Path | None) -> Pictures:
    if run.subset or run.validation:
        raise ValueError("a streamed data set takes neither subset nor validation")
    name = run.dataset["name"]
    options = {key: v for key, v in run.dataset.items() if key not in ("name", "stream")}
    check_options("streamed data set", name, options, ("size", "colour"))
    folder = folder_of(name, root)
    train = load_imagefolder(folder, "train", train=True, seed=run.seed, **options)
    return Pictures(name, train, load_imagefolder(folder, "val", train.size))


def synthesize(run: Run, n: int) -> Dataset | None:
    """A made-up data set of n examples in place of the run's."""
    if run.dataset["name"] == "none":
        return None
    left_out = ("stream", "colour") if run.dataset.get("stream") else ()
    options = {key: v for key, v in run.dataset.items() if key not in left_out}
    return synthetic_dataset(n=n, **options)


def unreadable(names: Iterable[str], root: Path | None = None) -> dict[str, str]:
    """Which of these data sets are there and can't be read, and for each what is wrong.

    ImageNet isn't tried, which would take hours.
    """
    found = {}
    for name in names:
        if name not in ("none", "imagenet"):
            try:
                read_files(name, root)
            except DataError as error:
                found[name] = str(error)
    return found


def missing(names: Iterable[str], root: Path | None = None) -> dict[str, str]:
    """Which of these data sets aren't there, and for each what to do about it."""
    rows = {row.name: row for row in status(root)}
    found = {}
    for row in (look_up(rows, "data set", name) for name in names if name != "none"):
        if row.state not in ("embedded", "present"):
            hint = f" (whitenorm data --fetch {row.name})" if row.may_fetch else ""
            origin = f"it comes from {row.where}{hint}"
            found[row.name] = f"{row.title} is {row.state} at {row.path}; {origin}"
    return found
