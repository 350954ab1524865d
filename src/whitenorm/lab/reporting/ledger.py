r"""The ledger: what the paper claims and what the records say, as slots of Markdown pages.

A page names its records, ``<!-- records: ../results -->``, and has slots to be filled:
``<!-- results: summary -->`` with a row for each claim, ``verdicts`` with a row for each claim
that was judged, and for each study and scale ``fig3-paper-setting``, ``fig3-paper-claims`` and
``fig3-paper-numbers``.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from whitenorm.lab.records.record import RecordError
from whitenorm.lab.reporting import tables
from whitenorm.lab.reporting.find import find_results
from whitenorm.lab.reporting.markdown import fill_slots
from whitenorm.lab.studies.catalogue import STUDIES
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import BEYOND, Study


def fill_pages(folder: Path) -> list[Path]:
    """Fills the Markdown pages that name a folder of records, and returns their paths.

    They are looked for beside the folder, and in ``docs`` there.
    """
    folder = Path(folder).resolve()
    slots = ledger(results for _, results in find_results(folder).results)
    filled = []
    for page in sorted([*folder.parent.glob("*.md"), *folder.parent.glob("docs/**/*.md")]):
        text = page.read_text(encoding="utf-8")
        named = re.search(r"<!-- records: (\S+) -->", text)
        if named is None or (page.parent / named[1]).resolve() != folder:
            continue
        text, _, unknown = fill_slots(text, "results", slots)
        if unknown:
            raise RecordError(
                f"{page} asks for {', '.join(unknown)}, which the records of {folder} don't give; "
                f"they give {', '.join(slots)}"
            )
        page.write_text(text, encoding="utf-8")
        filled.append(page)
    return filled


def ledger(found: Iterable[Results]) -> dict[str, str]:
    """The slots that results give, by name."""
    by_scale = {(results.study.name, results.scale_name): results for results in found}
    judged = {
        name: by_scale[name, scale]
        for name in STUDIES
        for scale in ("reduced", "paper")  # the later one stays
        if (name, scale) in by_scale
    }
    slots = {
        "summary": tables.markdown(_summary(judged)),
        "verdicts": tables.markdown(
            tables.verdicts(*(r for r in judged.values() if _is_of_paper(r.study)))
        ),
    }
    for results in by_scale.values():
        key = f"{results.study.name}-{results.scale_name}"
        slots[f"{key}-setting"] = _setting(results)
        slots[f"{key}-claims"] = _claims(results)
        slots[f"{key}-numbers"] = tables.markdown(tables.numbers(results))
    return slots


def _summary(judged: dict[str, Results]) -> tables.Table:
    """A row for each claim of the paper, those of studies without records too."""
    rows = []
    for study in STUDIES.values():
        results = judged.get(study.name)
        command = _command(study.name, results.scale_name if results else "paper")
        for claim in study.claims if _is_of_paper(study) else ():
            status = tables.status_words(claim, results)
            rows.append((study.reference, claim.quote, command, status))
    head = {"where": "text", "the paper says": "text", "run again": "code", "verdict": "status"}
    return tables.Table("All claims", head, rows)


def _is_of_paper(study: Study) -> bool:
    return study.reference != BEYOND and study.name != "demo"


def _command(study: str, scale: str) -> str:
    return f"whitenorm run {study} --scale {scale}"


def _setting(results: Results) -> str:
    """How the records were made."""
    study, scale, records = results.study, results.scale, list(results.all.values())
    seeds = {len(results.records(curve)) for _, curve in scale.curves()} - {0}
    seconds = sum(record.final.get("seconds") or 0.0 for record in records)
    machine = "{threads} thread of {cores} cores of {cpu}, torch {torch}, Python {python}"
    machines = dict.fromkeys(machine.format_map(record.environment) for record in records)
    days = tables.span({record.started[:10] for record in records})
    grid = len(scale.grid_runs())
    text = (
        f"`{_command(study.name, results.scale_name)}`: {_counted(len(records), 'run')}, "
        f"{_counted(tables.span(seeds), 'seed')} of each curve"
        + (f"; a grid of {grid} runs chose by {scale.selection.text}" if grid else "")
        + (f". {seconds / 60:.0f} minutes of training" if seconds else ". Made")
        + f" on {' and '.join(machines)}; {days}."
    )
    reduced = f"Reduced: {scale.reduced}." if scale.reduced else ""
    notes = "\n".join(f"- {note}" for note in study.notes)
    return "\n\n".join(filter(None, (text, reduced, notes)))


def _counted(count: object, noun: str) -> str:
    return f"{count} {noun}" if str(count) == "1" else f"{count} {noun}s"


def _claims(results: Results) -> str:
    """Each claim: the paper's words, what counts, the verdict and every comparison behind it."""
    parts = []
    for claim in results.study.claims:
        verdict = claim.judge(results)
        status = tables.bold_status(tables.status_words(claim, results))
        evidence = "\n".join(f"- {line.text}" for line in verdict.evidence) or "- no records"
        parts += [f"> {claim.quote}", f"{status}. What counts: {claim.criterion}.", evidence]
    return "\n\n".join(parts)
