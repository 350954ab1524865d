r"""What the commands do, once their options are understood."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from whitenorm.lab.data.for_run import missing
from whitenorm.lab.data.sources import status
from whitenorm.lab.execution.display import (
    StudyDisplay,
    TrainDisplay,
    numbers_table,
    verdict_table,
)
from whitenorm.lab.execution.dry_run import dry_run
from whitenorm.lab.execution.executors import ExecutorError
from whitenorm.lab.execution.runner import Job, checkpoint_path, execute, run_study
from whitenorm.lab.records.record import RecordFile
from whitenorm.lab.records.run import Run
from whitenorm.lab.reporting.page import build_report
from whitenorm.lab.studies.catalogue import STUDIES
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import Study
from whitenorm.lab.training.checkpoints import Checkpoint, CheckpointError
from whitenorm.lab.training.replicas import joined
from whitenorm.lab.training.tensorboard import EventLog
from whitenorm.lab.training.trainer import Interrupted, Progress

__all__ = ["Stopped", "list_data", "list_studies", "run_and_report", "train_one", "try_study"]


class Stopped(Exception):
    """Ctrl-C ended the work; the message says what is kept and how to go on."""


def run_and_report(
    console: Console,
    study: Study,
    scale: str,
    out: Path,
    *,
    seeds: int | None = None,
    jobs: int | None = None,
    data: Path | None = None,
    device: str = "cpu",
    executor: str | None = None,
    threads: int = 1,
    checkpoint_every: float = 60.0,
) -> tuple[Path, int]:
    """Runs a study, shows what came of it, and builds its folder's report.

    Returns:
        The page, and how many runs failed.
    """
    plan = study.scale(scale)
    seeds = seeds or plan.seeds
    if jobs is None:
        jobs = 1 if device != "cpu" or executor == "in-process" else os.cpu_count() or 1
    executor = executor or ("in-process" if jobs == 1 else "processes")
    if executor == "in-process" and jobs > 1:
        raise ExecutorError(f"the executor 'in-process' does one run at a time, --jobs is {jobs}")
    console.print(
        f"[bold]{escape(study.title)}[/] ({study.reference}, scale {scale}): "
        f"{plan.count(seeds)} runs, {jobs} at a time, {executor}, into {out}"
    )
    try:
        with StudyDisplay(console, study, scale, out, seeds) as display:
            outcome = run_study(
                study,
                scale,
                out,
                seeds=seeds,
                executor=executor,
                workers=jobs,
                data=data,
                device=device,
                threads=threads,
                checkpoint_every=checkpoint_every,
                observer=display,
            )
    except KeyboardInterrupt:
        file = RecordFile.of(out, study.name, scale)
        raise Stopped(
            f"{len(file.read())} runs are recorded in {file.path}; the same command goes on from "
            f"there, `whitenorm report {out}` shows what there is"
        ) from None
    results = Results(study, scale, outcome.records)
    console.print(numbers_table(results), verdict_table(results))
    for hint in outcome.left_out.values():
        console.print(f"[yellow]Left out[/] for want of data: {escape(hint)}")
    return build_report(out).resolve(), len(outcome.failures)


def try_study(console: Console, study: Study, scale: str, device: str) -> None:
    """Tries every network of a study and shows what came of it."""
    plan = study.scale(scale)
    title = f"{study.title}, scale {scale}: one update on made-up data"
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("panel", "curve", "parameters", "loss", "time"):
        table.add_column(column, justify="left" if column in ("panel", "curve") else "right")
    for trial in dry_run(plan, device):
        table.add_row(
            trial.panel,
            trial.label,
            "—" if trial.parameters is None else f"{trial.parameters:,}",
            "—" if trial.loss is None else f"{trial.loss:.3f}",
            f"{trial.seconds:.2f} s",
        )
    console.print(table)
    console.print(f"{plan.count()} runs in all; nothing was recorded.")


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
    """Trains one run, keeps its state on the way, and records it.

    Every replica that torchrun started calls this; the main one alone writes.
    """
    with joined(device) as (replicas, device), contextlib.ExitStack() as stack:
        checkpoint = Checkpoint(checkpoint_path(out, run), checkpoint_every, final=True)
        file = RecordFile.of(out, "train", "single")
        todo = False
        if replicas.main:
            stack.enter_context(file)
            todo = _is_to_be_trained(console, run, file, checkpoint, resume)
        if not replicas.told(todo):
            return
        count = threads or max((os.cpu_count() or 1) // _local_replicas(), 1)
        job = Job(run, "train", "single", None, data, device, count)
        stopping = threading.Event()
        before = signal.signal(signal.SIGINT, lambda *_: stopping.set())
        watchers: list[Callable[[Progress], None]] = []
        if replicas.main:
            watchers.append(stack.enter_context(TrainDisplay(console, run)).watch)
            if tensorboard:
                watchers.append(stack.enter_context(EventLog(out / "tensorboard", run)).watch)
        try:
            record = execute(
                job,
                checkpoint=checkpoint,
                watch=lambda progress: [watch(progress) for watch in watchers],
                stop=stopping.is_set,
                replicas=replicas,
            )
        except Interrupted as interruption:
            raise Stopped(
                f"{interruption}; the state is in {checkpoint.path}, and the same command with "
                "--resume goes on"
            ) from None
        finally:
            signal.signal(signal.SIGINT, before)
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


def _local_replicas() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def list_studies(console: Console, data: Path | None) -> None:
    """Shows the table of studies."""
    needed = {name for s in STUDIES.values() for x in s.scales.values() for name in x.datasets()}
    absent = missing(sorted(needed), data)
    for study in STUDIES.values():
        heading = Text(f"{study.name:8}", style="bold")
        heading.append(f"{study.reference}: {study.title}", style="not bold")
        console.print(heading)
        table = Table.grid(padding=(0, 2))
        for width in (8, 6, 9, 22):
            table.add_column(min_width=width)
        for name, scale in study.scales.items():
            names = [
                f"[red]{data} (missing)[/]" if data in absent else data
                for data in scale.datasets()
                if data != "none"
            ]
            table.add_row("", name, f"{scale.count():>4} runs", scale.duration, ", ".join(names))
        console.print(table)
    if absent:
        console.print("For what is missing see [bold]whitenorm data[/].")
    console.print("Run one: [bold]whitenorm run fig3 --scale small[/]")


def list_data(console: Console, data: Path | None, check: bool) -> None:
    """Shows which data sets are there."""
    for row in status(data, checksum=check):
        there = row.state in ("present", "embedded")
        style = "green" if there else "red"
        console.print(f"[bold]{row.name:18}[/][{style}]{row.state:11}[/]{escape(row.title)}")
        place = f"looked for at {row.path}" if row.path else f"comes {row.where}"
        lines = [place]
        if not there:
            lines += [] if row.state == "missing" else list(row.missing)
            lines.append(f"comes from {row.where}")
            if row.may_fetch:
                lines.append(f"whitenorm data --fetch {row.name}")
        for line in lines:
            console.print(Text(f"{'':18}{line}", style="dim"), soft_wrap=True)
