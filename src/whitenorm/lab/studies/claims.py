r"""How records judge a claim: comparisons over seeds, put together to a verdict.

One curve is *clearly* below another if the difference of their means over seeds is more than twice
its standard error, sqrt(s1^2 / n1 + s2^2 / n2). A claim holds if all its comparisons do, holds in
part if some do, and does not hold if none does. A diverged run counts as infinitely bad.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from whitenorm.lab.studies.results import Results, Summary
from whitenorm.lab.studies.study import Curve, Verdict
from whitenorm.lab.studies.wording import metric_name, number

Judge = Callable[[Results], Verdict]
# What is compared of some curves: its name, and each curve's values over seeds.
Measure = Callable[[Results, Sequence[Curve]], tuple[str, list[Summary]]]
Pairs = Iterable[tuple[str, str]]  # of labels

_CLOCKS = {"iteration": "updates", "epoch": "epochs", "seconds": "seconds"}
_MARKS = {True: "✓", False: "✗", None: "·"}


def compare(a: Summary, b: Summary) -> bool | None:
    """Whether a is clearly below b: True, False if above or not clear, None without records."""
    if a.n == 0 or b.n == 0:
        return None
    if math.isinf(a.mean) or math.isinf(b.mean):
        return a.mean < b.mean
    if a.n < 2 or b.n < 2:
        return None  # without a spread nothing is clear
    error = math.sqrt(a.spread**2 / a.n + b.spread**2 / b.n)
    return b.mean - a.mean > 2 * error


def final(metric: str) -> Measure:
    """The last value of a metric."""
    return lambda results, curves: (_words(metric), [results.final(c, metric) for c in curves])


def at(column: str, when: str) -> Measure:
    """A column at the "start" or the "end" of training."""
    name = f"{_words(column)} at the {when}"
    return lambda results, curves: (name, [results.at(c, column, when) for c in curves])


def middle(column: str) -> Measure:
    """log10 of the median of a column over training."""
    name = f"log10 of the median {_words(column)}"
    return lambda results, curves: (name, [results.middle(c, column) for c in curves])


def _words(column: str) -> str:
    """A column in words, without its unit."""
    return metric_name(column).partition(" (")[0]


def lower(measure: Measure, pairs: Pairs, panels: Sequence[str] | None = None) -> Judge:
    """Whether, of each pair (winner, loser), the winner's measure is clearly lower.

    In every panel that has both, or in the named ones.
    """
    return _judge(measure, pairs, compare, panels)


def no_higher(measure: Measure, pairs: Pairs, by: float = 0.0) -> Judge:
    """Whether, of each pair (one, other), the one's measure isn't clearly above the other's.

    By more than ``by``, if it is given: a difference that is clear may still not matter.
    """

    def holds(one: Summary, other: Summary) -> bool | None:
        above = compare(other, one)
        return None if above is None else not (above and one.mean - other.mean > by)

    return _judge(measure, pairs, holds)


def faster(pairs: Pairs, clock: str, panels: Sequence[str] | None = None) -> Judge:
    """Whether, of each pair, the winner clearly needs less of the clock for the same loss.

    The loss to reach is the highest last training loss of all runs of both curves, so that every
    run gets there. If a run diverged, the last losses are compared instead.
    """

    def time(results: Results, curves: Sequence[Curve]) -> tuple[str, list[Summary]]:
        name, losses = final("train_loss")(results, curves)
        if any(loss.diverged for loss in losses):
            return name, losses
        goal = max((value for loss in losses for value in loss.values), default=math.nan)
        name = f"{_CLOCKS[clock]} to loss {goal:.3g}"
        return name, [results.reaching(curve, goal, clock) for curve in curves]

    return lower(time, pairs, panels)


def ratio_within(metric: str, over: tuple[str, str], low: float, high: float) -> Judge:
    """Whether one curve's last value over another's lies within bounds, on average."""

    def ratio(top: Summary, bottom: Summary) -> float:  # of the runs that finished
        return Summary(top.values).mean / Summary(bottom.values).mean

    def holds(top: Summary, bottom: Summary) -> bool | None:
        return low <= ratio(top, bottom) <= high if top.values and bottom.values else None

    def text(labels: Sequence[str], values: Sequence[Summary]) -> str:
        if not all(summary.values for summary in values):
            return _each_value(labels, values)
        return f"{' / '.join(labels)} = {ratio(*values):.3g}"

    return _judge(final(metric), [over], holds, text=text)


def at_least(measure: Measure, panel: str, label: str, value: float) -> Judge:
    """Whether a curve's measure is no less than a value, on average."""

    def holds(found: Summary) -> bool | None:
        return found.mean >= value if found.n else None

    def text(labels: Sequence[str], values: Sequence[Summary]) -> str:
        return f"{_each_value(labels, values)}, at least {value:g} expected"

    return _judge(measure, [(label,)], holds, [panel], text)


def together(*judges: Judge) -> Judge:
    """All of them: holds if each does, in part if any does at least in part."""

    def judge(results: Results) -> Verdict:
        verdicts = [each(results) for each in judges]
        evidence = tuple(line for verdict in verdicts for line in verdict.evidence)
        statuses = {v.status for v in verdicts}
        if len(statuses) == 1:
            return Verdict(statuses.pop(), evidence)
        some = {"holds", "holds in part"} & statuses
        return Verdict("holds in part" if some else "does not hold", evidence)

    return judge


def _each_value(labels: Sequence[str], values: Sequence[Summary]) -> str:
    return ", ".join(f"{label} {_number(v)}" for label, v in zip(labels, values, strict=True))


def _judge(
    measure: Measure,
    compared: Iterable[tuple[str, ...]],
    holds: Callable[..., bool | None],
    panels: Sequence[str] | None = None,
    text: Callable[[Sequence[str], Sequence[Summary]], str] = _each_value,
) -> Judge:
    """Asks whether the measures of curves are as claimed, in each panel that has these curves.

    Args:
        measure: Of the curves.
        compared: Labels of the curves of each comparison.
        holds: Of their values, in this order; None if it can't be told.
        panels: Names of the panels to look in; None for all.
        text: The values in words, for the evidence.
    """
    compared = tuple(compared)

    def judge(results: Results) -> Verdict:
        found, evidence = [], []
        for panel in results.scale.panels:
            curves = {curve.label: curve for curve in panel.curves}
            for labels in compared:
                if (panels is None or panel.name in panels) and curves.keys() >= set(labels):
                    name, values = measure(results, [curves[label] for label in labels])
                    found.append(holds(*values))
                    words = f"{panel.name}: {text(labels, values)} ({name})"
                    evidence.append(f"{_MARKS[found[-1]]} {words}")
        return Verdict(_status(found), tuple(evidence))

    return judge


def _status(found: Sequence[bool | None]) -> str:
    if all(holds is None for holds in found):
        return "not tested"
    if all(found):
        return "holds"
    return "holds in part" if any(found) else "does not hold"


def _number(summary: Summary) -> str:
    if summary.n == 0:
        return "no record"
    if summary.diverged:
        return f"diverged ({summary.diverged} of {summary.n})"
    return f"{number(summary.mean, summary.spread)} (n={summary.n})"
