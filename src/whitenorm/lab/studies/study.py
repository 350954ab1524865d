r"""What a study is: curves in panels, a grid for each, and the choice among a grid's points.

The studies themselves are rows of the table in :mod:`whitenorm.lab.studies.catalogue`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from whitenorm.lab.lookup import look_up
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
    # all.
    validation: int = 0
    seeds: tuple[int, ...] = (100,)  # of the grid's runs; of several, the median counts
    widen: tuple[str, ...] = ("optimiser.lr",)  # settings whose ends are never the last word

    @property
    def text(self) -> str:
        """In words."""
        name = self.metric.replace("_", " ").replace("train", "training")
        if self.validation:
            name = f"error on {self.validation:,} held-out training examples"
        of = f", the median of {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        return f"the lowest {name} at the end{of}"


# As the first records were made: the grid's runs are those of the first seed that is drawn.
FIRST_SEED = Selection(seeds=(0,), widen=())
# Where runs are short, as what one seed prefers may not be what a method prefers.
MEDIAN_OF_THREE = Selection(seeds=(100, 101, 102))
WIDER = 4  # how many values a grid gets at most beyond the ones it starts with, in each direction


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

    def grid_runs(self, point: Mapping[str, Any], selection: Selection) -> list[Run]:
        """The runs that judge a point, with the selection's seeds."""
        fixed = {"probes": {}, "validation": selection.validation}
        return [self.run.changed({**point, **fixed, "seed": seed}) for seed in selection.seeds]

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
            runs = self.grid_runs(point, selection)
            found = [records[run.id] for run in runs if run.id in records]
            values = [record.final.get(selection.metric) for record in found]
            score = statistics.median([math.inf if v is None else v for v in values] or [math.inf])
            scores.append((point, found, score))
            if len(found) == len(runs):
                lasted = sum(record.final.get("iterations") or 0 for record in found)
                tried.append((score, -lasted, point))
        best = min(tried, key=lambda entry: entry[:2], default=None)
        return Choice(best[2] if best else None, len(tried) == len(scores), scores)

    def widened(self, selection: Selection, records: Mapping[str, Record]) -> Curve:
        """The curve with as large a grid as the records ask for.

        Where the best value of a setting is the first or last one that was tried, the next one is
        tried too, as far away as the one before.
        """
        curve, most = self, {path: len(values) + WIDER for path, values in self.grid.items()}
        while (choice := curve.choose(selection, records)).complete and choice.point:
            grid = dict(curve.grid)
            for path in selection.widen:
                values = sorted(grid.get(path, ()))
                if len(values) < 2 or len(values) >= most[path]:
                    continue
                if choice.point[path] == values[-1]:
                    grid[path] = (*values, _rounded(values[-1] ** 2 / values[-2]))
                elif choice.point[path] == values[0]:
                    grid[path] = (_rounded(values[0] ** 2 / values[1]), *values)
            if grid == curve.grid:
                break
            curve = replace(curve, grid=grid)
        return curve


def _rounded(value: float) -> float:
    rounded = float(f"{value:.3g}")
    return int(rounded) if rounded.is_integer() else rounded


@dataclass(frozen=True)
class Choice:
    """The point that a grid chose."""

    point: dict[str, Any] | None  # the best so far; None if nothing has run
    complete: bool  # whether all points have run
    scores: list[tuple[dict[str, Any], list[Record], float]]  # of each point; empty without grid


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
    reduced: str = ""  # how it is smaller than the paper
    setting: str = ""  # what else is to be known of it
    seeds: int = 3
    selection: Selection = field(default_factory=Selection)

    def curves(self) -> list[tuple[Panel, Curve]]:
        """All curves with their panels."""
        return [(panel, curve) for panel in self.panels for curve in panel.curves]

    def only(self, names: Iterable[str]) -> Scale:
        """The scale with the panels of these names alone."""
        named = {panel.name: panel for panel in self.panels}
        chosen = {look_up(named, "panel", name).name for name in names}
        return replace(self, panels=tuple(p for p in self.panels if p.name in chosen))

    def grid_runs(self) -> list[Run]:
        """The runs that choose, each once."""
        return _once(
            run
            for _, curve in self.curves()
            for point in curve.points()
            if curve.grid
            for run in curve.grid_runs(point, self.selection)
        )

    def widened(self, records: Mapping[str, Record]) -> Scale:
        """The scale with as large grids as the records ask for; see :meth:`Curve.widened`."""
        return replace(
            self,
            panels=tuple(
                Panel(p.name, tuple(c.widened(self.selection, records) for c in p.curves))
                for p in self.panels
            ),
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
        """How many runs there are in all, if no grid is widened."""
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
    # of axis swapping; "correlations" for heat maps before and after a layer.
    kind: str = "line"
    x: str = "epoch"  # a column; across panels: "start" or "end" of training
    y: tuple[str, ...] = ("train_loss",)  # columns: the first is drawn solid, the second dashed
    log: str = ""  # logarithmic axes: "x", "y" or "xy"
    panels: tuple[str, ...] | None = None  # names; None for all
    crossing: tuple[str, str] | None = None  # labels; where one's line falls behind the other's


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
class Effect:
    """A difference or ratio with its 95% interval, and the probabilities behind it.

    ``above`` is the probability of such values, or of ones further below, if the true effect were
    no less than the bound it was compared with; ``below`` the same if it were no more. The
    interval lies below the bound where ``above`` is less than 0.025.
    """

    estimate: float
    low: float
    high: float
    above: float
    below: float
    ratio: bool = False
    beyond: str = ""  # "at least" or "at most", where runs ended too soon to tell


@dataclass(frozen=True)
class Comparison:
    """One comparison behind a verdict."""

    panel: str
    labels: tuple[str, ...]
    measure: str
    mark: str  # "supported", "undecided", "contradicted", or "not tested" if there is none
    text: str  # the numbers
    against: float = 1.0  # how likely such numbers are if what is claimed were true
    effect: Effect | None = None


@dataclass(frozen=True)
class Verdict:
    """What the records say about a claim."""

    status: str  # as a comparison's mark
    evidence: tuple[Comparison, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many comparisons have each mark."""
        marks = [comparison.mark for comparison in self.evidence]
        return {mark: marks.count(mark) for mark in dict.fromkeys(marks)}


@dataclass(frozen=True)
class Claim:
    """Something that the paper says, or a study beyond it, and how records judge it."""

    quote: str
    criterion: str  # what is compared, stated before any result was known
    judge: Callable[[Results], Verdict]
    headline: bool = False  # whether it is among the few that the README has


BEYOND = "Beyond the paper"
SMALL = "small"  # the scale that tries a study out and judges nothing


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
    forest: str = ""  # its name in the forest plot, if it belongs there beside the paper's
    # What the records came to, in a few sentences made from their numbers.
    summary: Callable[[Results], str] | None = None

    def scale(self, name: str, panels: Sequence[str] = ()) -> Scale:
        """The scale of that name, with the named panels alone if some are named."""
        if name in self.scales:
            return self.scales[name].only(panels) if panels else self.scales[name]
        there = ", ".join(self.scales)
        raise ValueError(f"study {self.name!r} has no scale {name!r}; it has {there}")
