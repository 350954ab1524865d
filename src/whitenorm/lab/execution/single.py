r"""Trains a single run, with checkpoints, Ctrl-C, TensorBoard and several replicas."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from whitenorm.lab.execution.display import TrainDisplay
from whitenorm.lab.execution.jobs import Job, checkpoint_path, execute
from whitenorm.lab.records.record import RecordFile
from whitenorm.lab.training.checkpoints import Checkpoint, CheckpointError
from whitenorm.lab.training.replicas import joined
from whitenorm.lab.training.trainer import Trainer


def train_one(console: Console, job: Job, out: Path, *, resume: bool, tensorboard: bool) -> None:
    """Trains a run, keeps its state on the way, and records it.

    Every replica that torchrun started calls this; only the main one writes. Raises
    :class:`~whitenorm.lab.training.trainer.Interrupted` after Ctrl-C, when the state is saved.
    """
    run = job.run
    with joined(job.device) as (replicas, device), ExitStack() as stack:
        checkpoint = Checkpoint(checkpoint_path(out, run), job.checkpoint_every, final=True)
        file = RecordFile.of(out, job.study, job.scale)
        if replicas.told(replicas.main and run.id in stack.enter_context(file).read()):
            console.print(f"Trained already: record {run.id} in {file.path}")
            return
        watchers: list[Callable[[Trainer], None]] = []
        if replicas.main:
            if checkpoint.path.exists() and not resume:
                raise CheckpointError(
                    f"{checkpoint.path} is there already: give --resume to go on from it, or "
                    "another --out"
                )
            display = TrainDisplay(console, run)
            stack.enter_context(display.bar)
            watchers.append(display.watch)
            if tensorboard:
                watchers.append(stack.enter_context(_event_log(out / "tensorboard" / run.id)))
        record = execute(
            replace(job, device=device),
            checkpoint=checkpoint,
            watch=lambda trainer: [watch(trainer) for watch in watchers],
            stop=stack.enter_context(_ctrl_c()),
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


@contextmanager
def _ctrl_c() -> Iterator[Callable[[], bool]]:
    """Ctrl-C only asks to stop; gives the function that tells whether it did."""
    asked = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: asked.set())
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _event_log(folder: Path) -> Iterator[Callable[[Trainer], None]]:
    """Gives the function that logs new points of the curve for TensorBoard."""
    writer: Any = None

    def watch(trainer: Trainer) -> None:
        nonlocal writer
        iteration, point = trainer.iteration, trainer.last_point()
        if writer is None:
            from torch.utils.tensorboard import SummaryWriter  # slow to load

            # Points after the checkpoint that this goes on from come again: drop the old ones.
            writer = SummaryWriter(str(folder), purge_step=iteration)
            settings = "\n".join(f"    {k}: {v}" for k, v in trainer.run.settings().items())
            writer.add_text("settings", settings, iteration)
        if point.get("iteration") == iteration:
            for name, value in point.items():
                if value is not None and name != "iteration":
                    writer.add_scalar(name.replace("_", "/", 1), value, iteration)
            writer.flush()

    try:
        yield watch
    finally:
        if writer is not None:
            writer.close()
