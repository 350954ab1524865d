r"""Runs a study: first its grids, wider if need be, then the seeds of what they chose.

Workers return records, and only this process writes them. So a cluster's machines need no shared
disk, and a worker that dies can't damage the file of records.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whitenorm.lab.data.for_run import missing, unreadable
from whitenorm.lab.data.sources import DataError
from whitenorm.lab.execution.executors import execute_all
from whitenorm.lab.execution.jobs import Failure, Job, attempt, checkpoint_path
from whitenorm.lab.records.record import Record, RecordFile
from whitenorm.lab.records.run import Run
from whitenorm.lab.studies.study import Scale, Study
from whitenorm.lab.training.checkpoints import Checkpoint


@dataclass(frozen=True)
class StudyRun:
    """What came of running a study."""

    records: dict[str, Record]  # all that there are now, by id
    failures: list[Failure]  # runs that failed this time
    left_out: dict[str, str]  # data sets that are missing, and what to do about it


class Observer:
    """Base class for what follows a study's progress; override the methods that you need."""

    def phase(self, name: str, plan: Scale, runs: Sequence[Run], finished: int) -> None:
        """A phase begins, "grid" or "seeds"; ``finished`` of its runs are recorded already."""

    def warning(self, run: Run, text: str) -> None:
        """A run warned of something."""

    def record(self, record: Record) -> None:
        """A run has finished, and its record is written."""

    def failure(self, failure: Failure) -> None:
        """A run has failed, and its trace is written."""


def trace_path(out: Path, run: Run) -> Path:
    """Where the trace of a run that failed is written."""
    return out / "failures" / f"{run.id}.txt"


def run_study(
    study: Study,
    scale: str,
    out: Path,
    *,
    seeds: int | None = None,
    panels: Sequence[str] = (),
    executor: str = "in-process",
    workers: int = 1,
    data: Path | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> StudyRun:
    """Runs what isn't recorded yet of a study.

    Panels whose data is missing are left out and named in the result; if no panel has its data,
    that is an error. A panel chooses its rates by its own runs, so panels run apart, on several
    machines or days, have the records that they'd have together.

    Args:
        study: What to run.
        scale: One of its scales, such as "small" or "paper".
        out: Output folder.
        seeds: How many to draw; the scale's number by default.
        panels: Which of the scale's panels to run, by name; all by default.
        executor: Key in ``EXECUTORS``.
        workers: Runs at a time.
        data: Data folder; $WHITENORM_DATA by default.
        observer: Is told of every phase, record and failure.
        options: ``device``, ``threads`` and ``checkpoint_every`` of each
            :class:`~whitenorm.lab.execution.jobs.Job`.
    """
    observer = observer or Observer()
    plan = study.scale(scale, panels)
    left_out = missing(plan.datasets(), data)
    there = tuple(
        panel
        for panel in plan.panels
        if not any(curve.run.dataset["name"] in left_out for curve in panel.curves)
    )
    if not there:
        raise DataError(f"no data for {study.name}: " + "; ".join(left_out.values()))
    plan = replace(plan, panels=there)
    for problem in unreadable(plan.datasets(), data).values():
        raise DataError(problem)
    failures: list[Failure] = []
    with RecordFile.of(out, study.name, scale) as file:
        records = file.read()

        def do(phase: str, runs: list[Run]) -> None:
            todo = [run for run in runs if run.id not in records]
            jobs = [Job(run, study.name, scale, out, data, **options) for run in todo]
            observer.phase(phase, plan, runs, len(runs) - len(jobs))
            for done, warned in execute_all(executor, attempt, jobs, workers) if jobs else ():
                for text in warned:
                    observer.warning(done.run, text)
                if isinstance(done, Failure):
                    failures.append(done)
                    path = trace_path(out, done.run)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(f"{done.run.settings()}\n\n{done.trace}", encoding="utf-8")
                    observer.failure(done)
                else:
                    file.append(done)
                    records[done.id] = done
                    Checkpoint(checkpoint_path(out, done.run)).remove()
                    observer.record(done)

        while not failures:  # a grid chooses only when all of its runs are recorded
            plan = plan.widened(records)
            do("grid", plan.grid_runs())
            if plan.widened(records) == plan:
                do("seeds", plan.seed_runs(records, seeds or plan.seeds))
                break
    return StudyRun(records, failures, left_out)
