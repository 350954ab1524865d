r"""Runs a study: first its grids, then the seeds of what they chose, each run once.

Whoever computes returns a record; this process alone writes it. So a cluster's machines need no
shared disk, and what was written stays written whatever happens to them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import torch

from whitenorm.lab.data.datasets import DataError
from whitenorm.lab.data.for_run import load, missing
from whitenorm.lab.execution.board import Board
from whitenorm.lab.execution.executors import execute_all
from whitenorm.lab.records.record import Record, RecordFile, environment
from whitenorm.lab.records.run import Run
from whitenorm.lab.studies.study import Scale, Study
from whitenorm.lab.training.axis_swapping import illustrate, measure_swapping
from whitenorm.lab.training.checkpoints import Checkpoint
from whitenorm.lab.training.trainer import Outcome, train

__all__ = [
    "TASKS",
    "Failure",
    "Job",
    "Observer",
    "StudyRun",
    "checkpoint_path",
    "execute",
    "run_study",
]

TASKS: dict[str, Callable[..., Outcome]] = {
    "train": train,
    "axis-swapping": measure_swapping,
    "illustration": illustrate,
}


@dataclass(frozen=True)
class Job:
    """A run, and how to run it.

    Args:
        run: What.
        study: For which study.
        scale: At which of its scales.
        out: Output folder, for checkpoints and notices; None for neither.
        data: Data folder.
        device: Where.
        threads: Of torch. Results may differ in the last digits with their number.
        checkpoint_every: Seconds between checkpoints.
        owner: The process that asked for it.
    """

    run: Run
    study: str
    scale: str
    out: Path | None = None
    data: Path | None = None
    device: str = "cpu"
    threads: int = 1
    checkpoint_every: float = 60.0
    owner: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class Failure:
    """A run that ended in an error. It has no record, so the next start tries it again."""

    run: Run
    error: str
    trace: str


@dataclass(frozen=True)
class StudyRun:
    """What came of running a study.

    Args:
        records: All that there are now, by identity.
        failures: Runs that failed this time.
        left_out: Data sets that are missing, and what to do about it.
    """

    records: dict[str, Record]
    failures: list[Failure]
    left_out: dict[str, str]


class Observer:
    """Is told how a study goes on; this one keeps it to itself."""

    def phase(self, name: str, runs: Sequence[Run], finished: int) -> None:
        """A phase begins, "grid" or "seeds"; so many of its runs were finished before."""

    def record(self, record: Record) -> None:
        """A run has finished, and its record is written."""

    def failure(self, failure: Failure) -> None:
        """A run has failed."""


def checkpoint_path(out: Path, run: Run) -> Path:
    """Where the state of a run is kept."""
    return out / "checkpoints" / f"{run.id}.pt"


def execute(job: Job, **options: Any) -> Record:
    """Runs a run to its end, from its checkpoint if there is one.

    Args:
        job: What and how.
        options: Of :func:`whitenorm.lab.training.trainer.train`, in place of those that the job
            implies.
    """
    run = job.run
    if run.task not in TASKS:
        raise ValueError(f"unknown task {run.task!r}; there are {', '.join(TASKS)}")
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    if job.out is not None and Path(job.out).is_dir():  # which another machine may not have
        board = Board.of(job.out, job.study, job.scale)
        options = {
            "watch": lambda progress: board.post(run.id, progress),
            "checkpoint": Checkpoint(checkpoint_path(job.out, run), job.checkpoint_every),
            **options,
        }
    threads = torch.get_num_threads()
    torch.set_num_threads(job.threads)
    try:
        outcome = TASKS[run.task](run, load(run, job.data), device=job.device, **options)
        machine = environment(job.device)
    finally:
        torch.set_num_threads(threads)
    return Record(
        run=run,
        study=job.study,
        scale=job.scale,
        status=outcome.status,
        final=outcome.final,
        history=outcome.history,
        probes=outcome.probes,
        arrays=outcome.arrays,
        reason=outcome.reason,
        environment=machine,
        started=started,
    )


def _attempt(job: Job) -> Record | Failure:
    if os.getpid() != job.owner:
        _follow(job.owner)
    try:
        return execute(job)
    except Exception as error:
        return Failure(job.run, f"{type(error).__name__}: {error}", traceback.format_exc())


@cache
def _follow(owner: int) -> None:
    """Leaves it to the owner of a worker process when to end, unless that was killed itself."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal

    def watch() -> None:
        while os.getppid() == owner:
            time.sleep(1)
        os._exit(1)  # nobody waits for the record any more

    if os.getppid() == owner:  # a cluster's worker has another parent
        threading.Thread(target=watch, daemon=True).start()


def run_study(
    study: Study,
    scale: str,
    out: Path,
    *,
    seeds: int | None = None,
    executor: str = "in-process",
    workers: int = 1,
    data: Path | None = None,
    device: str = "cpu",
    threads: int = 1,
    checkpoint_every: float = 60.0,
    observer: Observer | None = None,
) -> StudyRun:
    """Runs what isn't recorded yet of a study.

    Panels whose data is missing are left out, and said to be; if none is left, that is an error.

    Args:
        study: Row of the table of studies.
        scale: "small" or "paper".
        out: Output folder.
        seeds: How many to draw; the scale's number by default.
        executor: Key in ``EXECUTORS``.
        workers: Runs at a time.
        data: Data folder; $WHITENORM_DATA by default.
        device: Where to train.
        threads: Of torch, in each run.
        checkpoint_every: Seconds between a run's checkpoints.
        observer: To be told how it goes on.
    """
    observer = observer or Observer()
    plan, left_out = _available(study, study.scale(scale), data)
    failures: list[Failure] = []
    board = Board.of(out, study.name, scale)
    with RecordFile.of(out, study.name, scale) as file:
        records = file.read()
        board.open()

        def do(phase: str, runs: list[Run]) -> None:
            todo = [run for run in runs if run.id not in records]
            observer.phase(phase, runs, len(runs) - len(todo))
            jobs = [
                Job(run, study.name, scale, out, data, device, threads, checkpoint_every)
                for run in todo
            ]
            for done in execute_all(executor, _attempt, jobs, workers) if jobs else ():
                board.take_down(done.run.id)
                if isinstance(done, Failure):
                    failures.append(done)
                    observer.failure(done)
                else:
                    file.append(done)
                    records[done.id] = done
                    Checkpoint(checkpoint_path(out, done.run)).remove()
                    observer.record(done)

        try:
            do("grid", plan.grid_runs())
            if not failures:  # else a grid might choose among what is left
                do("seeds", plan.seed_runs(records, seeds or plan.seeds))
        finally:
            board.close()
    return StudyRun(records, failures, left_out)


def _available(study: Study, plan: Scale, data: Path | None) -> tuple[Scale, dict[str, str]]:
    left_out = missing(plan.datasets(), data)
    panels = tuple(
        panel
        for panel in plan.panels
        if not any(curve.run.dataset["name"] in left_out for curve in panel.curves)
    )
    if not panels:
        raise DataError(f"no data for {study.name}: " + "; ".join(left_out.values()))
    return replace(plan, panels=panels), left_out
