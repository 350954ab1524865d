r"""What a terminal shows while runs are executed: a bar, and a line for each finished run."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from whitenorm.lab.execution.jobs import Failure
from whitenorm.lab.execution.runner import Observer, trace_path
from whitenorm.lab.records.record import Record
from whitenorm.lab.records.run import Run
from whitenorm.lab.studies.study import Scale
from whitenorm.lab.studies.wording import metric_name, number, point_text
from whitenorm.lab.training.trainer import Trainer


class StudyDisplay(Observer):
    """Shows how many runs of a study are finished, and what each came to."""

    def __init__(self, console: Console, out: Path, seeds: int) -> None:
        self.console = console
        self.out = out
        self.seeds = seeds
        self.names: dict[str, str] = {}
        self.warned: set[str] = set()
        self.bar = _bar(console)
        self.task = self.bar.add_task("", total=None)

    def phase(self, name: str, plan: Scale, runs: Sequence[Run], finished: int) -> None:
        """Starts the bar anew."""
        if not runs:
            return
        self.names = _names(plan, self.seeds)
        words = {"grid": "grid search", "seeds": "seeds of what was chosen"}[name]
        if finished:
            count = f"{finished} of {len(runs)}"
            self.console.print(f"[dim]{words}: {count} runs are recorded already")
        self.bar.reset(self.task, description=words, total=len(runs), completed=finished)

    def warning(self, run: Run, text: str) -> None:
        """Says what a run warned of, once for all runs."""
        if text not in self.warned:
            self.warned.add(text)
            name = self.names.get(run.id, run.id)
            self.console.print(
                f"[yellow]warning[/] of {escape(f'{name}: {text}')}", soft_wrap=True
            )

    def record(self, record: Record) -> None:
        """Says what a finished run came to."""
        words = _values(record.final, ("train_loss", "test_error", "swapped"))
        if record.status == "diverged":
            words = f"[yellow]diverged[/]: {escape(record.reason or '')}"
        seconds = record.final.get("seconds")
        self._say(record.run, f"{words}  [dim]{seconds:.1f} s[/]" if seconds else words)

    def failure(self, failure: Failure) -> None:
        """Says which run failed and where the trace is."""
        path = trace_path(self.out, failure.run)
        self._say(failure.run, f"[red]failed[/]: {escape(failure.error)}\n  trace in {path}")

    def _say(self, run: Run, words: str) -> None:
        self.bar.advance(self.task)
        name = escape(self.names.get(run.id, run.id))
        self.console.print(f"{name}  {words}", soft_wrap=True)


class TrainDisplay:
    """Shows how far a single training is: examples a second, time left, points of its curve."""

    def __init__(self, console: Console, run: Run) -> None:
        self.console = console
        self.bar = _bar(console, TextColumn("{task.fields[rate]}"))
        name = f"{run.model['name']}, {run.method['name']}, {run.dataset['name']}"
        self.task = self.bar.add_task(name, total=None, rate="")
        self._begun: tuple[float, int] | None = None  # time and iteration at the first call
        self._shown = (0.0, 0.0)  # iteration of the last point shown, and when it was shown

    def watch(self, trainer: Trainer) -> None:
        """After each iteration: moves the bar and shows a new point of the curve."""
        now, iteration = time.monotonic(), trainer.iteration
        begun, first = self._begun = self._begun or (now, iteration)
        examples = (iteration - first) * trainer.batches.batch_size
        rate = f"{examples / (now - begun):,.0f}/s" if examples and now > begun else ""
        self.bar.update(self.task, completed=iteration, total=trainer.total, rate=rate)
        point, (shown, last) = trainer.last_point(), self._shown
        reached = point.get("iteration") or 0.0
        # A long run may have a point an iteration; one a second is enough to read.
        few = trainer.total <= 100 * trainer.point_every
        if reached > shown and (few or now - last > 1 or iteration == trainer.total):
            self._shown = reached, now
            values = _values(point, ("train_loss", "train_error", "test_error"))
            line = f"epoch {point['epoch']:g}  {values}  [dim]{rate}[/]"
            self.console.print(line, soft_wrap=True)


def _bar(console: Console, *more: TextColumn) -> Progress:
    """A bar with times, to be used as a context manager; nothing where there is no terminal."""
    times = (TimeElapsedColumn(), TextColumn("[dim]left"), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *more, *times)
    shown = console.is_terminal
    return Progress(*columns, console=console, transient=True, disable=not shown)


def _values(point: Mapping[str, float | None], metrics: Iterable[str]) -> str:
    """Those of the metrics that have a value: ``training loss 0.12, test error 3.1``."""
    return ", ".join(
        f"{metric_name(metric).partition(' (')[0]} {number(value)}"
        for metric in metrics
        if (value := point.get(metric)) is not None
    )


def _names(scale: Scale, seeds: int) -> dict[str, str]:
    """Words for every run that a scale may ask for, by id."""
    names: dict[str, str] = {}
    for panel, curve in scale.curves():
        for point in curve.points():
            words = " · ".join(filter(None, (panel.name, curve.label, point_text(point))))
            for seed in range(seeds):
                names.setdefault(curve.seed_run(point, seed).id, f"{words} · seed {seed}")
            for run in curve.grid_runs(point, scale.selection):
                names.setdefault(run.id, words)
    return names
