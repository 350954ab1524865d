r"""How records judge a claim: comparisons over seeds, put together to a verdict.

A comparison is *supported* if the 95% interval of its effect lies where the claim says,
*contradicted* if it lies on the other side, and *undecided* otherwise. Effects are differences of
errors, and ratios of what spans orders of magnitude (losses, times, condition numbers). Seeds are
paired where they share initialization and order.

A claim is supported if all of its comparisons are. It is contradicted if one of them is by an
interval that is wider the more comparisons there are (Bonferroni's), for one of twenty is
contradicted by chance. Otherwise it is undecided. A competitor that diverged counts for nobody; a
DBN or group whitening that did, where it is said to be better, counts against it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import NamedTuple

from whitenorm.lab.studies.effects import LEVEL, difference, mean
from whitenorm.lab.studies.results import Results, Summary
from whitenorm.lab.studies.study import Comparison, Curve, Effect, Verdict
from whitenorm.lab.studies.wording import CLOCKS, effect_text, number, without_unit

Judge = Callable[[Results], Verdict]
Pairs = Iterable[tuple[str, str]]  # of labels
GOALS = (0.1, 0.01, 0.001)  # training losses to reach
TAIL = (1 - LEVEL) / 2
MARKS = {"supported": "✓", "contradicted": "✗", "undecided": "·", "not tested": "-"}

_LOGARITHMIC = ("train_loss", "test_loss", "seconds", "seconds_per_iteration")


@dataclass(frozen=True)
class Measure:
    """What is compared of curves."""

    name: str
    of: Callable[[Results, Curve], Summary]
    logarithmic: bool = False  # compared by ratios
    # What a run that is infinitely far has reached at least, such as the length of its training.
    least: Callable[[Results, Curve], Summary] | None = None


def final(metric: str) -> Measure:
    """The last value of a metric."""

    def of(results: Results, curve: Curve) -> Summary:
        return results.final(curve, metric)

    return Measure(without_unit(metric), of, metric in _LOGARITHMIC)


def at(column: str, when: str) -> Measure:
    """A column at the "start" or the "end" of training."""

    def of(results: Results, curve: Curve) -> Summary:
        return results.at(curve, column, when)

    return Measure(f"{without_unit(column)} at the {when}", of)


def middle(column: str) -> Measure:
    """The median of a column over training."""
    return Measure(
        f"median {without_unit(column)}",
        lambda results, curve: results.middle(curve, column),
        True,
    )


def time_to(loss: float, clock: str) -> Measure:
    """What the clock shows when the training loss first is no more than a goal."""
    return Measure(
        f"{CLOCKS[clock]} to loss {loss:g}",
        lambda results, curve: results.reaching(curve, loss, clock),
        logarithmic=True,
        least=lambda results, curve: results.at(curve, clock, "end"),
    )


# --- claims --------------------------------------------------------------------------------------


def lower(measure: Measure, pairs: Pairs, panels: Sequence[str] | None = None) -> Judge:
    """Whether, of each pair (winner, loser), the winner's measure is lower.

    In every panel that has both, or in the named ones.
    """
    return _judge([measure], pairs, _compared, panels)


def no_higher(
    measure: Measure, pairs: Pairs, by: float = 0.0, panels: Sequence[str] | None = None
) -> Judge:
    """Whether, of each pair (one, other), the one's measure is above the other's by at most this.

    A difference may be certain and still not matter.
    """

    return _judge([measure], pairs, partial(_compared, by=by), panels)


def faster(
    pairs: Pairs,
    clock: str,
    panels: Sequence[str] | None = None,
    goals: Sequence[float] = GOALS,
) -> Judge:
    """Whether, of each pair, the winner needs less of the clock to each goal that one reaches.

    A run that doesn't get there counts as if it did at its end: the truth is later, so that this
    can speak against it alone.
    """
    return _judge([time_to(goal, clock) for goal in goals], pairs, _compared, panels)


def ratio_within(metric: str, over: tuple[str, str], low: float, high: float) -> Judge:
    """Whether one curve's last value over another's lies within bounds."""

    def compared(measure: Measure, results: Results, top: Curve, bottom: Curve) -> _Found:
        values = measure.of(results, top), measure.of(results, bottom)
        text = _each_value(measure, (top.label, bottom.label), values)
        paired = _share_a_start(top, bottom)
        ends = [
            difference(*values, paired=paired, bound=math.log(end), logarithmic=True)
            for end in (low, high)
        ]
        if ends[0] is None or ends[1] is None:
            return _Found("undecided" if all(v.values for v in values) else "not tested", text)
        found, against = ends[0], min(ends[0].above, ends[1].below)
        mark = _mark(low <= found.low and found.high <= high, against)
        return _Found(mark, text, found, against)

    return _judge([replace(final(metric), logarithmic=True)], [over], compared)


def at_least(measure: Measure, panel: str, label: str, value: float) -> Judge:
    """Whether a curve's measure is no less than a value; undecided if a seed diverged."""

    def compared(measure: Measure, results: Results, curve: Curve) -> _Found:
        values = measure.of(results, curve)
        text = f"{_each_value(measure, (curve.label,), (values,))}, at least {value:g} claimed"
        found = mean(values, value)
        if found is None or values.diverged:
            return _Found("undecided" if values.values else "not tested", text)
        mark = _mark(found.low >= value, found.above)
        return _Found(mark, text, None, found.above)

    return _judge([measure], [(label,)], compared, [panel])


def together(*judges: Judge) -> Judge:
    """All of them."""

    def judge(results: Results) -> Verdict:
        evidence = tuple(line for each in judges for line in each(results).evidence)
        return Verdict(_status(evidence), evidence)

    return judge


# --- comparisons ---------------------------------------------------------------------------------


class _Found(NamedTuple):
    """What came of a comparison; see :class:`~whitenorm.lab.studies.study.Comparison`."""

    mark: str
    values: str
    effect: Effect | None = None
    against: float = 1.0


def _judge(
    measures: Sequence[Measure],
    compared: Iterable[tuple[str, ...]],
    compare: Callable[..., _Found],
    panels: Sequence[str] | None = None,
) -> Judge:
    """Compares the measures of curves in each panel that has curves of these labels."""
    compared = tuple(compared)

    def judge(results: Results) -> Verdict:
        evidence = []
        for panel in results.scale.panels:
            curves = {curve.label: curve for curve in panel.curves}
            for labels in compared:
                if not (panels is None or panel.name in panels) or not curves.keys() >= {*labels}:
                    continue
                for measure in measures:
                    chosen = [curves[label] for label in labels]
                    found = compare(measure, results, *chosen)
                    text = f"{MARKS[found.mark]} {panel.name}, {measure.name}: {found.values}"
                    text += f"; {effect_text(found.effect)}" if found.effect else ""
                    place = panel.name, labels, measure.name
                    evidence.append(
                        Comparison(*place, found.mark, text, found.against, found.effect)
                    )
        return Verdict(_status(evidence), tuple(evidence))

    return judge


def effect(measure: Measure, results: Results, one: Curve, other: Curve) -> Effect | None:
    """One curve's measure less another's, or over it; None if it can't be told."""
    a, b = measure.of(results, one), measure.of(results, other)
    if any(summary.diverged or _ended_too_soon(summary) for summary in (a, b)):
        return None
    return difference(a, b, paired=_share_a_start(one, other), logarithmic=measure.logarithmic)


def _compared(
    measure: Measure, results: Results, winner: Curve, loser: Curve, by: float = 0.0
) -> _Found:
    """Whether the winner's measure is lower than the loser's, or above it by at most ``by``."""
    values, bounded = _values(measure, results, winner, loser)
    text = _each_value(measure, (winner.label, loser.label), values)
    ours = winner.run.method["name"].startswith(("dbn", "gw"))
    if not all(s.n for s in values) or values[1].diverged or (values[0].diverged and not ours):
        return _Found("not tested", text)
    if values[0].diverged:
        return _Found("contradicted", text, against=0.0)
    late = [_ended_too_soon(summary) for summary in values]
    never = [all(map(math.isinf, summary.values)) for summary in values]
    if all(never):
        return _Found("not tested", text)
    if measure.least is None and any(never) and sum(late) == 1:
        mark, against = ("contradicted", 0.0) if never[0] else ("supported", 1.0)
        return _Found(mark, text, against=against)
    found = difference(
        *bounded,
        paired=_share_a_start(winner, loser),
        bound=by,
        logarithmic=measure.logarithmic,
    )
    if found is None:
        return _Found("undecided", text)
    against = 1.0 if late[1] else found.below
    limit = 1.0 if measure.logarithmic else by
    fits = found.high < limit or (by > 0 and found.high == limit)
    if late[0] != late[1]:
        found = replace(found, beyond="at least" if late[0] else "at most")
    return _Found(_mark(fits and not late[0], against), text, found, against)


def _values(
    measure: Measure, results: Results, *curves: Curve
) -> tuple[list[Summary], list[Summary]]:
    """The values of each curve; and with the least that infinite ones can be in their place."""
    values = [measure.of(results, curve) for curve in curves]
    finite = [v for summary in values for v in summary.values if math.isfinite(v)]
    bounded = []
    for summary, curve in zip(values, curves, strict=True):
        least = measure.least(results, curve).values if measure.least else ()
        ends = least or repeat(max(finite, default=math.inf))
        some = tuple(min(v, end) for v, end in zip(summary.values, ends, strict=False))
        bounded.append(replace(summary, values=some))
    return values, bounded


def _ended_too_soon(summary: Summary) -> bool:
    return any(map(math.isinf, summary.values))


def _share_a_start(a: Curve, b: Curve) -> bool:
    """Whether runs of one seed share their initial weights and the order of their examples."""

    def start(curve: Curve) -> tuple[object, ...]:
        run = curve.run
        model = {name: value for name, value in run.model.items() if name != "placement"}
        return run.dataset, model, run.batch_size, run.subset

    return start(a) == start(b)


def _mark(fits: bool, against: float) -> str:
    if fits:
        return "supported"
    return "contradicted" if against < TAIL else "undecided"


def _status(evidence: Sequence[Comparison]) -> str:
    judged = [comparison for comparison in evidence if comparison.mark != "not tested"]
    if not judged:
        return "not tested"
    if all(comparison.mark == "supported" for comparison in judged):
        return "supported"
    least = min(c.against for c in judged if c.mark != "supported")
    return "contradicted" if least * len(judged) < TAIL else "undecided"


def _each_value(measure: Measure, labels: Sequence[str], values: Sequence[Summary]) -> str:
    infinite = "never" if measure.least else "infinite"
    pairs = zip(labels, values, strict=True)
    return ", ".join(f"{label} {_number(v, infinite)}" for label, v in pairs)


def _number(summary: Summary, infinite: str) -> str:
    if summary.n == 0:
        return "no record"
    if summary.diverged:
        return f"diverged ({summary.diverged} of {summary.n})"
    count = sum(map(math.isinf, summary.values))
    if count:
        return f"{infinite} ({count} of {summary.n})"
    return f"{number(summary.mean, summary.spread)} (n={summary.n})"
