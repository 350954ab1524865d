r"""Alternatives measured in turns: what a case compares, and how the comparison is measured."""

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

SAMPLE_SECONDS = 0.02  # a sample lasts at least so long, to outweigh short disturbances
REBUILD_EVERY = 5  # rounds after which all alternatives are built again
WARMUP = 2  # rounds that are dropped after each time

Phases = Mapping[str, Callable[[], object]]
Sampler = Callable[[], dict[str, float]]  # each call measures all quantities of an alternative


class BenchError(Exception):
    """Something can't be measured or rendered; the message says why and what to do."""


class Timed:
    """Seconds that each of some phases takes, run in order until a sample is long enough."""

    def __init__(self, phases: Phases, least: float = SAMPLE_SECONDS) -> None:
        self._phases, self.repeats = phases, 1
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
    alternatives: Mapping[str, Callable[[], Sampler]]  # name -> what builds it
    references: Sequence[str]  # names of the alternatives that the others are divided by
    info: Mapping[str, Any]  # for tables
    bars: Sequence[Bar] = ()
    constant: bool = False  # the same each time, so one round is enough
    facts: Mapping[str, Callable[[], Mapping[str, Any]]] = field(default_factory=dict)  # counted


@dataclass(frozen=True)
class Suite:
    """Cases that are measured in one run."""

    name: str
    title: str
    cases: list[Case]
    rounds: int  # of each case, unless told
    small: str  # a quick run measures the cases that have this in their name
    extras: Callable[[], Mapping[str, Any]] = dict  # what else goes into the record


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """The record of a case: every value, median and quartiles, and ratios to the references.

    Each round runs every alternative once. The order changes from round to round, so that no
    alternative always follows the same neighbour. Ratios are taken within a round, where both
    sides met the machine in the same state. Every few rounds all alternatives are built again:
    where their tensors lie in memory can change their speed by several per cent.
    """
    rounds, warmup = (1, 0) if case.constant else (rounds, WARMUP)
    names = list(case.alternatives)
    values: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    samplers: dict[str, Sampler] = {}
    for first in range(0, rounds, REBUILD_EVERY):
        samplers.clear()  # first, so that the old ones are gone when the new ones are built
        for name in _order(names, first // REBUILD_EVERY):
            samplers[name] = case.alternatives[name]()
        gc.collect()
        gc.freeze()  # what is there already need not be searched for garbage again
        gc.disable()  # garbage is collected between rounds only
        try:
            for turn in range(-warmup, min(REBUILD_EVERY, rounds - first)):
                gc.collect()
                for name in _order(names, first + max(turn, 0)):
                    sample = samplers[name]()
                    if len(sample) > 1:  # phases, whose sum is the main quantity
                        sample["both"] = sum(sample.values())
                    for quantity, value in sample.items() if turn >= 0 else ():
                        values[name].setdefault(quantity, []).append(value)
        finally:
            gc.enable()
            gc.unfreeze()
    return {
        "name": case.name,
        "title": case.title,
        "info": dict(case.info),
        "rounds": rounds,
        "main": list(values[names[0]])[-1],
        "references": list(case.references),
        "bars": [asdict(bar) for bar in case.bars],
        **({"facts": {n: dict(count()) for n, count in case.facts.items()}} if case.facts else {}),
        "alternatives": {
            name: {
                "values": ours,
                "summary": {quantity: spread(each) for quantity, each in ours.items()},
                "ratios": {
                    reference: {q: spread(np.divide(ours[q], values[reference][q])) for q in ours}
                    for reference in case.references
                    if reference != name
                },
            }
            for name, ours in values.items()
        },
    }


def _order(names: list[str], index: int) -> list[str]:
    """Rotated by one each time, and reversed after every full turn."""
    turns, turn = divmod(index, len(names))
    order = names[turn:] + names[:turn]
    return order[::-1] if turns % 2 else order


def spread(values: Sequence[float] | np.ndarray[Any, Any]) -> dict[str, float]:
    """Median and quartiles.

    Example:
        >>> spread([3.0, 1.0, 2.0])
        {'median': 2.0, 'q1': 1.5, 'q3': 2.5}
    """
    q1, median, q3 = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {"median": median, "q1": q1, "q3": q3}
