r"""How records judge a claim: comparisons over seeds, put together to a verdict.

One curve is *clearly* below another if the difference of their means over seeds is more than twice
its standard error, sqrt(s1^2 / n1 + s2^2 / n2). A claim holds if all its comparisons do, holds in
part if some do, and does not hold if none does. A diverged run counts as infinitely bad.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from whitenorm.lab.studies.results import Results, Summary
from whitenorm.lab.studies.study import Curve, Panel, Verdict
from whitenorm.lab.studies.wording import metric_name, number

__all__ = [
    "at",
    "at_least",
    "compare",
    "faster",
    "final",
    "lower",
    "middle",
    "no_higher",
    "ratio_within",
    "together",
]

Judge = Callable[[Results], Verdict]


@dataclass(frozen=True)
class Measure:
    """A number of a curve, over seeds: what it is, and how results give it."""

    name: str
    of: Callable[[Results, Curve], Summary]


@dataclass(frozen=True)
class Comparison:
    """One comparison: what was compared, and whether it came out as claimed; None if untested."""

    text: str
    holds: bool | None


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
    return Measure(_words(metric), lambda results, curve: results.final(curve, metric))


def at(column: str, when: str) -> Measure:
    """A column at the "start" or the "end" of training."""
    name = f"{_words(column)} at the {when}"
    return Measure(name, lambda results, curve: results.at(curve, column, when))


def middle(column: str) -> Measure:
    """log10 of the median of a column over training."""
    name = f"log10 of the median {_words(column)}"
    return Measure(name, lambda results, curve: results.middle(curve, column))


def _words(column: str) -> str:
    """A column in words, without its unit."""
    return metric_name(column).partition(" (")[0]


def lower(
    measure: Measure,
    pairs: Iterable[tuple[str, str]],
    panels: Sequence[str] | None = None,
) -> Judge:
    """Whether, of each pair (winner, loser), the winner's measure is clearly lower.

    In every panel that has both, or in the named ones.
    """

    def comparison(results: Results, panel: Panel, winner: Curve, loser: Curve) -> Comparison:
        a, b = measure.of(results, winner), measure.of(results, loser)
        return Comparison(_text(panel, winner, a, loser, b, measure.name), compare(a, b))

    return _each_pair(comparison, pairs, panels)


def no_higher(measure: Measure, pairs: Iterable[tuple[str, str]]) -> Judge:
    """Whether, of each pair (one, other), the one's measure isn't clearly above the other's."""

    def comparison(results: Results, panel: Panel, one: Curve, other: Curve) -> Comparison:
        a, b = measure.of(results, one), measure.of(results, other)
        above = compare(b, a)
        holds = None if above is None else not above
        return Comparison(_text(panel, one, a, other, b, measure.name), holds)

    return _each_pair(comparison, pairs)


def faster(
    pairs: Iterable[tuple[str, str]], clock: str, panels: Sequence[str] | None = None
) -> Judge:
    """Whether, of each pair, the winner clearly needs less of the clock for the same loss.

    The loss to reach is the highest last training loss of all runs of both curves, so that every
    run gets there. If a run diverged, the last losses are compared instead.
    """

    def comparison(results: Results, panel: Panel, winner: Curve, loser: Curve) -> Comparison:
        a, b = (results.final(curve, "train_loss") for curve in (winner, loser))
        what = "training loss"
        if not a.diverged and not b.diverged:
            goal = max((*a.values, *b.values), default=math.nan)
            a, b = (results.reaching(curve, goal, clock) for curve in (winner, loser))
            what = f"{_CLOCKS[clock]} to loss {goal:.3g}"
        return Comparison(_text(panel, winner, a, loser, b, what), compare(a, b))

    return _each_pair(comparison, pairs, panels)


def ratio_within(metric: str, over: tuple[str, str], low: float, high: float) -> Judge:
    """Whether one curve's last value over another's lies within bounds, on average."""

    def comparison(results: Results, panel: Panel, top: Curve, bottom: Curve) -> Comparison | None:
        a, b = results.final(top, metric), results.final(bottom, metric)
        if not a.values or not b.values:
            return None
        ratio = Summary(a.values).mean / Summary(b.values).mean  # of the runs that finished
        text = f"{panel.name}: {top.label} / {bottom.label} = {ratio:.3g} ({_words(metric)})"
        return Comparison(text, low <= ratio <= high)

    return _each_pair(comparison, [over])


def at_least(measure: Measure, panel: str, label: str, value: float) -> Judge:
    """Whether a curve's measure is no less than a value, on average."""

    def judge(results: Results) -> Verdict:
        found = []
        for owner, curve in results.scale.curves():
            if (owner.name, curve.label) == (panel, label):
                summary = measure.of(results, curve)
                expected = f"at least {value:g} expected ({measure.name})"
                text = f"{panel}: {label} {_number(summary)}, {expected}"
                found.append(Comparison(text, summary.mean >= value if summary.n else None))
        return _verdict(found)

    return judge


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


def _each_pair(
    comparison: Callable[[Results, Panel, Curve, Curve], Comparison | None],
    pairs: Iterable[tuple[str, str]],
    panels: Sequence[str] | None = None,
) -> Judge:
    """Compares the two curves of each pair of labels, in each panel that has both.

    Args:
        comparison: Of two curves; None if they can't be compared.
        pairs: Of labels.
        panels: Names of the panels to look in; None for all.
    """
    pairs = tuple(pairs)

    def judge(results: Results) -> Verdict:
        found = []
        for panel in results.scale.panels:
            curves = {curve.label: curve for curve in panel.curves}
            for one, other in pairs:
                if (panels is None or panel.name in panels) and {one, other} <= curves.keys():
                    found.append(comparison(results, panel, curves[one], curves[other]))
        return _verdict([each for each in found if each is not None])

    return judge


def _verdict(found: Sequence[Comparison]) -> Verdict:
    evidence = tuple(f"{_MARKS[c.holds]} {c.text}" for c in found)
    tested = [c.holds for c in found if c.holds is not None]
    if not tested:
        return Verdict("not tested", evidence)
    if all(tested) and len(tested) == len(found):
        return Verdict("holds", evidence)
    return Verdict("holds in part" if any(tested) else "does not hold", evidence)


_CLOCKS = {"iteration": "updates", "epoch": "epochs", "seconds": "seconds"}
_MARKS = {True: "✓", False: "✗", None: "·"}


def _text(panel: Panel, a: Curve, value_a: Summary, b: Curve, value_b: Summary, what: str) -> str:
    values = f"{a.label} {_number(value_a)}, {b.label} {_number(value_b)}"
    return f"{panel.name}: {values} ({what})"


def _number(summary: Summary) -> str:
    if summary.n == 0:
        return "no record"
    if summary.diverged:
        return f"diverged ({summary.diverged} of {summary.n})"
    return f"{number(summary.mean, summary.spread)} (n={summary.n})"
