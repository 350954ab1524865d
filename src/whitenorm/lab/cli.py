r"""The ``whitenorm`` command: what can be asked for. What it does is in ``commands.py``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape

from whitenorm.lab import commands
from whitenorm.lab.bench import SUITES, BenchError, render, run_bench
from whitenorm.lab.data.sources import DataError, fetch
from whitenorm.lab.execution.executors import EXECUTORS, ExecutorError
from whitenorm.lab.records.record import RecordError
from whitenorm.lab.records.run import Run
from whitenorm.lab.reporting.page import build_report
from whitenorm.lab.studies.catalogue import find_study
from whitenorm.lab.training.checkpoints import CheckpointError
from whitenorm.lab.training.replicas import number_of_replicas

__all__ = ["app"]

app = typer.Typer(
    name="whitenorm",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""
Decorrelated Batch Normalization: every figure and table of the paper as a command.

Start with `whitenorm demo`, see `whitenorm studies`, then for example `whitenorm run fig3`.
Data is looked for below `--data DIR`, or $WHITENORM_DATA; see `whitenorm data`.
""",
)
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended

Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Output folder.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Data folder; $WHITENORM_DATA by default."),
]
Device = Annotated[
    str, typer.Option("--device", help="`cpu`, `cuda`, `cuda:1`; `auto` is a GPU if there is one.")
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Runs at a time; one a core, or 1 on a GPU."),
]
CheckpointEvery = Annotated[
    float, typer.Option("--checkpoint-every", min=0, help="Seconds between checkpoints.")
]


@contextmanager
def _reported() -> Iterator[None]:
    """Errors that a user can do something about end in one line, not in a trace."""
    try:
        yield
    except commands.Stopped as stopped:
        console.print(f"\nStopped: {escape(str(stopped))}.", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    except (
        BenchError,
        DataError,
        RecordError,
        CheckpointError,
        ExecutorError,
        ValueError,
    ) as error:
        errors.print(f"[red]error[/]: {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from None


@app.command()
def demo(out: Out = Path("demo"), jobs: Jobs = None) -> None:
    """See within a minute what whitening does.

    Trains the same small network plain, with BN, DBN-PCA and DBN-ZCA on scikit-learn's digits,
    draws how PCA swaps axes, and writes a report.

    Example: `whitenorm demo --out /tmp/demo`
    """
    _run("demo", "small", out, jobs=jobs)


@app.command()
def studies(data: Data = None) -> None:
    """List the studies: what each belongs to, needs and costs.

    Example: `whitenorm studies`
    """
    with _reported():
        commands.list_studies(console, data)


@app.command()
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
        bool, typer.Option("--dry-run", help="Only try each network: one update on made-up data.")
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
    if dry_run:
        with _reported():
            commands.try_study(console, find_study(study), scale, _device(device))
        return
    options = {"data": data, "executor": executor, "threads": threads}
    _run(
        study,
        scale,
        out,
        seeds=seeds,
        jobs=jobs,
        device=device,
        checkpoint_every=checkpoint_every,
        **options,
    )


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder of `run`.")],
) -> None:
    """Rebuild figures and page from records alone.

    Reads every `records/*.jsonl` below DIR; writes DIR/figures and DIR/report.html. Pages beside
    DIR, or in docs there, that name it as their records have their numbers filled in.

    Example: `whitenorm report runs`
    """
    with _reported():
        page = build_report(folder).resolve()
        console.print(f"Report: [bold]{page}[/]", soft_wrap=True)


@app.command()
def train(
    dataset: Annotated[str, typer.Option(help="`digits`, `mnist`, `cifar10`, ...")] = "digits",
    model: Annotated[str, typer.Option(help="`mlp`, `vgg-a`, `resnet`, `wrn`, ...")] = "mlp",
    norm: Annotated[str, typer.Option(help="`plain`, `bn`, `ln`, `nnn`, `dbn`, ...")] = "dbn",
    optimiser: Annotated[str, typer.Option(help="`sgd` or `adam`.")] = "sgd",
    lr: Annotated[float, typer.Option(help="Learning rate at the start.")] = 0.1,
    momentum: Annotated[float | None, typer.Option(help="Of SGD.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of all parameters.")] = None,
    schedule: Annotated[
        str,
        typer.Option(
            help="`constant`; `halve` every `schedule.interval` updates; `steps`, times "
            "`schedule.factor` at the epochs `schedule.at`."
        ),
    ] = "constant",
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the data; 10.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Or: how many updates.")] = None,
    batch_size: Annotated[int, typer.Option(min=0, help="0 for all examples at once.")] = 128,
    seed: Annotated[int, typer.Option(help="Of everything that is random.")] = 0,
    precision: Annotated[
        str, typer.Option(help="`float32`, `float64`, or `bf16` (autocast).")
    ] = "float32",
    accumulate: Annotated[
        int, typer.Option(min=1, help="Parts that a batch is cut into, to save memory.")
    ] = 1,
    channels_last: Annotated[
        bool, typer.Option("--channels-last", help="Channels last in memory, for pictures.")
    ] = False,
    sync: Annotated[
        bool,
        typer.Option("--sync", help="DBN layers whiten with the statistics of all replicas."),
    ] = False,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Any other setting of a run; VALUE is JSON or text.",
        ),
    ] = None,
    out: Out = Path("runs/train"),
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from this run's checkpoint in the output folder."),
    ] = False,
    checkpoint_every: CheckpointEvery = 60.0,
    data: Data = None,
    device: Device = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="By default one a core.")] = None,
    tensorboard: Annotated[
        bool, typer.Option(help="Log to DIR/tensorboard too, for `tensorboard --logdir`.")
    ] = True,
) -> None:
    """Train one configuration, with checkpoints, and write its record.

    Ctrl-C stops after the update at hand and keeps a checkpoint; `--resume` goes on from it, to
    the same result as if nothing had happened.

    Started by torchrun, its processes train together: a batch is shared out among them, and each
    normalises with its own part, as the paper's GPUs did, unless `--sync` is given.

    Examples:

    - `whitenorm train --norm dbn --set method.group_size=8 --epochs 20`

    - `whitenorm train --dataset mnist --set model.hidden=[100,100] --lr 0.5 --precision bf16`

    - `whitenorm train --dataset cifar10 --set dataset.augment=crop+flip --model resnet
      --set model.depth=20 --momentum 0.9 --weight-decay 1e-4 --schedule steps
      --set schedule.at=[80,120] --epochs 160 --out runs/res20`

    - `torchrun --nproc-per-node 2 -m whitenorm.lab train --dataset mnist --norm dbn --sync`
    """
    given = {"momentum": momentum, "weight_decay": weight_decay}
    with _reported():
        chosen = Run(
            {"name": dataset},
            {"name": model},
            {"name": norm},
            {"name": optimiser, "lr": lr, **{k: v for k, v in given.items() if v is not None}},
            {"name": schedule},
            epochs=10 if epochs is None and iterations is None else epochs,
            iterations=iterations,
            batch_size=batch_size or None,
            precision=precision,
            accumulate=accumulate,
            channels_last=channels_last,
            replicas=number_of_replicas(),
            synchronized=sync,
            seed=seed,
        ).changed(dict(map(_setting, options or [])))
        main = os.environ.get("RANK", "0") == "0"
        commands.train_one(
            console if main else Console(quiet=True),
            chosen,
            out,
            resume=resume,
            checkpoint_every=checkpoint_every,
            data=data,
            device=_device(device),
            threads=threads,
            tensorboard=tensorboard,
        )


@app.command("data")
def data_command(
    fetched: Annotated[
        list[str] | None,
        typer.Option("--fetch", metavar="NAME", help="Fetch this one; may be given repeatedly."),
    ] = None,
    data: Data = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare checksums too, which reads every file.")
    ] = False,
) -> None:
    """Say which data sets are there and where each is looked for; fetch those that may be.

    Examples:

    - `whitenorm data --data ~/whitenorm-data`

    - `whitenorm data --fetch mnist --fetch cifar10 --data ~/whitenorm-data`
    """
    with _reported():
        for name in fetched or []:
            paths = fetch(name, data, progressbar=console.is_terminal)
            console.print(f"{name}: {len(paths)} files are there, and their checksums are right")
        commands.list_data(console, data, check)


@app.command()
def bench(
    suite: Annotated[
        list[str] | None,
        typer.Option("--suite", help=f"{', '.join(f'`{name}`' for name in SUITES)}; repeatable."),
    ] = None,
    out: Out = Path("benchmarks/results"),
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds a case, at least.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of torch; one a core.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes, to see that it works; doesn't count.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Cases with this in their name; partial.")
    ] = None,
    fresh_memory: Annotated[
        bool, typer.Option("--fresh-memory", help="Let the allocator give memory back; noisy.")
    ] = False,
) -> None:
    """Time DBN beside BatchNorm and the usual ports, interleaved in one run.

    Wants an idle machine: the record says so if it wasn't.

    Examples:

    - `whitenorm bench --suite bars`

    - `whitenorm bench --suite layer --quick --out /tmp/bench`
    """
    with _reported():
        for name in suite or ["bars"]:
            path = run_bench(
                name,
                rounds,
                out,
                threads,
                lambda line: console.print(escape(line)),
                quick=quick,
                only=only,
                fresh_memory=fresh_memory,
            )
            for file in [path, *render(path, out)]:
                console.print(str(file), soft_wrap=True)


def _run(study: str, scale: str, out: Path, device: str = "cpu", **options: Any) -> None:
    with _reported():
        page, failed = commands.run_and_report(
            console, find_study(study), scale, out, device=_device(device), **options
        )
        console.print(f"\nReport: [bold]{page}[/] (open it in a browser)", soft_wrap=True)
        if failed:
            raise ExecutorError(
                f"{failed} runs failed; their traces are in {out / 'failures'}. The same command "
                "tries them again"
            )


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"unknown device {name!r}: {error}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} was asked for, but torch sees no GPU here")
    return str(device)


def _setting(text: str) -> tuple[str, Any]:
    path, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set takes PATH=VALUE, e.g. model.depth=20, got {text!r}")
    try:
        return path, json.loads(value)
    except json.JSONDecodeError:
        return path, value
