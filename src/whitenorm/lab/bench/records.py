r"""One run of a suite, and the JSON record that it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import torch

from whitenorm.lab.bench.harness import BenchError, Suite, measure
from whitenorm.lab.bench.machine import (
    describe,
    disturbances,
    keep_memory,
    time_constant_work,
)

__all__ = ["read_record", "run_suite"]

FORMAT = 1
FIELDS = {"suite", "title", "quick", "only", "environment", "disturbances", "cases"}


def run_suite(
    suite: Suite,
    out: Path,
    *,
    rounds: int | None = None,
    threads: int | None = None,
    quick: bool = False,
    only: str | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> Path:
    """Measures a suite and writes ``out/<suite>.json``; the path of it.

    Args:
        suite: What to measure.
        out: Folder of records.
        rounds: How often each alternative is measured; the suite's own number by default.
        threads: Of torch; as many as there are cores by default.
        quick: Measures a few small cases, to see that they work: ``<suite>-quick.json``.
        only: Measures the cases whose name contains this: ``<suite>-partial.json``.
        progress: Called with a line for each case.
    """
    every = suite.cases(quick)
    cases = [case for case in every if only is None or only in case.name]
    if not cases:
        raise BenchError(
            f"no case of suite {suite.name!r} has {only!r} in its name; there are "
            f"{', '.join(repr(case.name) for case in every)}"
        )
    rounds = rounds or (1 if quick else suite.rounds)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads or joblib.cpu_count())
    try:
        environment = describe() | {"memory_kept": not quick and keep_memory()}
        constant_work, found = time_constant_work(), []
        for number, case in enumerate(cases, start=1):
            found.append(measure(case, rounds))
            constant_work += time_constant_work()
            progress(f"{number}/{len(cases)} {_summary(found[-1])}")
    finally:
        torch.set_num_threads(threads_before)
    reasons = disturbances(constant_work)
    for reason in reasons:
        progress(f"the machine was not idle: {reason}")
    identity = {"format": FORMAT, "suite": suite.name, "title": suite.title}
    asked = {"quick": quick, "only": only, "rounds": rounds}
    where = {"environment": environment, "disturbances": reasons}
    record = {**identity, **asked, **where, "cases": found}
    name = suite.name + ("-quick" if quick else "") + ("-partial" if only is not None else "")
    path = out / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Five digits are more than any measurement is worth.
    short = json.loads(
        json.dumps(record, allow_nan=False), parse_float=lambda text: float(f"{float(text):.5g}")
    )
    path.write_text(json.dumps(short, separators=(",", ":")) + "\n")
    return path


def read_record(path: Path) -> dict[str, Any]:
    """A record of :func:`run_suite`; fields that nothing uses any more are ignored."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BenchError(
            f"{path} can't be read as a benchmark record: {error}; measure again"
        ) from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise BenchError(f"{path} is no benchmark record of format {FORMAT}; measure again")
    if missing := FIELDS - record.keys():
        raise BenchError(f"{path} lacks {', '.join(sorted(missing))}; measure again")
    return record


def _summary(case: dict[str, Any]) -> str:
    """A case in one line: every alternative against the first reference."""
    reference = case["references"][0]
    ratios = [
        f"{name} {alternative['ratios'][reference][case['main']]['median']:.3f}"
        for name, alternative in case["alternatives"].items()
        if name != reference
    ]
    return f"{case['name']}, against {reference}: {', '.join(ratios)}"
