r"""The report: one page that needs no network, made from records alone.

What it says is worked out here, as plain data; how it looks is in ``page.html``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

import whitenorm
from whitenorm.lab.records.record import Record, RecordError
from whitenorm.lab.reporting.find import find_results
from whitenorm.lab.reporting.page_figures import figures
from whitenorm.lab.reporting.plots import draw_all
from whitenorm.lab.reporting.style import colours
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import Curve, Panel
from whitenorm.lab.studies.wording import metric_name, number, point_text, summary

__all__ = ["build_report"]


def build_report(folder: Path) -> Path:
    """Draws the figures of a folder's records, writes its ``report.html``."""
    folder = Path(folder)
    found = find_results(folder)
    if not found.results:
        raise RecordError(
            f"no records in {folder}: expected {folder}/records/<study>-<scale>.jsonl, as "
            "`whitenorm run` writes them" + "".join(f"; {remark}" for remark in found.remarks)
        )
    for _, results in found.results:
        draw_all(results, folder / "figures")
    sections = [_section(path, results, folder) for path, results in found.results]
    page = _template().render(
        sections=sections,
        remarks=found.remarks,
        version=whitenorm.__version__,
        newest=max(r.started for _, results in found.results for r in results.all.values()),
        plotlyjs=Markup(get_plotlyjs().replace("</script", "<\\/script")),
    )
    path = folder / "report.html"
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, path)
    return path


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["inline_json"] = _inline_json
    text = (
        resources.files("whitenorm.lab.reporting")
        .joinpath("page.html")
        .read_text(encoding="utf-8")
    )
    return environment.from_string(text)


def _inline_json(value: Any) -> Markup:
    """JSON that may stand inside a script element whatever it holds."""
    return Markup(json.dumps(value, allow_nan=False).replace("<", "\\u003c"))


# --- what a section says ------------------------------------------------------------------------


def _section(path: Path, results: Results, folder: Path) -> dict[str, Any]:
    study, scale = results.study, results.scale
    key = f"{study.name}-{results.scale_name}"
    link = Path(os.path.relpath(path, folder)).as_posix()
    verdicts = [(claim, claim.judge(results)) for claim in study.claims]
    return {
        "key": key,
        "study": study,
        "scale": results.scale_name,
        "reduced": scale.reduced,
        "selection": scale.selection.text,
        "records": len(results.all),
        "link": link,
        "verdicts": [
            {
                "quote": claim.quote,
                "criterion": claim.criterion,
                "status": verdict.status,
                "evidence": verdict.evidence,
            }
            for claim, verdict in verdicts
        ],
        "figures": list(figures(results, key)),
        "metrics": [metric_name(metric) for metric in study.metrics],
        "curves": [
            _curve(results, panel, curve, f"{key}-{i}", link)
            for i, (panel, curve) in enumerate(scale.curves())
        ],
        "paper": list(_beside_the_paper(results)),
        "environments": _environments(results),
    }


def _curve(results: Results, panel: Panel, curve: Curve, key: str, link: str) -> dict[str, Any]:
    choice = results.choice(curve)
    records = results.records(curve)
    settings = curve.run.changed(choice.point or {}).settings()
    return {
        "key": key,
        "panel": panel.name,
        "label": curve.label,
        "colour": colours(panel)[curve.label],
        "chosen": point_text(choice.point),
        "complete": choice.complete,
        "n": len(records),
        "values": [summary(results.final(curve, m), m) for m in results.study.metrics],
        "settings": "\n".join(f"{key}: {json.dumps(value)}" for key, value in settings.items()),
        "records": [_record(record, link) for record in records],
        "grid": [
            {
                "point": point_text(point),
                "score": number(score) if record and record.status == "finished" else "diverged",
                "chosen": point == choice.point,
                "record": _record(record, link),
            }
            for point, record, score in choice.scores
            if record is not None
        ],
        "grid_size": len(choice.scores),
    }


def _record(record: Record, link: str) -> dict[str, Any]:
    seconds = record.final.get("seconds")
    return {
        "id": record.id,
        "seed": record.run.seed,
        "status": record.status,
        "reason": record.reason,
        "seconds": "" if seconds is None else f"{seconds:.3g} s",
        "link": link,
        "line": record.line,
    }


def _beside_the_paper(results: Results) -> Iterator[dict[str, str]]:
    for entry in results.study.paper:
        sign = "\N{MINUS SIGN}" if entry.minus else "/"
        other = entry.minus or entry.over
        what = metric_name(entry.metric)
        if entry.over:
            what = what.rpartition(" (")[0] + ", ratio"
        ours = results.ours(entry)
        yield {
            "panel": entry.panel,
            "label": f"{entry.curve} {sign} {other}" if other else entry.curve,
            "metric": what,
            "paper": number(entry.value)
            if entry.spread is None
            else f"{number(entry.value)} ± {number(entry.spread)}",
            "ours": "not at this scale, or not yet run"
            if ours is None
            else f"{summary(ours, '')} (n={ours.n})",
        }


def _environments(results: Results) -> list[dict[str, Any]]:
    """The distinct ones, each with how many records have it."""
    counts: dict[str, int] = {}
    for record in results.all.values():
        text = json.dumps(record.environment, sort_keys=True)
        counts[text] = counts.get(text, 0) + 1
    return [{"count": count, "values": json.loads(text)} for text, count in counts.items()]
