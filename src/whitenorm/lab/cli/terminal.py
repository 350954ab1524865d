r"""Where commands write, the options that several have, and how they end."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
from rich.console import Console
from rich.markup import escape
from typer import Exit, Option

from whitenorm.lab.bench import BenchError
from whitenorm.lab.data.sources import DataError
from whitenorm.lab.execution.executors import ExecutorError
from whitenorm.lab.records.record import RecordError
from whitenorm.lab.training.checkpoints import CheckpointError


def _console(stderr: bool = False) -> Console:
    """A console as wide as the terminal, which doesn't wrap what goes into a file or pipe."""
    stream = sys.stderr if stderr else sys.stdout
    known = stream.isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, highlight=False, width=None if known else 1000)


console = _console()
errors = _console(stderr=True)

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended
REPORTED = (BenchError, DataError, RecordError, CheckpointError, ExecutorError, ValueError)

Out = Annotated[Path, Option("--out", "-o", metavar="DIR", help="Output folder.")]
Data = Annotated[Path | None, Option(metavar="DIR", help="Data folder, or $WHITENORM_DATA.")]
Device = Annotated[str, Option(help="`cpu`, `cuda`, `cuda:1`; `auto` is a GPU if there is one.")]
Jobs = Annotated[
    int | None,
    Option("--jobs", "-j", min=1, help="Runs at a time; by default one a core, or 1 on a GPU."),
]
CheckpointEvery = Annotated[float, Option(min=0, help="Seconds between checkpoints.")]


class Stopped(Exception):
    """Ctrl-C ended the command; the message says what is kept and how to go on."""


@contextmanager
def reported() -> Iterator[None]:
    """Errors that a user can do something about end in one line, not in a trace."""
    try:
        yield
    except Stopped as stopped:
        console.print(f"\nStopped: {escape(str(stopped))}.", soft_wrap=True)
        raise Exit(INTERRUPTED) from None
    except REPORTED as error:
        errors.print(f"[red]error[/]: {escape(str(error))}", soft_wrap=True)
        raise Exit(1) from None
    except OSError as error:
        where = f" at {error.filename}" if error.filename else ""
        words = f"can't read or write{where}: {error.strerror or error}; give another --out"
        errors.print(f"[red]error[/]: {escape(words)}", soft_wrap=True)
        raise Exit(1) from None


def find_device(name: str) -> str:
    """The device of that name, if it is there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"unknown device {name!r}: {error}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} was asked for, but torch sees no GPU here")
    return str(device)
