r"""What a study is: curves in panels, a grid for each, and the choice among a grid's points.

The studies themselves are rows of the table in :mod:`whitenorm.lab.studies.catalogue`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from whitenorm.lab.records.record import Record
from whitenorm.lab.records.run import Run, Settings

if TYPE_CHECKING:
    from whitenorm.lab.studies.results import Results

Grid = Mapping[str, Sequence[Any]]
"""Values to try for some settings, e.g. ``{"optimiser.lr": (0.1, 1)}``."""


@dataclass(frozen=True)
class Selection:
    """How a point of a grid is chosen, before the seeds run."""

    metric: str = "train_loss"  # of a record's last values; the lowest is chosen
    # Training examples that the grid's runs hold out and are judged on; the seeds' runs train on
    # all. With 0 and the same seed, the grid's runs are those of the first seed.
    validation: int = 0
    seed: int = 0  # of the grid's runs; one that isn't drawn keeps choice and result apart

    @property
    def text(self) -> str:
        """In words."""
        name = self.metric.replace("_", " ").replace("train", "training")
        if self.validation:
            name = f"error on {self.validation:,} held-out training examples"
        return f"the lowest {name} at the end"


@dataclass(frozen=True)
class Curve:
    """One line of a figure or one cell of a table."""

    label: str
    run: Run  # the seed is filled in, and probes are left out of the grid's runs
    grid: Grid = field(default_factory=dict)

    def points(self) -> list[dict[str, Any]]:
        """All points of the grid; one without changes if there is no grid."""
        return [
            dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())
        ]

    def grid_run(self, point: Mapping[str, Any], selection: Selection) -> Run:
        """The run that judges a point, with the selection's seed."""
        fixed = {"seed": selection.seed, "probes": {}, "validation": selection.validation}
        return self.run.changed({**point, **fixed})

    def seed_run(self, point: Mapping[str, Any], seed: int) -> Run:
        """A run of a point that is drawn."""
        return self.run.changed({**point, "seed": seed})

    def choose(self, selection: Selection, records: Mapping[str, Record]) -> Choice:
        """The best point of the grid, from the records there are.

        A diverged run is worse than any other; among such, the one that lasted longest is best.
        """
        if not self.grid:
            return Choice({}, True, [])
        scores, tried = [], []
        for point in self.points():
            record = records.get(self.grid_run(point, selection).id)
            value = record.final.get(selection.metric) if record else None
            score = math.inf if value is None else value
            scores.append((point, record, score))
            if record:
                tried.append((score, -(record.final.get("iterations") or 0), point))
        best = min(tried, key=lambda entry: entry[:2], default=None)
        return Choice(best[2] if best else None, len(tried) == len(scores), scores)


@dataclass(frozen=True)
class Choice:
    """The point that a grid chose."""

    point: dict[str, Any] | None  # the best so far; None if nothing has run
    complete: bool  # whether all points have run
    scores: list[tuple[dict[str, Any], Record | None, float]]  # of each point; empty without grid


@dataclass(frozen=True)
class Panel:
    """Curves that are drawn together; tables have a panel for each network."""

    name: str
    curves: tuple[Curve, ...]

    @classmethod
    def of_methods(
        cls, name: str, run: Run, methods: Mapping[str, Settings], grid: Grid | None = None
    ) -> Panel:
        """A panel with a curve for each method, all else the same."""
        curves = {label: {"method": method} for label, method in methods.items()}
        return panels(run, {name: {}}, curves, grid)[0]

    def curve(self, label: str) -> Curve:
        """The curve of that label."""
        return {curve.label: curve for curve in self.curves}[label]


Panels = tuple[Panel, ...]
Changes = Mapping[str, Settings]
"""By name, what is changed in a run: ``{"4 layers": {"model.depth": 4}, ...}``."""


def panels(run: Run, variants: Changes, curves: Changes, grid: Grid | None = None) -> Panels:
    """A panel for each variant of a run, with the same curves in each."""

    def panel(name: str, variant: Run) -> Panel:
        runs = {label: variant.changed(changes) for label, changes in curves.items()}
        return Panel(name, tuple(Curve(label, run, grid or {}) for label, run in runs.items()))

    return tuple(panel(name, run.changed(changes)) for name, changes in variants.items())


@dataclass(frozen=True)
class Scale:
    """A study at one size."""

    panels: Panels
    duration: str  # roughly, and on what
    reduced: str = ""  # how it differs from the paper
    seeds: int = 3
    selection: Selection = field(default_factory=Selection)

    def curves(self) -> list[tuple[Panel, Curve]]:
        """All curves with their panels."""
        return [(panel, curve) for panel in self.panels for curve in panel.curves]

    def grid_runs(self) -> list[Run]:
        """The runs that choose, each once."""
        return _once(
            curve.grid_run(point, self.selection)
            for _, curve in self.curves()
            for point in curve.points()
            if curve.grid
        )

    def seed_runs(self, records: Mapping[str, Record], seeds: int) -> list[Run]:
        """The runs that are drawn, each once, given the grid's records."""
        chosen = [(curve, curve.choose(self.selection, records)) for _, curve in self.curves()]
        return _once(
            curve.seed_run(choice.point, seed)
            for seed in range(seeds)
            for curve, choice in chosen
            if choice.point is not None
        )

    def count(self, seeds: int | None = None) -> int:
        """How many runs there are in all, whatever the grids choose."""
        runs = self.grid_runs()
        for _, curve in self.curves():
            point = curve.points()[0]  # stands for the chosen one
            runs += [curve.seed_run(point, seed) for seed in range(seeds or self.seeds)]
        return len(_once(runs))

    def datasets(self) -> list[str]:
        """Names of the data sets that it needs."""
        return list(dict.fromkeys(curve.run.dataset["name"] for _, curve in self.curves()))


def _once(runs: Iterable[Run]) -> list[Run]:
    return list({run.id: run for run in runs}.values())


@dataclass(frozen=True)
class View:
    """Something to draw of the panels."""

    name: str  # for file names
    title: str
    # "line"; "across" for one plot with the panels along the abscissa; "swap" for the illustration
    # of axis swapping.
    kind: str = "line"
    x: str = "epoch"  # a column; across panels: "start" or "end" of training
    y: tuple[str, ...] = ("train_loss",)  # columns: the first is drawn solid, the second dashed
    log: str = ""  # logarithmic axes: "x", "y" or "xy"
    panels: tuple[str, ...] | None = None  # names; None for all


@dataclass(frozen=True)
class PaperNumber:
    """A number that the paper prints, to be set beside ours."""

    panel: str
    curve: str
    metric: str
    value: float
    spread: float | None = None
    minus: str | None = None  # label of the curve that is subtracted, if it is a difference
    over: str | None = None  # label of the curve that it is divided by, if it is a ratio


@dataclass(frozen=True)
class Verdict:
    """What the records say about a claim."""

    status: str  # "holds", "holds in part", "does not hold" or "not tested"
    evidence: tuple[str, ...] = ()  # the numbers behind it


@dataclass(frozen=True)
class Claim:
    """Something that the paper says, or a study beyond it, and how records judge it."""

    quote: str
    criterion: str  # what is compared, stated before any result was known
    judge: Callable[[Results], Verdict]


BEYOND = "Beyond the paper"


@dataclass(frozen=True)
class Study:
    """A figure or table of the paper, or a question beyond it."""

    name: str
    title: str
    reference: str  # "Figure 3", or BEYOND
    question: str
    scales: Mapping[str, Scale]
    views: tuple[View, ...]
    claims: tuple[Claim, ...] = ()
    metrics: tuple[str, ...] = ("train_loss", "test_error")  # last values to tabulate
    paper: tuple[PaperNumber, ...] = ()
    # Where the paper's text and the authors' scripts differ, and what is done here.
    notes: tuple[str, ...] = ()

    def scale(self, name: str) -> Scale:
        """The scale of that name."""
        if name in self.scales:
            return self.scales[name]
        there = ", ".join(self.scales)
        raise ValueError(f"study {self.name!r} has no scale {name!r}; it has {there}")
