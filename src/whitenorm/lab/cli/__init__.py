r"""The ``whitenorm`` command: a module for each group of commands."""

from typing import Annotated

import typer

import whitenorm
from whitenorm.lab.cli.bench import bench
from whitenorm.lab.cli.data import data_command
from whitenorm.lab.cli.studies import demo, pages, report, run, studies
from whitenorm.lab.cli.terminal import reported
from whitenorm.lab.cli.train import train

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


def _version(asked: bool) -> None:
    if asked:
        typer.echo(whitenorm.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    pass


for _command in (demo, studies, run, report, train, data_command, bench, pages):
    app.command(_command.__name__.removesuffix("_command"))(reported()(_command))
