r"""The tables of a study, each described once: numbers at the end, and verdicts on claims.

:func:`terminal` and :func:`markdown` draw a table; the page (``page.html``) loops over it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table as RichTable
from rich.text import Text

from whitenorm.lab.reporting import markdown as md
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import Claim, Curve, Panel, Verdict
from whitenorm.lab.studies.wording import (
    effect_text,
    interval_text,
    metric_name,
    number,
    point_text,
    summary,
)

_STATUS_STYLES = {"supported": "green", "undecided": "yellow", "contradicted": "red"}


@dataclass(frozen=True)
class Table:
    """What a table says; every cell is plain text, without markup."""

    title: str
    # The kind of each column, by name: "text"; "number", which is aligned to the right; "status",
    # a verdict, which is coloured or bold; or "code", a command.
    head: Mapping[str, str]
    rows: Sequence[Sequence[str]]


def numbers(results: Results) -> Table:
    """The last values of every curve, mean ± standard deviation over seeds."""
    metrics = results.study.metrics
    rows = []
    for panel, curve in tabulated(results):
        choice = results.choice(curve)
        chosen = point_text(choice.point) or "—"
        chosen += "" if choice.complete else " (grid incomplete)"
        finals = [summary(results.final(curve, metric), metric) for metric in metrics]
        rows.append([panel.name, curve.label, chosen, str(len(results.records(curve))), *finals])
    head = dict.fromkeys(("panel", "curve", "chosen"), "text")
    head |= dict.fromkeys(("n", *map(metric_name, metrics)), "number")
    if len(results.scale.panels) == 1:
        del head["panel"]
        rows = [row[1:] for row in rows]
    return Table(results.study.title, head, rows)


def tabulated(results: Results) -> list[tuple[Panel, Curve]]:
    """The curves that have a row: all but those that ran and measure none of the metrics."""
    return [
        (panel, curve)
        for panel, curve in results.scale.curves()
        if not results.records(curve)
        or any(results.final(curve, metric).n for metric in results.study.metrics)
    ]


def verdicts(*results: Results) -> Table:
    """What the paper says, or a study beyond it, and whether these records agree."""
    rows = [
        (each.study.reference, claim.quote, status_words(claim, each))
        for each in results
        for claim in each.study.claims
    ]
    head = {"where": "text", "claim": "text", "these records": "status"}
    return Table("Claims", head, rows)


def effects(verdict: Verdict) -> str:
    """The effects behind a verdict: the only one, or the smallest and the largest of a kind."""
    found = [c.effect for c in verdict.evidence if c.effect and c.mark != "not tested"]
    texts = []
    for ratio in (False, True):
        kind = sorted((e for e in found if e.ratio == ratio), key=lambda e: e.estimate)
        if kind:
            ends = dict.fromkeys((effect_text(kind[0]), interval_text(kind[-1])))
            several = len(kind) > 1 and kind[0] != kind[-1]
            texts.append(" to ".join(ends) if several else effect_text(kind[0]))
    return "; ".join(texts) or "—"


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
        paper = number(entry.value) + (f" ± {number(entry.spread)}" if entry.spread else "")
        found = results.ours(entry)
        ours = f"{summary(found, '')} (n={found.n})" if found else "not run at this scale"
        rows.append((entry.panel, label, metric, paper, ours))
    head = dict.fromkeys(("panel", "curve", "what"), "text") | {
        "paper": "number",
        "ours": "number",
    }
    return Table("Beside the paper", head, rows)


def status_words(claim: Claim, results: Results | None) -> str:
    """The verdict in words, with what it rests on where that is less than the paper's claim."""
    verdict = claim.judge(results) if results else None
    if results is None or verdict is None or verdict.status == "not tested":
        return "not tested at this scale"
    notes = []
    judged = sum(n for mark, n in verdict.counts.items() if mark != "not tested")
    if verdict.status != "supported" and judged > 1:
        supporting, opposing = (verdict.counts.get(m, 0) for m in ("supported", "contradicted"))
        verb = "supports" if supporting == 1 else "support"
        notes.append(f"{supporting} of {judged} comparisons {verb} it")
        if opposing:
            notes.append(f"{opposing} {'contradicts' if opposing == 1 else 'contradict'} it")
    if (few := _fewer_panels(claim, verdict, results)) is not None:
        notes.append(few)
    if results.scale_name != "paper" and results.scale.reduced:
        notes.append("reduced size")
    return f"{verdict.status} ({'; '.join(notes)})" if notes else verdict.status


def _fewer_panels(claim: Claim, verdict: Verdict, results: Results) -> str | None:
    """Of the networks or settings that the claim is about, how many were run, or judged."""
    if "paper" not in results.study.scales:
        return None
    asked = claim.judge(Results(results.study, "paper", {})).evidence
    whole = len({comparison.panel for comparison in asked})
    run = len({comparison.panel for comparison in verdict.evidence})
    judged = len({c.panel for c in verdict.evidence if c.mark != "not tested"})
    if judged >= whole:
        return None
    return f"{judged} of {whole} cases {'run' if judged == run else 'judged'}"


def span(values: Collection[Any]) -> str:
    """From the smallest to the largest: "3 to 5", or "2" if all are the same, or "no"."""
    ends = dict.fromkeys((min(values), max(values))) if values else ["no"]
    return " to ".join(map(str, ends))


def terminal(table: Table) -> RichTable:
    """For a terminal."""
    drawn = RichTable(title=table.title, title_justify="left", title_style="bold")
    for name, kind in table.head.items():
        justify: Any = "right" if kind == "number" else "left"
        whole = kind == "status" or name in ("curve", "where")
        drawn.add_column(Text(name), justify=justify, no_wrap=whole, overflow="fold")
    for row in table.rows:
        cells = [Text(cell) for cell in row]
        for kind, cell in zip(table.head.values(), cells, strict=True):
            if kind == "status":
                cell.stylize(_STATUS_STYLES.get(cell.plain.partition(" (")[0], "dim"))
        drawn.add_row(*cells)
    return drawn


def markdown(table: Table) -> str:
    """For a Markdown page."""
    markups = {"code": "`{}`".format, "status": bold_status}
    marked = [markups.get(kind, str) for kind in table.head.values()]
    rows = [[mark(cell) for mark, cell in zip(marked, row, strict=True)] for row in table.rows]
    return md.table(list(table.head), rows)


def bold_status(words: str) -> str:
    """The verdict of :func:`status_words` in bold type, in Markdown."""
    status, space, size = words.partition(" (")
    return f"**{status}**{space}{size}" if status in _STATUS_STYLES else words
