r"""The commands for studies: list them, run them, report on their records."""

import os
from pathlib import Path
from typing import Annotated

from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from whitenorm.lab.cli import terminal
from whitenorm.lab.cli.terminal import console
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
from whitenorm.lab.studies.study import Scale

SCALES = (
    "`small`: the same question in minutes; `long`, for some: smaller than published, in hours of "
    "two cores; `paper`: as published. A study may have others."
)
EXECUTOR = (
    f"{', '.join(f'`{name}`' for name in EXECUTORS)}; by default `in-process` for one job and "
    "`processes` for more. RAY_ADDRESS names a running Ray cluster."
)
PANEL = "Run this panel alone; may be given several times. By default all."
DRY_RUN = "Only try each network: one update on made-up data."


def demo(out: terminal.Out = Path("demo"), jobs: terminal.Jobs = None) -> None:
    """See in a minute what whitening is for.

    Trains the same small network plain, with BN, DBN-PCA and DBN on patches of photographs, where
    pixels are correlated, and on digits, where they hardly are; draws correlations before and
    after a layer, and how PCA swaps axes; writes a report. The data is inside scikit-learn.

    Example: `whitenorm demo --out /tmp/demo`
    """
    run("demo", jobs=jobs, out=out, device="cpu")


def studies(data: terminal.Data = None) -> None:
    """List the studies: what each belongs to, needs and costs.

    Example: `whitenorm studies`
    """
    needed = {name for s in STUDIES.values() for x in s.scales.values() for name in x.datasets()}
    absent = missing(sorted(needed), data)
    for study in STUDIES.values():
        console.print(f"[bold]{study.name:10}[/]{escape(f'{study.reference}: {study.title}')}")
        for name, scale in study.scales.items():
            needs = ", ".join(
                f"[red]{dataset} (missing)[/]" if dataset in absent else dataset
                for dataset in scale.datasets()
                if dataset != "none"
            )
            console.print(f"{'':10}{name:8}{scale.count():>4} runs  {scale.duration:33}  {needs}")
    if absent:
        console.print("For what is missing see [bold]whitenorm data[/].")
    there = [s for s in STUDIES.values() if not {*s.scale("small").datasets()} & absent.keys()]
    console.print(f"Run one: [bold]whitenorm run {there[0].name} --scale small[/]")


def run(
    study: Annotated[str, Argument(help="Name of a study; see `whitenorm studies`.")],
    scale: Annotated[str, Option(help=SCALES)] = "small",
    seeds: Annotated[
        int | None, Option(min=1, help="How many; by default the scale's number.")
    ] = None,
    panel: Annotated[list[str] | None, Option(help=PANEL)] = None,
    jobs: terminal.Jobs = None,
    out: terminal.Out = Path("runs"),
    data: terminal.Data = None,
    device: terminal.Device = "auto",
    executor: Annotated[str | None, Option(help=EXECUTOR)] = None,
    threads: Annotated[
        int, Option(min=1, help="Of each run; more may change the last digits.")
    ] = 1,
    checkpoint_every: terminal.CheckpointEvery = 60.0,
    dry_run: Annotated[bool, Option("--dry-run", help=DRY_RUN)] = False,
) -> None:
    """Run a study: its grid search, then its seeds. Writes records, figures and a report.

    What is recorded isn't run again: the same command goes on where it was stopped, by Ctrl-C or
    otherwise.

    Examples:

    - `whitenorm run fig3`

    - `whitenorm run fig4 --scale paper --jobs 2 --data ~/whitenorm-data`

    - `whitenorm run fig5 --executor ray --jobs 16`

    - `whitenorm run fig6 --panel Adam --panel ELU`
    """
    chosen, device = find_study(study), terminal.find_device(device)
    plan = chosen.scale(scale, panel or ())
    if dry_run:
        return _try_networks(plan, f"{chosen.title}, scale {scale}", device)
    seeds = seeds or plan.seeds
    if jobs is None:
        jobs = 1 if device != "cpu" or executor == "in-process" else os.cpu_count() or 1
    executor = executor or ("in-process" if jobs == 1 else "processes")
    if executor == "in-process" and jobs > 1:
        raise ExecutorError(f"the executor 'in-process' does one run at a time, --jobs is {jobs}")
    console.print(
        f"[bold]{escape(chosen.title)}[/] ({chosen.reference}, scale {scale}): "
        f"{plan.count(seeds)} runs, {jobs} at a time, {executor}, into {out}"
    )
    display = StudyDisplay(console, out, seeds)
    try:
        with display.bar:
            outcome = run_study(
                chosen,
                scale,
                out,
                seeds=seeds,
                panels=panel or (),
                executor=executor,
                workers=jobs,
                data=data,
                observer=display,
                device=device,
                threads=threads,
                checkpoint_every=checkpoint_every,
            )
    except KeyboardInterrupt:
        file = RecordFile.of(out, study, scale)
        raise terminal.Stopped(
            f"{len(file.read())} runs are recorded in {file.path}; the same command goes on from "
            f"there, `whitenorm report {out}` shows what there is"
        ) from None
    for hint in outcome.left_out.values():
        console.print(f"[yellow]Left out[/] for want of data: {escape(hint)}")
    if outcome.records:
        results = Results(chosen, scale, outcome.records)
        for table in (tables.numbers(results), tables.verdicts(results)):
            console.print(tables.terminal(table))
        if chosen.summary:
            console.print(escape(chosen.summary(results)))
        report(out)
    if outcome.failures:
        raise ExecutorError(
            f"{len(outcome.failures)} runs failed; their traces are in {out / 'failures'}. The "
            "same command tries them again"
        )


def report(
    folder: Annotated[Path, Argument(metavar="DIR", help="Output folder of `run`.")],
) -> None:
    """Rebuild figures and page from records alone.

    Reads every `records/*.jsonl` below DIR; writes DIR/figures and DIR/report.html.

    Example: `whitenorm report runs`
    """
    page = build_report(folder).resolve()
    console.print(f"Report: [bold]{page}[/] (open it in a browser)", soft_wrap=True)


def pages(folder: Annotated[Path, Argument(metavar="DIR", help="Folder of records.")]) -> None:
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


def _try_networks(plan: Scale, title: str, device: str) -> None:
    """Makes one iteration with every network of a study, and shows what came of it."""
    title += ": one update on made-up data"
    table = Table("panel", "curve", title=title, title_justify="left", title_style="bold")
    for column in ("parameters", "loss", "time"):
        table.add_column(column, justify="right")
    for trial in trials.dry_run(plan, device):
        parameters = "—" if trial.parameters is None else f"{trial.parameters:,}"
        loss = "—" if trial.loss is None else f"{trial.loss:.3f}"
        time = f"{trial.seconds:.2f} s"
        table.add_row(Text(trial.panel), Text(trial.label), parameters, loss, time)
    console.print(table)
    console.print(f"{plan.count()} runs in all; nothing was recorded.")
