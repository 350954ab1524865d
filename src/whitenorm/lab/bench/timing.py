r"""Alternatives in turns: what is compared with what, and how a comparison is measured."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Protocol

__all__ = ["Alternative", "Bar", "Case", "Sampler", "Timed", "measure", "spread"]

Phases = Mapping[str, Callable[[], object]]

LEAST = 2e-3  # seconds that a sample lasts at least: far above what a clock or a tick disturbs
MOST_ROUNDS = 10  # times the rounds asked for, in cases that are quick
MADE_ANEW = 5  # rounds after which all alternatives are


class Sampler(Protocol):
    """One alternative, ready to run: each call measures all its quantities once."""

    info: dict[str, Any]

    def __call__(self) -> dict[str, float]: ...

    def check(self) -> None:
        """Raises if what ran wasn't what should have been measured."""


class Timed:
    """Seconds that each of some phases takes, run in order and as often as a sample needs.

    Args:
        phases: What to run, by name; the first may leave what the next takes up.
        info: For the record.
        check: Called after the last sample.
        before: Called before each phase, outside its time.
        least: Seconds that a sample lasts at least.
    """

    def __init__(
        self,
        phases: Phases,
        info: Mapping[str, Any] | None = None,
        check: Callable[[], None] | None = None,
        before: Callable[[], object] | None = None,
        least: float = LEAST,
    ) -> None:
        self._phases = phases
        self._check = check
        self._before = before
        self._repeats = 1
        self()  # what is set up on the first call isn't measured
        once = min(sum(self().values()) for _ in range(2))
        self._repeats = max(1, min(math.ceil(least / max(once, 1e-9)), 10_000))
        self.info: dict[str, Any] = {**(info or {}), "repeats": self._repeats}

    def __call__(self) -> dict[str, float]:
        seconds = dict.fromkeys(self._phases, 0.0)
        for _ in range(self._repeats):
            for name, phase in self._phases.items():
                if self._before is not None:
                    self._before()
                start = time.perf_counter()
                phase()
                seconds[name] += time.perf_counter() - start
        return {name: value / self._repeats for name, value in seconds.items()}

    def check(self) -> None:
        if self._check is not None:
            self._check()


@dataclass(frozen=True)
class Alternative:
    """One of the things that a case compares.

    Args:
        name: In the record, unique in its case.
        make: Gets it ready; called when its case begins.
        info: For tables: group size, what the paper measured, and so on.
    """

    name: str
    make: Callable[[], Sampler]
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bar:
    """A ratio that must not be exceeded.

    Args:
        what: In words.
        alternative: Whose cost is divided ...
        reference: ... by that of this one.
        quantity: Which of the measured ones.
        at_most: The bar.
        paper: What the paper measured, in words.
        beside: Other alternatives whose ratio is worth a look next to this one.
    """

    what: str
    alternative: str
    reference: str
    quantity: str
    at_most: float
    paper: str = "-"
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """Alternatives that are measured in turns.

    Args:
        name: In the record, unique in its suite.
        title: In tables.
        alternatives: In the order of tables.
        references: Names of the alternatives that all are divided by.
        total: Name for the sum of the phases, where that means something.
        info: For tables.
        bars: What must hold.
        warmup: Rounds that aren't kept.
        rounds: How many are, in place of what the run is asked for.
    """

    name: str
    title: str
    alternatives: Sequence[Alternative]
    references: Sequence[str]
    total: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    bars: Sequence[Bar] = ()
    warmup: int = 2
    rounds: int | None = None


def measure(case: Case, rounds: int, seconds: float = 0.0) -> dict[str, Any]:
    """The record of a case: every value, median and quartiles, and ratios to the references.

    Each round runs every alternative once, starting one further along than the round before and
    every other time backwards, so that none always follows the same neighbour. Ratios are taken
    within a round, where both sides met the same machine. After some rounds all alternatives are
    made anew, in another order: where their tensors come to lie in memory is luck, and can change
    their speed by several hundredths for as long as they live.

    Args:
        case: What to measure.
        rounds: How many at least.
        seconds: Goes on for so long, if that is more, up to ten times the rounds.
    """
    makes = {alternative.name: alternative.make for alternative in case.alternatives}
    values: dict[str, dict[str, list[float]]] = {name: {} for name in makes}
    wanted = case.rounds or rounds
    most = wanted if case.rounds else MOST_ROUNDS * wanted
    samplers: dict[str, Sampler] = {}
    start, done = time.perf_counter(), 0

    def goes_on() -> bool:
        return done < wanted or (done < most and time.perf_counter() - start < seconds)

    while goes_on():
        samplers.clear()
        samplers = {name: makes[name]() for name in _order(list(makes), done // MADE_ANEW)}
        with _without_garbage():
            for turn in range(-case.warmup, MADE_ANEW):
                if turn >= 0 and not goes_on():
                    break
                gc.collect()  # of this round's own garbage: what was there before is frozen
                for name in _order(list(makes), done):
                    for quantity, value in samplers[name]().items():
                        if turn >= 0:
                            values[name].setdefault(quantity, []).append(value)
                done += turn >= 0
        for sampler in samplers.values():
            sampler.check()
    full = {name: _with_total(columns, case.total) for name, columns in values.items()}
    return {
        "name": case.name,
        "title": case.title,
        "info": dict(case.info),
        "rounds": done,
        "main": case.total or next(iter(full[case.alternatives[0].name])),
        "references": list(case.references),
        "bars": [vars(bar) | {"beside": list(bar.beside)} for bar in case.bars],
        "alternatives": {
            alternative.name: {
                "info": {**alternative.info, **samplers[alternative.name].info},
                "values": values[alternative.name],
                "summary": {q: spread(column) for q, column in full[alternative.name].items()},
                "ratios": {
                    reference: _ratios(full[alternative.name], full[reference])
                    for reference in case.references
                    if reference != alternative.name
                },
            }
            for alternative in case.alternatives
        },
    }


@contextmanager
def _without_garbage() -> Iterator[None]:
    """No collection but those that are asked for, and of nothing that is there already."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median and quartiles.

    Example:
        >>> spread([3.0, 1.0, 2.0])
        {'median': 2.0, 'q1': 1.5, 'q3': 2.5}
    """
    values = list(values)
    q1, _, q3 = quantiles(values, method="inclusive") if len(values) > 1 else values * 3
    return {"median": median(values), "q1": q1, "q3": q3}


def _order(names: list[str], index: int) -> list[str]:
    turn = index % len(names)
    order = names[turn:] + names[:turn]
    return order if index // len(names) % 2 == 0 else order[::-1]


def _with_total(columns: dict[str, list[float]], total: str | None) -> dict[str, list[float]]:
    if total is None:
        return columns
    return {**columns, total: [sum(row) for row in zip(*columns.values(), strict=True)]}


def _ratios(
    ours: dict[str, list[float]], theirs: dict[str, list[float]]
) -> dict[str, dict[str, float]]:
    return {
        quantity: spread(a / b for a, b in zip(ours[quantity], theirs[quantity], strict=True))
        | {"of_medians": median(ours[quantity]) / median(theirs[quantity])}
        for quantity in ours
    }
