r"""The tables of a study, each described once: numbers at the end, and verdicts on claims.

:func:`terminal` and :func:`markdown` draw a table; the page (``page.html``) loops over it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table as RichTable
from rich.text import Text

from whitenorm.lab.reporting import markdown as md
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import Curve, Panel, Verdict
from whitenorm.lab.studies.wording import metric_name, number, point_text, summary

__all__ = [
    "UNTESTED",
    "Column",
    "Table",
    "beside_the_paper",
    "bold_status",
    "markdown",
    "numbers",
    "status_words",
    "tabulated",
    "terminal",
    "verdicts",
]


UNTESTED = "not tested at this scale"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        name: Its head.
        kind: "text"; "number", which is aligned to the right; "status", a verdict, which is
            coloured or bold; or "code", a command.
    """

    name: str
    kind: str = "text"


@dataclass(frozen=True)
class Table:
    """What a table says; every cell is plain text, without markup."""

    title: str
    head: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


# --- what they say ------------------------------------------------------------------------------


def numbers(results: Results) -> Table:
    """The last values of every curve, mean ± standard deviation over seeds."""
    several = len(results.scale.panels) > 1
    metrics = results.study.metrics
    rows = []
    for panel, curve in tabulated(results):
        choice = results.choice(curve)
        chosen = point_text(choice.point) or "—"
        row = (
            curve.label,
            chosen if choice.complete else f"{chosen} (grid incomplete)",
            str(len(results.records(curve))),
            *(summary(results.final(curve, metric), metric) for metric in metrics),
        )
        rows.append((panel.name, *row) if several else row)
    texts = ("panel", "curve", "chosen") if several else ("curve", "chosen")
    measured = ("n", *map(metric_name, metrics))
    head = (*(Column(name) for name in texts), *(Column(name, "number") for name in measured))
    return Table(results.study.title, head, tuple(rows))


def tabulated(results: Results) -> list[tuple[Panel, Curve]]:
    """The curves that have a row: all but those that ran and measure none of the metrics."""
    return [
        (panel, curve)
        for panel, curve in results.scale.curves()
        if not results.records(curve)
        or any(results.final(curve, metric).n for metric in results.study.metrics)
    ]


def verdicts(*results: Results) -> Table:
    """What the paper says, and whether these records agree."""
    rows = [
        (each.study.reference, claim.quote, status_words(claim.judge(each), each))
        for each in results
        for claim in each.study.claims
    ]
    head = (Column("where"), Column("the paper says"), Column("these records", "status"))
    return Table("What the paper says", head, tuple(rows))


def beside_the_paper(results: Results) -> Table:
    """The numbers that the paper prints, with ours."""
    rows = []
    for entry in results.study.paper:
        label, metric = entry.curve, metric_name(entry.metric)
        if entry.minus:
            label += f" \N{MINUS SIGN} {entry.minus}"
        if entry.over:
            label += f" / {entry.over}"
            metric = metric.rpartition(" (")[0] + ", ratio"
        paper = number(entry.value)
        if entry.spread is not None:
            paper += f" ± {number(entry.spread)}"
        found = results.ours(entry)
        ours = (
            f"{summary(found, '')} (n={found.n})" if found else "not at this scale, or not yet run"
        )
        rows.append((entry.panel, label, metric, paper, ours))
    texts = (Column(name) for name in ("panel", "curve", "what"))
    return Table(
        "Beside the paper",
        (*texts, Column("paper", "number"), Column("ours", "number")),
        tuple(rows),
    )


def status_words(verdict: Verdict, results: Results) -> str:
    """A verdict in words, which say so if the experiment was smaller than the paper's."""
    if verdict.status == "not tested":
        return UNTESTED
    return verdict.status + ("" if results.scale_name == "paper" else " (reduced size)")


# --- how they look ------------------------------------------------------------------------------


_STATUS_STYLES = {"holds": "green", "holds in part": "yellow", "does not hold": "red"}


def terminal(table: Table) -> RichTable:
    """For a terminal."""
    drawn = RichTable(title=table.title, title_justify="left", title_style="bold")
    for column in table.head:
        drawn.add_column(
            Text(column.name),
            justify="right" if column.kind == "number" else "left",
            no_wrap=column.kind == "status",
            overflow="fold",
        )
    for row in table.rows:
        cells = [Text(cell) for cell in row]
        for column, cell in zip(table.head, cells, strict=True):
            if column.kind == "status":
                cell.stylize(_STATUS_STYLES.get(cell.plain.partition(" (")[0], "dim"))
        drawn.add_row(*cells)
    return drawn


def markdown(table: Table) -> str:
    """For a Markdown page."""
    kinds = [column.kind for column in table.head]
    rows = [
        [_markdown_cell(cell, kind) for cell, kind in zip(row, kinds, strict=True)]
        for row in table.rows
    ]
    return md.table([column.name for column in table.head], rows)


def _markdown_cell(cell: str, kind: str) -> str:
    if kind == "code":
        return f"`{cell}`"
    return bold_status(cell) if kind == "status" else cell


def bold_status(words: str) -> str:
    """The verdict of :func:`status_words` in bold type, in Markdown."""
    status, space, size = words.partition(" (")
    return f"**{status}**{space}{size}" if status in _STATUS_STYLES else words
