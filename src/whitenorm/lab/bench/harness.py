r"""Alternatives measured in turns: what a case compares, and how the comparison is measured."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any, Protocol

__all__ = ["Alternative", "Bar", "BenchError", "Case", "Suite", "Timed", "measure", "spread"]

SAMPLE_SECONDS = 0.02  # a sample lasts at least so long, to outweigh short disturbances
REBUILD_EVERY = 5  # rounds after which all alternatives are built again

Columns = dict[str, list[float]]  # quantity -> its value in each round


class BenchError(Exception):
    """Something can't be measured or rendered; the message says why and what to do."""


class Sampler(Protocol):
    """One alternative, ready to run: each call measures all its quantities once."""

    def __call__(self) -> dict[str, float]: ...

    def check(self) -> None:
        """Raises if what ran wasn't what should have been measured."""


class Timed:
    """Seconds that each of some phases takes, run in order until a sample is long enough.

    A phase may leave what the next one takes up. ``check`` is called after the last sample.
    """

    def __init__(
        self,
        phases: Mapping[str, Callable[[], object]],
        check: Callable[[], None] = lambda: None,
        least: float = SAMPLE_SECONDS,
    ) -> None:
        self._phases, self.check = phases, check
        self.repeats = 1
        self()  # what is set up on the first call isn't measured
        once = min(sum(self().values()) for _ in range(2))
        self.repeats = max(1, min(math.ceil(least / max(once, 1e-9)), 10_000))

    def __call__(self) -> dict[str, float]:
        seconds = dict.fromkeys(self._phases, 0.0)
        for _ in range(self.repeats):
            for name, phase in self._phases.items():
                start = time.perf_counter()
                phase()
                seconds[name] += time.perf_counter() - start
        return {name: value / self.repeats for name, value in seconds.items()}


@dataclass(frozen=True)
class Alternative:
    """One of the things that a case compares: ``make`` builds it, ``info`` is for tables."""

    name: str
    make: Callable[[], Sampler]
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bar:
    """A goal: the cost of an alternative, divided by that of a reference, is at most this."""

    alternative: str
    reference: str
    at_most: float


@dataclass(frozen=True)
class Case:
    """Alternatives that are measured in turns."""

    name: str  # in the record, unique in its suite
    title: str  # in tables
    alternatives: Sequence[Alternative]
    references: Sequence[str]  # names of the alternatives that the others are divided by
    info: Mapping[str, Any] = field(default_factory=dict)  # for tables
    bars: Sequence[Bar] = ()  # goals for the main quantity
    total: str | None = None  # name for the sum of phases, if that is the main quantity
    warmup: int = 2  # rounds that are dropped
    most_rounds: int | None = None  # however many the run asks for


@dataclass(frozen=True)
class Suite:
    """Cases, made by ``cases(quick)``, and how many rounds each has unless told."""

    name: str
    title: str
    cases: Callable[[bool], list[Case]]
    rounds: int


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """The record of a case: every value, median and quartiles, and ratios to the references.

    Each round runs every alternative once. The order changes from round to round, so that no
    alternative always follows the same neighbour. Ratios are taken within a round, where both
    sides met the machine in the same state. Every few rounds all alternatives are built again:
    where their tensors lie in memory can change their speed by several per cent.
    """
    rounds = min(rounds, case.most_rounds or rounds)
    makes = {alternative.name: alternative.make for alternative in case.alternatives}
    values: dict[str, Columns] = {name: {} for name in makes}
    samplers: dict[str, Sampler] = {}
    for first in range(0, rounds, REBUILD_EVERY):
        samplers.clear()  # first, so that the old ones are gone when the new ones are built
        for name in _order(list(makes), first // REBUILD_EVERY):
            samplers[name] = makes[name]()
        with _collector_paused():
            for turn in range(-case.warmup, min(REBUILD_EVERY, rounds - first)):
                gc.collect()
                for name in _order(list(makes), first + max(turn, 0)):
                    for quantity, value in samplers[name]().items():
                        if turn >= 0:
                            values[name].setdefault(quantity, []).append(value)
        for sampler in samplers.values():
            sampler.check()
    full = {name: _with_total(columns, case.total) for name, columns in values.items()}
    return {
        "name": case.name,
        "title": case.title,
        "info": dict(case.info),
        "rounds": rounds,
        "main": case.total or next(iter(full[case.alternatives[0].name])),
        "references": list(case.references),
        "bars": [asdict(bar) for bar in case.bars],
        "alternatives": {
            alternative.name: {
                "info": dict(alternative.info),
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


def _order(names: list[str], index: int) -> list[str]:
    """Rotated by one each time, and reversed after every full turn."""
    turn = index % len(names)
    order = names[turn:] + names[:turn]
    return order if index // len(names) % 2 == 0 else order[::-1]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Garbage is collected only when asked for, and never that which is there already."""
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


def _with_total(columns: Columns, total: str | None) -> Columns:
    if total is None:
        return columns
    return {**columns, total: [sum(row) for row in zip(*columns.values(), strict=True)]}


def _ratios(ours: Columns, theirs: Columns) -> dict[str, dict[str, float]]:
    return {
        quantity: spread(a / b for a, b in zip(ours[quantity], theirs[quantity], strict=True))
        for quantity in ours
    }
