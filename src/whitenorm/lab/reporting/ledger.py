r"""The ledger: what the paper claims and what the records say, as slots of Markdown pages.

A page names its records, ``<!-- records: ../results -->``, and has slots to be filled:
``<!-- results: claims -->`` with a row for each claim, ``headlines`` with a few of them,
``fig3-verdicts`` with those of a study, ``scales`` with the claims of the paper that were judged
at several scales, ``hours`` with what the records took, and ``ledger`` with every study's
settings, comparisons and numbers.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from whitenorm.lab.records.record import RecordError
from whitenorm.lab.reporting import tables
from whitenorm.lab.reporting.find import find_results, is_of_paper, tested
from whitenorm.lab.reporting.markdown import fill_slots
from whitenorm.lab.studies.catalogue import STUDIES
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.wording import counted, notes


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
    everything = list(found)
    by_study = tested(everything)
    newest = [of_study[-1] for of_study in by_study]
    of_paper = {r.study.name: r for r in newest if is_of_paper(r.study)}
    slots = {
        "claims": tables.markdown(_claims_table(of_paper)),
        "headlines": tables.markdown(_headlines(of_paper)),
        "scales": tables.markdown(_scales(by_study)),
        "hours": tables.markdown(_hours(everything)),
        "ledger": "\n\n".join(_section(results) for results in everything),
    }
    for results in newest:
        slots[f"{results.study.name}-verdicts"] = tables.markdown(_verdicts(results))
    return slots


def _claims_table(of_paper: dict[str, Results]) -> tables.Table:
    """A row for each claim of the paper, those of studies without records too."""
    rows = []
    for study in STUDIES.values():
        results = of_paper.get(study.name)
        for claim in study.claims if is_of_paper(study) else ():
            effect = tables.effects(claim.judge(results)) if results else "—"
            status = tables.status_words(claim, results)
            rows.append((study.reference, claim.quote, effect, status, _size(results)))
    head = dict.fromkeys(("where", "the paper says", "effect [95% interval]"), "text")
    return tables.Table("All claims", {**head, "verdict": "status", "experiment": "text"}, rows)


def _headlines(of_paper: dict[str, Results]) -> tables.Table:
    rows = [
        (results.study.reference, claim.quote, tables.status_words(claim, results))
        for results in of_paper.values()
        for claim in results.study.claims
        if claim.headline
    ]
    head = {"where": "text", "the paper says": "text", "these records": "status"}
    return tables.Table("Claims", head, rows)


def _scales(by_study: Iterable[Sequence[Results]]) -> tables.Table:
    """The claims of the paper that were judged at more than one scale, with each verdict."""
    rows = []
    for of_study in by_study:
        for claim in of_study[0].study.claims if is_of_paper(of_study[0].study) else ():
            if len(of_study) > 1:
                words = [f"{r.scale_name}: {tables.status_words(claim, r)}" for r in of_study]
                rows.append((of_study[0].study.reference, claim.quote, "; ".join(words)))
    head = dict.fromkeys(("where", "the paper says", "verdict by scale"), "text")
    return tables.Table("Verdicts by scale", head, rows)


def _verdicts(results: Results) -> tables.Table:
    """The claims of one study."""
    rows = []
    for claim in results.study.claims:
        effect = tables.effects(claim.judge(results))
        rows.append((claim.quote, effect, tables.status_words(claim, results)))
    head = {"claim": "text", "effect [95% interval]": "text", "verdict": "status"}
    return tables.Table(results.study.title, head, rows)


def _size(results: Results | None) -> str:
    if results is None:
        return "not run"
    seeds = {len(results.records(curve)) for _, curve in results.scale.curves()} - {0}
    return f"{counted(tables.span(seeds), 'seed')}, scale {results.scale_name}"


def _hours(everything: Iterable[Results]) -> tables.Table:
    """What the records took to make; runs that don't train have no seconds."""
    rows, total = [], 0.0
    for results in everything:
        seconds = [r.final["seconds"] or 0.0 for r in results.all.values() if "seconds" in r.final]
        hours = sum(seconds) / 3600
        total += hours
        runs = str(len(results.all))
        shown = f"{hours:.2f}" if seconds else "not recorded"
        rows.append((results.study.name, results.scale_name, runs, shown))
    rows.append(("all", "", "", f"{total:.2f}"))
    head = {"study": "text", "scale": "text", "runs": "number", "core-hours of training": "number"}
    return tables.Table("Core-hours", head, rows)


def _section(results: Results) -> str:
    """All that is known of a study at one scale."""
    title = f"## {results.study.reference}: {results.study.title} (scale {results.scale_name})"
    parts = [title, _setting(results), _claims(results), tables.markdown(tables.numbers(results))]
    paper = tables.beside_the_paper(results)
    if paper.rows:
        parts.append(tables.markdown(paper))
    return "\n\n".join(filter(None, parts))


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
    grid = sum(run.id in results.all for run in scale.grid_runs())
    text = (
        f"`{_command(study.name, results.scale_name)}`: {counted(len(records), 'run')}, "
        f"{counted(tables.span(seeds), 'seed')} of each curve"
        + (f"; a grid of {grid} runs chose by {scale.selection.text}" if grid else "")
        + (f". {seconds / 60:.0f} minutes of training" if seconds else ". Made")
        + f" on {' and '.join(machines)}; {days}."
    )
    reduced = f"Reduced: {scale.reduced}." if scale.reduced else ""
    setting = f"Settings: {scale.setting}." if scale.setting else ""
    listed = "\n".join(f"- {note}" for note in notes(results))
    return "\n\n".join(filter(None, (text, reduced, setting, listed)))


def _claims(results: Results) -> str:
    """Each claim: the paper's words, what counts, the verdict and every comparison behind it."""
    parts = []
    for claim in results.study.claims:
        verdict = claim.judge(results)
        status = tables.bold_status(tables.status_words(claim, results))
        evidence = "\n".join(f"- {line.text}" for line in verdict.evidence) or "- no records"
        parts += [f"> {claim.quote}", f"{status}. What counts: {claim.criterion}.", evidence]
    return "\n\n".join(parts)
