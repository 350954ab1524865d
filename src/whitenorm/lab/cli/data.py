r"""The command for data sets: which are there, and fetching those that may be."""

from typing import Annotated

from rich.markup import escape
from rich.text import Text
from typer import Option

from whitenorm.lab.cli.terminal import Data, console
from whitenorm.lab.data.for_run import unreadable
from whitenorm.lab.data.sources import fetch, status


def data_command(
    fetched: Annotated[
        list[str] | None, Option("--fetch", metavar="NAME", help="Fetch this one; repeatable.")
    ] = None,
    data: Data = None,
    check: Annotated[bool, Option("--check", help="Compare checksums too.")] = False,
) -> None:
    """Say which data sets are there and where each is looked for; fetch those that may be.

    Example: `whitenorm data --fetch mnist --fetch cifar10 --data ~/whitenorm-data`
    """
    for name in fetched or []:
        paths = fetch(name, data, progressbar=console.is_terminal)
        console.print(f"{name}: {len(paths)} files are there, and their checksums are right")
    rows = status(data, checksum=check)
    wrong = unreadable([row.name for row in rows if row.state == "present"], data)
    for row in rows:
        state = "unreadable" if row.name in wrong else row.state
        there = state in ("present", "embedded")
        style = "green" if there else "red"
        console.print(f"[bold]{row.name:18}[/][{style}]{state:11}[/]{escape(row.title)}")
        lines = [f"looked for at {row.path}" if row.path else f"comes {row.where}"]
        if state == "unreadable":
            lines.append(wrong[row.name])
        elif not there:
            lines += [] if row.state == "missing" else row.missing
            lines.append(f"comes from {row.where}")
            if row.may_fetch:
                lines.append(f"whitenorm data --fetch {row.name}")
        for line in lines:
            console.print(Text(f"{'':18}{line}", style="dim"), soft_wrap=True)
