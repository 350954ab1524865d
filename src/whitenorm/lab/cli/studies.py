r"""The commands for studies: list them, run them, report on their records."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from whitenorm.lab.cli.terminal import (
    CheckpointEvery,
    Data,
    Device,
    Jobs,
    Out,
    Stopped,
    console,
    find_device,
)
from whitenorm.lab.data.for_run import missing
from whitenorm.lab.execution import dry_run as trials
from whitenorm.lab.execution.display import StudyDisplay
from whitenorm.lab.execution.executors import EXECUTORS, ExecutorError
from whitenorm.lab.execution.runner import run_study
from whitenorm.lab.records.record import RecordError, RecordFile
from whitenorm.lab.reporting import tables
from whitenorm.lab.reporting.ledger import fill_pages
from whitenorm.lab.reporting.page import build_report
from whitenorm.lab.studies.catalogue import STUDIES, find_study
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import Study

__all__ = ["demo", "pages", "report", "run", "studies"]


def demo(out: Out = Path("demo"), jobs: Jobs = None) -> None:
    """See within a minute what whitening does.

    Trains the same small network plain, with BN, DBN-PCA and DBN-ZCA on scikit-learn's digits,
    draws how PCA swaps axes, and writes a report.

    Example: `whitenorm demo --out /tmp/demo`
    """
    _run_and_report(find_study("demo"), "small", out, jobs)


def studies(data: Data = None) -> None:
    """List the studies: what each belongs to, needs and costs.

    Example: `whitenorm studies`
    """
    needed = {name for s in STUDIES.values() for x in s.scales.values() for name in x.datasets()}
    absent = missing(sorted(needed), data)
    for study in STUDIES.values():
        console.print(f"[bold]{study.name:8}[/]{escape(f'{study.reference}: {study.title}')}")
        table = Table.grid(padding=(0, 2))
        for width in (8, 6, 9, 22):
            table.add_column(min_width=width)
        for name, scale in study.scales.items():
            names = [
                f"[red]{dataset} (missing)[/]" if dataset in absent else dataset
                for dataset in scale.datasets()
                if dataset != "none"
            ]
            table.add_row("", name, f"{scale.count():>4} runs", scale.duration, ", ".join(names))
        console.print(table)
    if absent:
        console.print("For what is missing see [bold]whitenorm data[/].")
    console.print("Run one: [bold]whitenorm run fig3 --scale small[/]")


def run(
    study: Annotated[str, typer.Argument(help="Name of a study; see `whitenorm studies`.")],
    scale: Annotated[
        str,
        typer.Option(
            help="`small`: the same question in minutes; `reduced`, for some: in an hour of two "
            "cores, on the real data; `paper`: as published. A study may have others."
        ),
    ] = "small",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds to draw; by default the scale's number.")
    ] = None,
    jobs: Jobs = None,
    out: Out = Path("runs"),
    data: Data = None,
    device: Device = "auto",
    executor: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(f'`{name}`' for name in EXECUTORS)}; by default `in-process` for "
            "one job and `processes` for more. RAY_ADDRESS names a running Ray cluster."
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, help="Of each run; results may differ in their last digits.")
    ] = 1,
    checkpoint_every: CheckpointEvery = 60.0,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only try each network: one iteration on made-up data."),
    ] = False,
) -> None:
    """Run a study: its grid search, then its seeds. Writes records, figures and a report.

    What is recorded isn't run again: the same command goes on where it was stopped, by Ctrl-C or
    otherwise.

    Examples:

    - `whitenorm run fig3`

    - `whitenorm run fig4 --scale paper --jobs 2 --data ~/whitenorm-data`

    - `whitenorm run table1 --scale paper --device cuda`

    - `whitenorm run fig5 --executor ray --jobs 16`

    - `whitenorm run table2 --scale paper --dry-run`
    """
    chosen, where = find_study(study), find_device(device)
    if dry_run:
        return _try_networks(chosen, scale, where)
    options = {"data": data, "threads": threads, "checkpoint_every": checkpoint_every}
    _run_and_report(chosen, scale, out, jobs, where, executor, seeds, **options)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder of `run`.")],
) -> None:
    """Rebuild figures and page from records alone.

    Reads every `records/*.jsonl` below DIR; writes DIR/figures and DIR/report.html.

    Example: `whitenorm report runs`
    """
    console.print(f"Report: [bold]{build_report(folder).resolve()}[/]", soft_wrap=True)


def pages(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of records.")],
) -> None:
    """Fill the numbers of Markdown pages from records; for those who write these pages.

    Pages beside DIR, or in docs there, say by `<!-- records: ../DIR -->` that they are about DIR.

    Example: `whitenorm pages results`
    """
    filled = fill_pages(folder)
    if not filled:
        raise RecordError(
            f"no page beside {folder}, or in docs there, has a line <!-- records: ... --> that "
            "names it"
        )
    for page in filled:
        console.print(str(page), soft_wrap=True)


def _run_and_report(
    study: Study,
    scale: str,
    out: Path,
    jobs: int | None,
    device: str = "cpu",
    executor: str | None = None,
    seeds: int | None = None,
    **options: Any,
) -> None:
    """Runs a study, shows what came of it, and builds its folder's report."""
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
    display = StudyDisplay(console, plan, out, seeds)
    try:
        with display.bar:
            outcome = run_study(
                study,
                scale,
                out,
                seeds=seeds,
                executor=executor,
                workers=jobs,
                device=device,
                observer=display,
                **options,
            )
    except KeyboardInterrupt:
        file = RecordFile.of(out, study.name, scale)
        raise Stopped(
            f"{len(file.read())} runs are recorded in {file.path}; the same command goes on from "
            f"there, `whitenorm report {out}` shows what there is"
        ) from None
    for hint in outcome.left_out.values():
        console.print(f"[yellow]Left out[/] for want of data: {escape(hint)}")
    if outcome.records:
        results = Results(study, scale, outcome.records)
        for table in (tables.numbers(results), tables.verdicts(results)):
            console.print(tables.terminal(table))
        page = build_report(out).resolve()
        console.print(f"\nReport: [bold]{page}[/] (open it in a browser)", soft_wrap=True)
    if outcome.failures:
        raise ExecutorError(
            f"{len(outcome.failures)} runs failed; their traces are in {out / 'failures'}. The "
            "same command tries them again"
        )


def _try_networks(study: Study, scale: str, device: str) -> None:
    """Makes one iteration with every network of a study, and shows what came of it."""
    plan = study.scale(scale)
    title = f"{study.title}, scale {scale}: one iteration on made-up data"
    table = Table("panel", "curve", title=title, title_justify="left", title_style="bold")
    for column in ("parameters", "loss", "time"):
        table.add_column(column, justify="right")
    for trial in trials.dry_run(plan, device):
        table.add_row(
            Text(trial.panel),
            Text(trial.label),
            "—" if trial.parameters is None else f"{trial.parameters:,}",
            "—" if trial.loss is None else f"{trial.loss:.3f}",
            f"{trial.seconds:.2f} s",
        )
    console.print(table)
    console.print(f"{plan.count()} runs in all; nothing was recorded.")
