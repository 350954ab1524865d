r"""Results: a study and its records. Figures, tables and verdicts read nothing else."""

import math
import operator
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from whitenorm.lab.records.record import Record
from whitenorm.lab.studies.study import Choice, Curve, Panel, PaperNumber, Study, View


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation over seeds."""

    values: tuple[float, ...]  # of the seeds that finished
    diverged: int = 0  # how many seeds did not
    seeds: tuple[int, ...] = ()  # of the values

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
    records: Sequence[Record]
    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]

    @property
    def name(self) -> str:
        """For a legend: the label, and how many of its runs diverged."""
        diverged = sum(record.status == "diverged" for record in self.records)
        note = f" ({diverged} of {len(self.records)} diverged)" if diverged else ""
        return self.label + note


class Results:
    """The records of a study at one scale, by identity."""

    def __init__(self, study: Study, scale: str, records: Mapping[str, Record]) -> None:
        self.study = study
        self.scale_name = scale
        self.all = dict(records)
        self.scale = study.scale(scale).widened(self.all)
        self._choices: dict[tuple[str, str], Choice] = {}

    @cached_property
    def _seeds(self) -> dict[str, list[Record]]:
        found: dict[str, list[Record]] = {}
        for record in sorted(self.all.values(), key=lambda record: record.run.seed):
            found.setdefault(record.run.changed({"seed": 0}).id, []).append(record)
        return found

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

    def choice(self, curve: Curve) -> Choice:
        """What the curve's grid has told."""
        key = curve.run.id, str(curve.grid)  # all that a choice depends on besides the records
        if key not in self._choices:
            self._choices[key] = curve.choose(self.scale.selection, self.all)
        return self._choices[key]

    def records(self, curve: Curve) -> list[Record]:
        """The curve's runs that are drawn, by seed."""
        point, selection = self.choice(curve).point, self.scale.selection
        if point is None:
            return []
        found = self._seeds.get(curve.seed_run(point, 0).id, [])
        grid = () if 0 in selection.seeds else selection.seeds
        return [record for record in found if record.run.seed not in grid]

    def final(self, curve: Curve, metric: str) -> Summary:
        """A last value over seeds, or one on the way.

        ``"seconds@0.1"``: when the training loss came to 0.1; ``"seconds@30%"``: when the test
        error came to 30%; ``"test_error@same time"``: see :meth:`in_same_time`.
        """
        column, _, goal = metric.partition("@")
        if goal == "same time":
            return self.in_same_time(curve, column)
        if goal.endswith("%"):
            return self.reaching(curve, float(goal[:-1]), column, of="test_error")
        if goal:
            return self.reaching(curve, float(goal), column)
        return self._over_seeds(curve, lambda record: record.final.get(metric))

    def middle(self, curve: Curve, column: str) -> Summary:
        """The median of a column over the course of training, over seeds.

        What is no number (a condition number that is infinite) counts as infinite.
        """
        return self._of_column(curve, column, statistics.median)

    def at(self, curve: Curve, column: str, when: str) -> Summary:
        """A column at the "start" or the "end" of training, over seeds."""
        return self._of_column(curve, column, operator.itemgetter({"start": 0, "end": -1}[when]))

    def _of_column(
        self, curve: Curve, column: str, value: Callable[[list[float]], float]
    ) -> Summary:
        def of(record: Record) -> float | None:
            numbers = [math.inf if v is None else v for v in record.column(column)]
            return value(numbers) if numbers else None

        return self._over_seeds(curve, of)

    def reaching(self, curve: Curve, goal: float, clock: str, of: str = "train_loss") -> Summary:
        """What the clock shows when a column, the training loss, first is no more than the goal.

        Infinite for a run that doesn't get there.
        """

        def time(record: Record) -> float | None:
            points = zip(record.column(clock), record.column(of), strict=True)
            times = (t for t, value in points if value is not None and value <= goal)
            return next(times, math.inf)

        return self._over_seeds(curve, time)

    def in_same_time(self, curve: Curve, column: str) -> Summary:
        """A column's last value within the seconds that the quickest run of the seed takes.

        In the same panel. The runs of one seed were made on one machine, others maybe on another.
        """
        (panel,) = (panel for panel in self.scale.panels if curve in panel.curves)
        ends = [self.at(each, "seconds", "end") for each in panel.curves]

        def value(record: Record) -> float | None:
            seed = record.run.seed
            of_seed = (end.values[end.seeds.index(seed)] for end in ends if seed in end.seeds)
            deadline = min(of_seed, default=math.inf)
            points = zip(record.column("seconds"), record.column(column), strict=True)
            by_then = [v for t, v in points if t is not None and t <= deadline]
            return by_then[-1] if by_then else None

        return self._over_seeds(curve, value)

    def _over_seeds(self, curve: Curve, value: Callable[[Record], float | None]) -> Summary:
        """The value of each run that finished and has one, and how many runs diverged."""
        records = self.records(curve)
        finished = [record for record in records if record.status != "diverged"]
        found = {record.run.seed: value(record) for record in finished}
        values = {seed: v for seed, v in found.items() if v is not None}
        return Summary(tuple(values.values()), len(records) - len(finished), tuple(values))

    def series(self, view: View, panel: Panel) -> list[Series]:
        """The lines of a view of a panel: means at each point, to where the shortest run ends."""
        lines = []
        for curve, column in product(panel.curves, view.y):
            records = self.records(curve)
            finished = [r for r in records if r.status == "finished"] or records
            probe, dot, _ = column.rpartition(".")  # a probe has an abscissa of its own
            xs, ys = _by_point(finished, probe + dot + view.x), _by_point(finished, column)
            points = [(x, y) for x, y in zip(xs, ys, strict=False) if None not in x + y]
            rows = [(statistics.fmean(x), *_over(y, view)) for x, y in points]
            lines += _line(curve.label, column, records, rows)
        return lines

    def across(self, view: View, panels: Sequence[Panel]) -> list[Series]:
        """The lines of a view with the panels along its abscissa, at 0, 1, 2 and so on."""
        lines = []
        labels = dict.fromkeys(curve.label for panel in panels for curve in panel.curves)
        for label, column in product(labels, view.y):
            rows, records = [], []
            places = [(i, c) for i, p in enumerate(panels) for c in p.curves if c.label == label]
            for place, curve in places:
                values = [v for v in self.at(curve, column, view.x).values if math.isfinite(v)]
                if values:
                    rows.append((float(place), *_over(values, view)))
                    records += self.records(curve)
            lines += _line(label, column, records, rows)
        return lines

    def ours(self, number: PaperNumber) -> Summary | None:
        """What the records have in place of the paper's number; None if they don't."""
        curves = {c.label: c for p, c in self.scale.curves() if p.name == number.panel}
        other = number.minus or number.over
        if number.curve not in curves or (other and other not in curves):
            return None  # this scale has no such panel or curve
        value = self.final(curves[number.curve], number.metric)
        if not other:
            return value if value.n else None
        base = self.final(curves[other], number.metric)
        if not value.values or not base.values or value.diverged or base.diverged:
            return None
        combined = operator.sub if number.minus else operator.truediv
        ours = tuple(combined(v, base.mean) for v in value.values)
        return Summary(ours, seeds=value.seeds)


def _by_point(records: Sequence[Record], column: str) -> Iterator[tuple[Any, ...]]:
    """The values of all records at each point of a column, as far as the shortest one goes."""
    return zip(*(record.column(column) for record in records), strict=False)


def _over(values: Sequence[float], view: View) -> tuple[float, float, float]:
    """Mean, smallest and largest."""
    geometric = "y" in view.log and min(values) > 0
    mean = statistics.geometric_mean(values) if geometric else statistics.fmean(values)
    return mean, min(values), max(values)


def _line(
    label: str, column: str, records: list[Record], rows: Sequence[tuple[float, ...]]
) -> list[Series]:
    """The line through rows of (x, mean, low, high); none if there are no rows."""
    return [Series(label, column, records, *map(list, zip(*rows, strict=True)))] if rows else []
