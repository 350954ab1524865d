r"""One run from its settings to its record, in whichever process it is executed."""

import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from whitenorm import whitening_mse
from whitenorm.lab.data.for_run import load
from whitenorm.lab.lookup import look_up
from whitenorm.lab.records.environment import environment
from whitenorm.lab.records.record import Record
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.axis_swapping import illustrate, measure_swapping
from whitenorm.lab.training.checkpoints import Checkpoint
from whitenorm.lab.training.disturbance import measure_disturbance
from whitenorm.lab.training.embeddings import learn_embeddings, plain_mse
from whitenorm.lab.training.trainer import Outcome, train

TASKS: dict[str, Callable[..., Outcome]] = {
    "train": train,
    "axis-swapping": measure_swapping,
    "disturbance": measure_disturbance,
    "illustration": illustrate,
    "embed-mse": partial(learn_embeddings, loss=plain_mse),
    "embed-whitening-mse": partial(learn_embeddings, loss=whitening_mse),
}


@dataclass(frozen=True)
class Job:
    """A run, and how to run it."""

    run: Run
    study: str
    scale: str
    out: Path | None = None  # folder for a checkpoint; None for no checkpoint
    data: Path | None = None
    device: str = "cpu"
    threads: int = 1  # of torch; results may differ in the last digits with their number
    checkpoint_every: float = 60.0  # seconds
    owner: int = field(default_factory=os.getpid)  # the process that asked for it


@dataclass(frozen=True)
class Failure:
    """A run that ended in an error. It has no record, so the next start tries it again."""

    run: Run
    error: str
    trace: str


def checkpoint_path(out: Path, run: Run) -> Path:
    """Where the state of a run is kept."""
    return out / "checkpoints" / f"{run.id}.pt"


def execute(job: Job, **options: Any) -> Record:
    """Runs a run to its end, from its checkpoint if there is one; ``options`` are the task's."""
    task = look_up(TASKS, "task", job.run.task)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    # A cluster's other machines may not have the folder; then a run has no checkpoint.
    if job.out is not None and job.out.is_dir():
        path = checkpoint_path(job.out, job.run)
        options = {"checkpoint": Checkpoint(path, job.checkpoint_every), **options}
    threads = torch.get_num_threads()
    torch.set_num_threads(job.threads)
    try:
        outcome = task(job.run, load(job.run, job.data), device=job.device, **options)
        machine = environment(job.device)
    finally:
        torch.set_num_threads(threads)
    return Record(
        job.run, job.study, job.scale, **vars(outcome), environment=machine, started=started
    )


class Attempt(NamedTuple):
    """What came of a job, and the warnings on the way, which its process must not print."""

    result: Record | Failure
    warnings: tuple[str, ...] = ()


def attempt(job: Job) -> Attempt:
    """Executes a job, perhaps in a worker process; an error becomes a :class:`Failure`."""
    if os.getpid() != job.owner:
        _end_with(job.owner)
    result: Record | Failure
    with warnings.catch_warnings(record=True) as caught:
        try:
            result = execute(job)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            result = Failure(job.run, text, traceback.format_exc())
    return Attempt(result, tuple(dict.fromkeys(str(warning.message) for warning in caught)))


@cache  # once for each worker process
def _end_with(owner: int) -> None:
    """Makes a worker process end when its owner ends, and not before.

    Ctrl-C in a terminal reaches the workers too; they ignore it, and the owner ends them. An owner
    that was killed can't, so a worker also watches whether its owner is still its parent.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == owner:
            time.sleep(1)
        os._exit(1)

    if os.getppid() == owner:  # not so for a cluster's workers, which the cluster ends
        threading.Thread(target=watch, daemon=True).start()
