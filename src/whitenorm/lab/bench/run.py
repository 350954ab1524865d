r"""A run of a suite: every case in turn, then one JSON record."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from whitenorm.lab.bench.alternatives import BASELINES, baselines
from whitenorm.lab.bench.machine import Watch, calibration, describe, disturbances, keep_memory
from whitenorm.lab.bench.roofline import rates
from whitenorm.lab.bench.suites import SUITES
from whitenorm.lab.bench.timing import measure

__all__ = ["FORMAT", "BenchError", "read", "run_bench"]

FORMAT = 1


class BenchError(Exception):
    """A suite can't be run or a record can't be used; the message says why and what to do."""


def run_bench(
    suite: str,
    rounds: int | None = None,
    out: Path | str = "benchmarks/results",
    threads: int | None = None,
    progress: Callable[[str], None] | None = None,
    *,
    quick: bool = False,
    only: str | None = None,
    fresh_memory: bool = False,
) -> Path:
    """Measures a suite and writes ``out/<suite>.json``; the path of it.

    Args:
        suite: Key in ``SUITES``.
        rounds: How often each alternative is measured; the suite's own number by default.
        out: Folder of records.
        threads: Of torch; as many as there are cores by default.
        progress: Called with a line for each case.
        quick: Shrinks all cases and takes 2 rounds, to see that they work. The record says so,
            is named ``<suite>-quick.json``, and doesn't count.
        only: Measures the cases alone whose name contains this. The record says so, is named
            ``<suite>-partial.json``, and doesn't count either.
        fresh_memory: Leaves the system's allocator as it is, which may give memory back. Else it
            is kept from now on, for as long as this process lives (unless ``quick``).
    """
    if suite not in SUITES:
        raise BenchError(f"unknown suite {suite!r}; there are {', '.join(SUITES)}")
    if rounds is not None and rounds < 1:
        raise BenchError(f"rounds must be a positive number, got {rounds}")
    chosen, say = SUITES[suite], progress or (lambda line: None)
    every = chosen.cases(quick)
    cases = [case for case in every if only is None or only in case.name]
    if not cases:
        raise BenchError(
            f"no case of suite {suite!r} has {only!r} in its name; there are "
            f"{', '.join(repr(case.name) for case in every)}"
        )
    rounds = rounds or (2 if quick else chosen.rounds)
    notes = []
    if baselines() is None:
        notes.append(f"without the baselines: {BASELINES} is part of the source tree alone")
    for note in notes:
        say(note)
    with _threads(threads or len(_cores())):
        kept = not (fresh_memory or quick) and keep_memory()
        where, load = describe() | {"memory_kept": kept}, [os.getloadavg()[0]]
        calibrations, machine = [calibration()], rates(quick)
        watches, found = {}, []
        for number, case in enumerate(cases, start=1):
            watch = Watch()
            result = measure(case, rounds, 0.0 if quick else chosen.seconds)
            watches[case.name] = result["watch"] = watch.stop()
            found.append(result)
            say(_line(number, len(cases), result))
        calibrations.append(calibration())
        load.append(os.getloadavg()[0])
        record: dict[str, Any] = {
            "format": FORMAT,
            "suite": suite,
            "title": chosen.title,
            "quick": quick,
            "only": only,
            "rounds": rounds,
            "environment": where,
            "load": load,
            "calibrations": calibrations,
            "disturbances": disturbances(watches, calibrations, load),
            "notes": notes,
            "rates": machine,
            "cases": found,
        }
    for reason in record["disturbances"]:
        say(f"the machine was not idle: {reason}")
    name = suite + ("-quick" if quick else "") + ("-partial" if only is not None else "")
    path = Path(out) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_compact(record), separators=(",", ":"), allow_nan=False)
    path.write_text(text + "\n")
    return path


def read(path: Path | str) -> dict[str, Any]:
    """A record of :func:`run_bench`."""
    try:
        record = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise BenchError(
            f"{path} can't be read as a record of a benchmark: {error}; measure again"
        ) from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise BenchError(f"{path} is no benchmark record of format {FORMAT}; measure again")
    return record


def _line(number: int, total: int, case: dict[str, Any]) -> str:
    """A case in one line: every alternative against the first reference."""
    parts = []
    reference = next(iter(case["references"]), None)
    for name, alternative in case["alternatives"].items():
        if reference in alternative["ratios"]:
            ratio = alternative["ratios"][reference][case["main"]]
            parts.append(f"{name} {ratio['median']:.3f}")
    head = f"{number}/{total} {case['name']} ({case['watch']['seconds']:.1f} s)"
    return f"{head}: {', '.join(parts)} of {reference}" if parts else head


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _compact(value: Any) -> Any:
    """Numbers with five digits, more than any time is worth."""
    if isinstance(value, dict):
        return {key: _compact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_compact(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
