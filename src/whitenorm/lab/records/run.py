r"""A run: everything that decides the outcome of one training, and nothing else.

A run is data. It serializes to canonical JSON, and the hash of that JSON is its identity, so the
same settings are recognized wherever they turn up: in a grid and among its seeds, in two panels of
a figure, before and after an interruption.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

Settings = Mapping[str, Any]
"""The name of a row in a table and its options, e.g. ``{"name": "sgd", "lr": 0.1}``."""


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text.

    Example:
        >>> canonical_json({"b": (1, 2), "a": 0.5})
        '{"a":0.5,"b":[1,2]}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Run:
    """The settings of one run.

    Example:
        >>> run = Run({"name": "digits"}, {"name": "mlp"}, {"name": "bn"}, epochs=2)
        >>> run.changed({"optimiser.lr": 0.5}).optimiser
        {'name': 'sgd', 'lr': 0.5}
        >>> run.id == Run(**run.settings()).id != run.changed({"seed": 1}).id
        True
    """

    dataset: Settings  # a row of DATASETS, and so on
    model: Settings
    method: Settings
    optimiser: Settings = field(default_factory=lambda: {"name": "sgd", "lr": 0.1})
    schedule: Settings = field(default_factory=lambda: {"name": "constant"})
    epochs: int | None = None  # the length, in passes over the training set; or:
    iterations: int | None = None
    batch_size: int | None = None  # None for the whole training set
    evaluate_every: int | None = None  # iterations between points of the curve; None: an epoch
    subset: Settings = field(default_factory=dict)  # examples to use: {"train": n, "test": n}
    validation: int = 0  # training examples to hold out and evaluate on instead of the test set
    # What to measure on the way: {"fisher": {"every": 20, "samples": 2000}}
    probes: Mapping[str, Settings] = field(default_factory=dict)
    # "drawn" as all weights, or "whitened" by patches of training pictures, and frozen
    first_convolution: str = "drawn"
    precision: str = "float32"  # or "float64", or "bf16" for autocast
    accumulate: int = 1  # into how many equal parts a batch is cut, to save memory
    channels_last: bool = False  # the memory layout of pictures and weights
    replicas: int = 1  # processes that share a batch; each normalizes with its own part of it
    synchronized: bool = False  # whether DBN layers use the statistics of all replicas instead
    seed: int = 0  # of initialization, order, augmentation and dropout
    task: str = "train"  # or another row of TASKS

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, _plain(getattr(self, f.name)))
        for name in ("dataset", "model", "method", "optimiser", "schedule"):
            value = getattr(self, name)
            if not isinstance(value, dict) or not isinstance(value.get("name"), str):
                raise ValueError(f"{name} must be {{'name': ..., options}}, got {value!r}")
        if (self.epochs is None) == (self.iterations is None):
            raise ValueError(
                f"give either epochs or iterations, got epochs={self.epochs!r} and "
                f"iterations={self.iterations!r}"
            )
        counts = ("epochs", "iterations", "batch_size", "evaluate_every", "accumulate", "replicas")
        for name in counts:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a positive integer, got {value!r}")

    def settings(self) -> dict[str, Any]:
        """All that isn't at its default, ready for JSON.

        Leaving the defaults out keeps the identity of a run when a later version adds a field.
        """
        values = vars(self)
        return {f.name: values[f.name] for f in fields(self) if values[f.name] != _default(f)}

    @property
    def id(self) -> str:
        """12 hexadecimal digits that stand for these settings."""
        return hashlib.sha256(canonical_json(self.settings()).encode()).hexdigest()[:12]

    def changed(self, changes: Mapping[str, Any]) -> Run:
        """A copy with some settings changed, ``{"optimiser.lr": 0.5, "seed": 1}``."""
        update: dict[str, Any] = {}
        for path, value in changes.items():
            name, _, option = path.partition(".")
            if name not in {f.name for f in fields(self)}:
                raise ValueError(f"a run has no setting {name!r} (in {path!r})")
            settings = update.get(name, getattr(self, name))
            update[name] = {**settings, option: value} if option else value
        return replace(self, **update)


def _plain(value: Any) -> Any:
    """As JSON gives it back, with one way to write a number: 1.0 is 1."""
    return json.loads(json.dumps(value, allow_nan=False), parse_float=_number)


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _default(f: Any) -> Any:
    return f.default_factory() if f.default_factory is not MISSING else f.default
