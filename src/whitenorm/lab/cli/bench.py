r"""The command that measures speed and memory."""

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.markup import escape

from whitenorm.lab.bench import SUITES, BenchError, device_suite, fill_page, render, run_suite
from whitenorm.lab.cli.terminal import Out, console
from whitenorm.lab.lookup import look_up


def bench(
    suite: Annotated[
        list[str] | None,
        typer.Option("--suite", help=f"{', '.join(f'`{name}`' for name in SUITES)}; repeatable."),
    ] = None,
    out: Out = Path("benchmarks/results"),
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of each case; by default the suite's.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of torch; by default one a core.")
    ] = None,
    device: Annotated[
        str,
        typer.Option(help="`cuda`: BatchNorm, torch's path and the Triton path on a GPU."),
    ] = "cpu",
    quick: Annotated[
        bool, typer.Option("--quick", help="A few small cases, to see that it works.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Only cases with this in their name, as a partial record."
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Fill this Markdown page from the records in DIR.",
        ),
    ] = None,
) -> None:
    """Time DBN beside BatchNorm and the usual ports, interleaved in one run.

    Writes a record (JSON) for each suite, and its tables (Markdown) beside it. Wants an idle
    machine: the record says so if it wasn't. With `--page` and no `--suite`, nothing is measured.

    Examples:

    - `whitenorm bench --suite summary`

    - `whitenorm bench --suite layer --quick --out /tmp/bench`

    - `whitenorm bench --device cuda --out my-gpu`

    - `whitenorm bench --page docs/performance.md --out benchmarks/results`
    """
    if threads is not None:
        torch.set_num_threads(threads)
    if device == "cpu":
        names = suite or ([] if page else ["summary"])
        suites = [look_up(SUITES, "suite", name) for name in names]
    elif suite:
        raise BenchError("--suite is for the CPU; leave it out with --device")
    else:
        suites = [device_suite(device, quick)]
    for chosen in suites:
        path = run_suite(
            chosen,
            out,
            rounds=rounds,
            quick=quick,
            only=only,
            progress=lambda line: console.print(escape(line), soft_wrap=True),
        )
        for file in [path, *render(path)]:
            console.print(str(file), soft_wrap=True)
    if page is not None:
        console.print(f"{page}: {', '.join(fill_page(page, out))}", soft_wrap=True)
