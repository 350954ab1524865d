r"""The ledger: what the paper claims and what the records say, as blocks of Markdown pages.

A page names its records, ``<!-- records: ../results -->``, and has blocks to be filled:
``<!-- results: summary -->`` with a row for each claim, ``verdicts`` with a row for each claim
that was judged, and for each study and scale ``fig3-paper-setting``, ``fig3-paper-claims`` and
``fig3-paper-numbers``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from whitenorm.lab.records.record import RecordError
from whitenorm.lab.reporting import tables
from whitenorm.lab.reporting.find import find_results
from whitenorm.lab.reporting.markdown import fill_blocks
from whitenorm.lab.reporting.tables import Column, Table, bold_status, status_words
from whitenorm.lab.studies.catalogue import STUDIES
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import Study

__all__ = ["fill_pages", "ledger"]

_SOURCE = re.compile(r"<!-- records: (\S+) -->")


def fill_pages(folder: Path) -> list[Path]:
    """Fills the Markdown pages that name a folder of records, and returns their paths.

    They are looked for beside the folder, and in ``docs`` there.
    """
    folder = Path(folder).resolve()
    pages = [page for page in _pages(folder.parent) if _source(page) == folder]
    if not pages:
        return []
    blocks = ledger(results for _, results in find_results(folder).results)
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
    judged = _judged(found)
    blocks = {
        "summary": tables.markdown(_summary(judged)),
        "verdicts": tables.markdown(tables.verdicts(*judged.values())),
    }
    for results in found:
        key = f"{results.study.name}-{results.scale_name}"
        blocks[f"{key}-setting"] = _setting(results)
        blocks[f"{key}-claims"] = _claims(results)
        blocks[f"{key}-numbers"] = tables.markdown(tables.numbers(results))
    return blocks


def _judged(found: Iterable[Results]) -> dict[str, Results]:
    """The results of each study at "paper" scale or else "reduced", in the order of studies."""
    by_scale = {(results.study.name, results.scale_name): results for results in found}
    return {
        name: by_scale[name, scale]
        for name in STUDIES
        for scale in ("reduced", "paper")  # the later one stays
        if (name, scale) in by_scale
    }


def _summary(judged: dict[str, Results]) -> Table:
    """A row for each claim of the paper, those of studies without records too."""
    rows = []
    for study in STUDIES.values():
        if study.name == "demo":
            continue
        results = judged.get(study.name)
        command = _command(study, results.scale_name if results else "paper")
        for claim in study.claims:
            status = status_words(claim.judge(results), results) if results else tables.UNTESTED
            rows.append((study.reference, claim.quote, command, status))
    head = (
        Column("where"),
        Column("the paper says"),
        Column("run again", "code"),
        Column("verdict", "status"),
    )
    return Table("All claims", head, tuple(rows))


def _command(study: Study, scale: str) -> str:
    return f"whitenorm run {study.name} --scale {scale}"


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
        f"`{_command(study, results.scale_name)}`: {_counted(len(records), 'run')}, "
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
        status = bold_status(status_words(verdict, results))
        parts.append(f"{status}. What counts: {claim.criterion}.")
        parts.append("\n".join(f"- {line}" for line in verdict.evidence) or "- no records")
    return "\n\n".join(parts)
