r"""The ledger: what the paper claims and what the records say, as blocks of Markdown pages.

A page names its records, ``<!-- records: ../results -->``, and has blocks to be filled:
``<!-- results: summary -->`` with a row a claim, ``verdicts`` with those that were judged,
shorter, and for each study and scale ``fig3-paper-setting``, ``fig3-paper-claims`` and
``fig3-paper-numbers``. A folder with a ``costs.json`` (:mod:`whitenorm.lab.reporting.costs`)
has a block ``costs`` too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from whitenorm.lab.records.record import RecordError
from whitenorm.lab.reporting.costs import costs_table
from whitenorm.lab.reporting.markdown import fill_blocks, table
from whitenorm.lab.studies.catalogue import STUDIES
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import Study, Verdict
from whitenorm.lab.studies.wording import metric_name, point_text, summary

__all__ = ["fill_pages", "ledger"]

_SOURCE = re.compile(r"<!-- records: (\S+) -->")


def fill_pages(folder: Path, found: Sequence[Results]) -> list[Path]:
    """Fills the pages beside a folder of records, and in ``docs`` there, that are about it."""
    folder = Path(folder).resolve()
    pages = [page for page in _pages(folder.parent) if _source(page) == folder]
    if not pages:
        return []
    blocks = ledger(found)
    if (costs := folder / "costs.json").exists():
        blocks["costs"] = costs_table(json.loads(costs.read_text(encoding="utf-8")))
    for page in pages:
        text, _, unknown = fill_blocks(page.read_text(encoding="utf-8"), "results", blocks)
        if unknown:
            raise RecordError(
                f"{page} asks for {', '.join(unknown)}, which the records of {folder} don't give; "
                f"they give {', '.join(blocks)}"
            )
        page.write_text(text, encoding="utf-8")
    return pages


def _pages(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.md"), *folder.glob("docs/**/*.md")])


def _source(page: Path) -> Path | None:
    """The folder of records that a page is about."""
    named = _SOURCE.search(page.read_text(encoding="utf-8"))
    return None if named is None else (page.parent / named[1]).resolve()


def ledger(found: Iterable[Results]) -> dict[str, str]:
    """The blocks that results give, by name."""
    found = list(found)
    blocks = {"summary": _summary(found), "verdicts": _verdicts(found)}
    for results in found:
        key = f"{results.study.name}-{results.scale_name}"
        blocks[f"{key}-setting"] = _setting(results)
        blocks[f"{key}-claims"] = _claims(results)
        blocks[f"{key}-numbers"] = _numbers(results)
    return blocks


def _summary(found: Sequence[Results]) -> str:
    """A row a claim of the paper; claims of studies without records are there too."""
    judged, rows = _judged(found), []
    for study in STUDIES.values():
        if study.name != "demo":
            results = judged.get(study.name)
            scale = "paper" if results is None else results.scale_name
            for claim in study.claims:
                status = _UNTESTED if results is None else _status(claim.judge(results), results)
                rows.append((study.reference, claim.quote, _command(study, scale), status))
    return table(("where", "the paper says", "run again", "verdict"), rows)


def _verdicts(found: Sequence[Results]) -> str:
    """A row a claim that was judged."""
    judged = _judged(found)
    rows = [
        (
            study.reference,
            claim.quote,
            _status(claim.judge(judged[study.name]), judged[study.name]),
        )
        for study in STUDIES.values()
        if study.name in judged
        for claim in study.claims
    ]
    return table(("where", "the paper says", "here"), rows)


def _judged(found: Sequence[Results]) -> dict[str, Results]:
    """The results of each study at the largest scale that there are records of."""
    order = ("reduced", "paper")
    kept = [r for r in found if r.scale_name in order]
    return {r.study.name: r for r in sorted(kept, key=lambda r: order.index(r.scale_name))}


_UNTESTED = "not tested at this scale"


def _status(verdict: Verdict, results: Results) -> str:
    """In words, and that it is of a smaller experiment than the paper's if it is."""
    if verdict.status == "not tested":
        return _UNTESTED
    size = "" if results.scale_name == "paper" else " (reduced size)"
    return f"**{verdict.status}**{size}"


def _command(study: Study, scale: str) -> str:
    return f"`whitenorm run {study.name} --scale {scale}`"


def _setting(results: Results) -> str:
    """How the records were made."""
    study, scale, records = results.study, results.scale, list(results.all.values())
    seeds = {len(results.records(curve)) for _, curve in scale.curves()} - {0}
    seconds = sum(record.final.get("seconds") or 0.0 for record in records)
    machines = dict.fromkeys(
        f"{e['threads']} thread of {e['cores']} cores of {e['cpu']}, torch {e['torch']}, "
        f"Python {e['python']}"
        for e in (record.environment for record in records)
    )
    days = sorted({record.started[:10] for record in records})
    grid = len(scale.grid_runs())
    lines = [
        f"{_command(study, results.scale_name)}: {_counted(len(records), 'run')}, "
        f"{_seeds(seeds)} of each curve"
        + (f"; a grid of {grid} runs of one seed chose by {scale.selection.text}" if grid else "")
        + (f". {seconds / 60:.0f} minutes of training" if seconds else ". Made")
        + f" on {' and '.join(machines)}; {_range(days)}."
    ]
    if scale.reduced:
        lines.append(f"Reduced: {scale.reduced}.")
    return "\n\n".join([*lines, "\n".join(f"- {note}" for note in study.notes)]).strip()


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _seeds(counts: set[int]) -> str:
    return _counted(1, "seed") if counts == {1} else f"{_range(sorted(counts))} seeds"


def _range(values: Sequence[object]) -> str:
    if not values:
        return "no"
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _claims(results: Results) -> str:
    """Each claim: the paper's words, what counts, the verdict and every comparison behind it."""
    parts = []
    for claim in results.study.claims:
        verdict = claim.judge(results)
        parts.append(f"> {claim.quote}")
        parts.append(f"{_status(verdict, results)}. What counts: {claim.criterion}.")
        parts.append("\n".join(f"- {line}" for line in verdict.evidence) or "- no records")
    return "\n\n".join(parts)


def _numbers(results: Results) -> str:
    """Last values of every curve, mean ± standard deviation over seeds."""
    metrics = results.study.metrics
    rows = [
        (
            panel.name,
            curve.label,
            point_text(results.choice(curve).point) or "-",
            len(results.records(curve)),
            *(summary(results.final(curve, metric), metric) for metric in metrics),
        )
        for panel, curve in results.scale.curves()
    ]
    return table(("", "curve", "chosen", "n", *map(metric_name, metrics)), rows)
