r"""Trains a single run, with checkpoints, Ctrl-C, TensorBoard and several replicas."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from whitenorm.lab.execution.display import TrainDisplay
from whitenorm.lab.execution.jobs import Job, checkpoint_path, execute
from whitenorm.lab.records.record import RecordFile
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.checkpoints import Checkpoint, CheckpointError
from whitenorm.lab.training.outcome import Progress
from whitenorm.lab.training.replicas import joined, replicas_on_this_machine
from whitenorm.lab.training.tensorboard import EventLog

__all__ = ["train_one"]


def train_one(
    console: Console,
    run: Run,
    out: Path,
    *,
    resume: bool,
    checkpoint_every: float,
    data: Path | None,
    device: str,
    threads: int | None,
    tensorboard: bool = True,
) -> None:
    """Trains a run, keeps its state on the way, and records it.

    Every replica that torchrun started calls this; only the main one writes.

    Raises:
        Interrupted: After Ctrl-C, when the state is saved.
    """
    with joined(device) as (replicas, device), ExitStack() as stack:
        checkpoint = Checkpoint(checkpoint_path(out, run), checkpoint_every, final=True)
        file = RecordFile.of(out, "train", "single")
        todo = False
        if replicas.main:
            stack.enter_context(file)
            todo = _is_to_be_trained(console, run, file, checkpoint, resume)
        if not replicas.told(todo):
            return
        watchers: list[Callable[[Progress], None]] = []
        if replicas.main:
            display = TrainDisplay(console, run)
            stack.enter_context(display.bar)
            watchers.append(display.watch)
            if tensorboard:
                watchers.append(stack.enter_context(EventLog(out / "tensorboard", run)).watch)
        count = threads or max((os.cpu_count() or 1) // replicas_on_this_machine(), 1)
        with _ctrl_c() as asked_to_stop:
            record = execute(
                Job(run, "train", "single", None, data, device, count),
                checkpoint=checkpoint,
                watch=lambda progress: [watch(progress) for watch in watchers],
                stop=asked_to_stop,
                replicas=replicas,
            )
        if not replicas.main:
            return
        file.append(record)
    words = [f"{name} {value:.4g}" for name, value in record.final.items() if value is not None]
    console.print(f"[bold]{record.status}[/]: {', '.join(words)}")
    console.print(
        f"Record {record.id} in {file.path}, weights in {checkpoint.path}; for a page: "
        f"[bold]whitenorm report {out}[/]",
        soft_wrap=True,
    )


def _is_to_be_trained(
    console: Console, run: Run, file: RecordFile, checkpoint: Checkpoint, resume: bool
) -> bool:
    if run.id in file.read():
        console.print(f"Trained already: record {run.id} in {file.path}")
        return False
    if checkpoint.path.exists() and not resume:
        raise CheckpointError(
            f"{checkpoint.path} is there already: give --resume to go on from it, or another --out"
        )
    return True


@contextmanager
def _ctrl_c() -> Iterator[Callable[[], bool]]:
    """Ctrl-C only asks to stop; gives the function that tells whether it did."""
    asked = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: asked.set())
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
