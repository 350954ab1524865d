r"""What a study looks like while it runs: live on a terminal, a line a run anywhere else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from whitenorm.lab.execution.board import Board
from whitenorm.lab.execution.runner import Failure, Observer
from whitenorm.lab.records.record import Record
from whitenorm.lab.records.run import Run
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import Scale, Study
from whitenorm.lab.studies.wording import metric_name, number, point_text, summary
from whitenorm.lab.training.trainer import Progress

__all__ = ["StudyDisplay", "TrainDisplay", "numbers_table", "verdict_table"]

STATUS_STYLES = {
    "holds": "green",
    "holds in part": "yellow",
    "does not hold": "red",
    "not tested": "dim",
}


class StudyDisplay(Observer):
    """Shows how far a study is, and what each run in progress last said.

    Args:
        console: Where to.
        study: What is run.
        scale: At which of its scales.
        out: The output folder.
        seeds: How many are drawn.
    """

    def __init__(self, console: Console, study: Study, scale: str, out: Path, seeds: int) -> None:
        self.console = console
        self.board = Board.of(out, study.name, scale)
        self.names = _names(study.scale(scale), seeds)
        self.failures = out / "failures"
        self.finished = 0
        self.task: TaskID | None = None
        self.progress = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[finished]}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn("[dim]left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.live = Live(
            console=console, get_renderable=self._render, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> StudyDisplay:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def phase(self, name: str, runs: Sequence[Run], finished: int) -> None:
        """Starts a bar for the phase."""
        if not runs:
            return
        words = {"grid": "grid search", "seeds": "seeds of what was chosen"}[name]
        if finished:
            self.console.print(
                f"[dim]{words}: {finished} of {len(runs)} runs are recorded already"
            )
        if self.task is not None:
            self.progress.update(self.task, visible=False)
        self.finished = finished
        self.task = self.progress.add_task(
            words, total=len(runs), completed=finished, finished=finished
        )

    def record(self, record: Record) -> None:
        """Says what a finished run came to."""
        self.finished += 1
        end = record.final
        words = [
            f"{metric_name(metric).partition(' (')[0]} {number(value)}"
            for metric in ("train_loss", "test_error", "swapped")
            if (value := end.get(metric)) is not None
        ]
        if record.status == "diverged":
            words = [f"[yellow]diverged[/]: {escape(record.reason or '')}"]
        seconds = f"[dim]{end['seconds']:.1f} s[/]" if end.get("seconds") else ""
        line = f"{self._name(record.run)}  {', '.join(words)}  {seconds}".rstrip()
        self.console.print(line, soft_wrap=True)

    def failure(self, failure: Failure) -> None:
        """Says which run failed and where the trace is."""
        self.failures.mkdir(parents=True, exist_ok=True)
        path = self.failures / f"{failure.run.id}.txt"
        path.write_text(f"{failure.run.settings()}\n\n{failure.trace}")
        self.console.print(
            f"{self._name(failure.run)}  [red]failed[/]: {escape(failure.error)}\n"
            f"  trace in {path}",
            soft_wrap=True,
        )

    def _name(self, run: Run) -> str:
        return escape(self.names.get(run.id, run.id))

    def _render(self) -> Group:
        notices = self.board.read()
        parts = [n["iteration"] / max(n["total"], 1) for n in notices.values()]
        if self.task is not None:
            self.progress.update(
                self.task, completed=self.finished + sum(parts), finished=self.finished
            )
        table = Table.grid(padding=(0, 2))
        for key, notice in notices.items():
            table.add_row(Text(self.names.get(key, key)), *_cells(notice))
        return Group(self.progress, table)


def _cells(notice: dict[str, Any]) -> list[str]:
    point, waiting = notice["point"], time.time() - notice["time"]
    loss = point.get("train_loss")
    return [
        f"{notice['iteration']}/{notice['total']}",
        f"loss {number(loss)}" if loss is not None else "",
        f"[dim]silent for {waiting:.0f} s[/]" if waiting > 30 else "",
    ]


def _names(scale: Scale, seeds: int) -> dict[str, str]:
    """Words for every run that a scale may ask for."""
    names: dict[str, str] = {}
    for panel, curve in scale.curves():
        for point in curve.points():
            words = " · ".join(filter(None, (panel.name, curve.label, point_text(point))))
            for seed in range(seeds):
                names.setdefault(curve.seed_run(point, seed).id, f"{words} · seed {seed}")
            names.setdefault(curve.grid_run(point, scale.selection).id, words)
    return names


def numbers_table(results: Results) -> Table:
    """The numbers at the end, mean and spread over seeds."""
    table = Table(title=results.study.title, title_justify="left", title_style="bold")
    several = len(results.scale.panels) > 1
    for column in [*(["panel"] if several else []), "curve", "chosen"]:
        table.add_column(column)
    for column in ["n", *map(metric_name, results.study.metrics)]:
        table.add_column(column, justify="right")
    for panel, curve in results.scale.curves():
        values = [summary(results.final(curve, m), m) for m in results.study.metrics]
        if any(value != "—" for value in values):
            table.add_row(
                *([panel.name] if several else []),
                curve.label,
                point_text(results.choice(curve).point) or "—",
                str(len(results.records(curve))),
                *values,
            )
    return table


def verdict_table(results: Results) -> Table:
    """What the paper says, and whether these records agree."""
    table = Table(title="What the paper says", title_justify="left", title_style="bold")
    table.add_column("claim", ratio=1)
    table.add_column("these records", no_wrap=True)
    for claim in results.study.claims:
        status = claim.judge(results).status
        table.add_row(Text(claim.quote), f"[{STATUS_STYLES[status]}]{status}[/]")
    return table


class TrainDisplay:
    """Shows how far a single training is: examples a second, time left, last point of its curve.

    Args:
        console: Where to.
        run: What is trained.
    """

    def __init__(self, console: Console, run: Run) -> None:
        self.console = console
        self.progress = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("[dim]left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        name = f"{run.model['name']}, {run.method['name']}, {run.dataset['name']}"
        self.task = self.progress.add_task(name, total=None, rate="")
        self._begun: tuple[float, int] | None = None
        self._said = 0.0  # the update of the last point that was said
        self._last = 0.0  # and when

    def __enter__(self) -> TrainDisplay:
        if self.console.is_terminal:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.progress.stop()

    def watch(self, progress: Progress) -> None:
        """After each update: moves the bar; says each new point of the curve."""
        now = time.monotonic()
        if self._begun is None:
            self._begun = now, progress.examples
        seconds, examples = now - self._begun[0], progress.examples - self._begun[1]
        rate = f"{examples / seconds:,.0f}/s" if examples and seconds else ""
        self.progress.update(
            self.task, completed=progress.iteration, total=progress.total, rate=rate
        )
        point = progress.point
        reached = point.get("iteration") or 0.0
        # A full batch may have a point an update; one a second is enough to read.
        if reached > self._said and (now - self._last > 1 or progress.iteration == progress.total):
            self._said, self._last = reached, now
            words = [
                f"{metric_name(metric).partition(' (')[0]} {number(value)}"
                for metric in ("train_loss", "train_error", "test_error")
                if (value := point.get(metric)) is not None
            ]
            self.console.print(f"epoch {point['epoch']:g}  {', '.join(words)}  [dim]{rate}[/]")
