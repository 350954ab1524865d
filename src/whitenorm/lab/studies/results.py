r"""Results: a study and its records. Figures, tables and verdicts read nothing else."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from whitenorm.lab.records.record import Record
from whitenorm.lab.studies.study import Choice, Curve, Panel, PaperNumber, Study, View

__all__ = ["Results", "Series", "Summary"]


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation over seeds.

    Args:
        values: One a seed that finished.
        diverged: How many seeds did not.
    """

    values: tuple[float, ...]
    diverged: int = 0

    @property
    def n(self) -> int:
        """How many seeds, diverged ones included."""
        return len(self.values) + self.diverged

    @property
    def mean(self) -> float:
        """Infinite if a seed diverged, not a number if there is none."""
        if self.diverged:
            return math.inf
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def spread(self) -> float:
        """Sample standard deviation; not a number for less than two seeds, or an infinite one."""
        if len(self.values) < 2 or not all(map(math.isfinite, self.values)):
            return math.nan
        return statistics.stdev(self.values)


@dataclass(frozen=True)
class Series:
    """A line to draw: mean over seeds, with the smallest and largest value at each point.

    On a logarithmic axis the mean is geometric, as the eye takes it.
    """

    label: str
    column: str
    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    records: tuple[Record, ...]

    @property
    def name(self) -> str:
        """For a legend: the label, and how many of its runs diverged."""
        diverged = sum(record.status == "diverged" for record in self.records)
        return (
            f"{self.label} ({diverged} of {len(self.records)} diverged)"
            if diverged
            else self.label
        )


class Results:
    """The records of a study at one scale.

    Args:
        study: Row of the table.
        scale: "small" or "paper".
        records: By identity; those that belong to no curve are left aside, in ``others``.
    """

    def __init__(self, study: Study, scale: str, records: Mapping[str, Record]) -> None:
        self.study = study
        self.scale_name = scale
        self.scale = study.scale(scale)
        self.all = dict(records)
        self._choices: dict[tuple[str, str], Choice] = {}

    @cached_property
    def _seeds(self) -> dict[str, list[Record]]:
        found: dict[str, list[Record]] = {}
        for record in self.all.values():
            found.setdefault(record.run.changed({"seed": 0}).id, []).append(record)
        return {key: sorted(runs, key=lambda r: r.run.seed) for key, runs in found.items()}

    @cached_property
    def others(self) -> list[Record]:
        """Records that no curve of the present table asks for."""
        known = {run.id for run in self.scale.grid_runs()}
        for _, curve in self.scale.curves():
            for point in curve.points():
                known |= {r.id for r in self._seeds.get(curve.seed_run(point, 0).id, [])}
        return [record for key, record in self.all.items() if key not in known]

    def panels(self, view: View) -> list[Panel]:
        """The panels that a view is for."""
        return [p for p in self.scale.panels if view.panels is None or p.name in view.panels]

    def panel(self, name: str) -> Panel:
        """The panel of that name."""
        return {panel.name: panel for panel in self.scale.panels}[name]

    def choice(self, curve: Curve) -> Choice:
        """What the curve's grid has told."""
        key = curve.run.id, str(curve.grid)  # all that a choice depends on besides the records
        if key not in self._choices:
            self._choices[key] = curve.choose(self.scale.selection, self.all)
        return self._choices[key]

    def records(self, curve: Curve) -> list[Record]:
        """The curve's runs that are drawn, by seed."""
        point = self.choice(curve).point
        return [] if point is None else self._seeds.get(curve.seed_run(point, 0).id, [])

    def final(self, curve: Curve, metric: str) -> Summary:
        """A last value over seeds; ``"seconds@0.1"`` is when the training loss came to 0.1."""
        clock, _, loss = metric.partition("@")
        if loss:
            return self.reaching(curve, float(loss), clock)
        return self._over_seeds(curve, lambda record: record.final.get(metric))

    def middle(self, curve: Curve, column: str) -> Summary:
        """log10 of the median of a column over the course of training, over seeds.

        For what spans orders of magnitude. What is no number (a condition number that is infinite)
        counts as infinite.
        """

        def median(record: Record) -> float | None:
            numbers = _infinite_for_none(record.column(column))
            return math.log10(statistics.median(numbers)) if numbers else None

        return self._over_seeds(curve, median)

    def at(self, curve: Curve, column: str, when: str) -> Summary:
        """A column at the "start" or the "end" of training, over seeds."""
        index = {"start": 0, "end": -1}[when]

        def value(record: Record) -> float | None:
            numbers = _infinite_for_none(record.column(column))
            return numbers[index] if numbers else None

        return self._over_seeds(curve, value)

    def reaching(self, curve: Curve, loss: float, clock: str) -> Summary:
        """What the clock shows when the training loss first is no more than this, over seeds."""

        def time(record: Record) -> float | None:
            points = zip(record.column(clock), record.column("train_loss"), strict=True)
            times = (t for t, value in points if value is not None and value <= loss)
            return next(times, math.inf)

        return self._over_seeds(curve, time)

    def _over_seeds(self, curve: Curve, value: Callable[[Record], float | None]) -> Summary:
        """The value of each run that finished and has one, and how many runs diverged."""
        records = self.records(curve)
        values = [value(record) for record in records if record.status != "diverged"]
        found = tuple(v for v in values if v is not None)
        return Summary(found, sum(record.status == "diverged" for record in records))

    def series(self, view: View, panel: Panel) -> list[Series]:
        """The lines of a view of a panel."""
        lines = []
        for curve in panel.curves:
            records = self.records(curve)
            finished = [r for r in records if r.status == "finished"] or records
            for column in view.y:
                line = _mean_line(finished, _abscissa(view.x, column), column, "y" in view.log)
                if line is not None:
                    lines.append(Series(curve.label, column, *line, records=tuple(records)))
        return lines

    def across(self, view: View, panels: Sequence[Panel]) -> list[Series]:
        """The lines of a view with the panels along its abscissa, at 0, 1, 2 and so on."""
        lines = []
        labels = dict.fromkeys(curve.label for panel in panels for curve in panel.curves)
        for label, column in product(labels, view.y):
            rows, records = [], []
            for place, panel in enumerate(panels):
                if all(curve.label != label for curve in panel.curves):
                    continue
                curve = panel.curve(label)
                values = [v for v in self.at(curve, column, view.x).values if math.isfinite(v)]
                if values:
                    rows.append((float(place), *_over(values, "y" in view.log)))
                    records += self.records(curve)
            if rows:
                x, mean, low, high = (list(part) for part in zip(*rows, strict=True))
                lines.append(Series(label, column, x, mean, low, high, records=tuple(records)))
        return lines

    def ours(self, number: PaperNumber) -> Summary | None:
        """What the records have in place of the paper's number; None if they don't."""
        try:
            panel = self.panel(number.panel)
            value = self.final(panel.curve(number.curve), number.metric)
            other = number.minus or number.over
            if other is None:
                return value if value.n else None
            base = self.final(panel.curve(other), number.metric)
        except KeyError:  # this scale has no such panel or curve
            return None
        if not value.values or not base.values or value.diverged or base.diverged:
            return None
        if number.minus:
            return Summary(tuple(v - base.mean for v in value.values))
        return Summary(tuple(v / base.mean for v in value.values))


def _infinite_for_none(values: Sequence[float | None]) -> list[float]:
    return [math.inf if value is None else value for value in values]


def _abscissa(x: str, y: str) -> str:
    probe, _, column = y.partition(".")
    return f"{probe}.{x}" if column else x


def _over(values: Sequence[float], geometric: bool) -> tuple[float, float, float]:
    """Mean, smallest and largest."""
    mean = statistics.geometric_mean if geometric and min(values) > 0 else statistics.fmean
    return mean(values), min(values), max(values)


def _mean_line(
    records: list[Record], x: str, y: str, geometric: bool
) -> tuple[list[float], list[float], list[float], list[float]] | None:
    """Mean over runs at each point, of the abscissa too, up to where the shortest run ends."""
    columns: list[tuple[list[Any], list[Any]]] = [(r.column(x), r.column(y)) for r in records]
    length = min((min(len(a), len(b)) for a, b in columns), default=0)
    rows = []
    for i in range(length):
        xs, ys = [a[i] for a, _ in columns], [b[i] for _, b in columns]
        if None not in xs and None not in ys:
            rows.append((statistics.fmean(xs), *_over(ys, geometric)))
    if not rows:
        return None
    return tuple(list(column) for column in zip(*rows, strict=True))  # type: ignore[return-value]
