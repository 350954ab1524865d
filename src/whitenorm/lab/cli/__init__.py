r"""The ``whitenorm`` command: a module for each group of commands."""

from __future__ import annotations

from collections.abc import Callable

import typer

from whitenorm.lab.cli.bench import bench
from whitenorm.lab.cli.data import data_command
from whitenorm.lab.cli.studies import demo, pages, report, run, studies
from whitenorm.lab.cli.terminal import console, errors, reported
from whitenorm.lab.cli.train import train

__all__ = ["app", "console", "errors"]

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
_COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "studies": studies,
    "run": run,
    "report": report,
    "train": train,
    "data": data_command,
    "bench": bench,
    "pages": pages,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(reported()(_command))
