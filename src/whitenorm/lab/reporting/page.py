r"""The report: one page that needs no network, made from records alone.

What it says is worked out here; how it looks is in ``page.html``.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import plotly.io
from markupsafe import Markup
from plotly.offline import get_plotlyjs

import whitenorm
from whitenorm.lab.records.record import Record, RecordError
from whitenorm.lab.reporting import tables
from whitenorm.lab.reporting.find import find_results
from whitenorm.lab.reporting.page_figures import figures
from whitenorm.lab.reporting.plots import draw_all
from whitenorm.lab.reporting.style import colours
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import Curve, Panel
from whitenorm.lab.studies.wording import number, point_text

__all__ = ["build_report"]


def build_report(folder: Path) -> Path:
    """Draws the figures of a folder's records and writes its ``report.html``."""
    folder = Path(folder)
    found = find_results(folder)
    if not found.results:
        raise RecordError(
            f"no records in {folder}: expected {folder}/records/<study>-<scale>.jsonl, as "
            "`whitenorm run` writes them" + "".join(f"; {remark}" for remark in found.remarks)
        )
    for _, results in found.results:
        draw_all(results, folder / "figures")
    everything = [results for _, results in found.results]
    page = _template().render(
        sections=[_section(path, results, folder) for path, results in found.results],
        overview=tables.verdicts(*filter(_tested, everything)),
        remarks=found.remarks,
        version=whitenorm.__version__,
        newest=max(record.started for results in everything for record in results.all.values()),
        css=Markup(_asset("page.css")),
        plotlyjs=Markup(get_plotlyjs().replace("</script", "<\\/script")),
        light=plotly.io.templates["plotly_white"],
        dark=plotly.io.templates["plotly_dark"],
    )
    path = folder / "report.html"
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, path)
    return path


def _tested(results: Results) -> bool:
    return any(claim.judge(results).status != "not tested" for claim in results.study.claims)


def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["plotly_json"] = _plotly_json
    return environment.from_string(_asset("page.html"))


def _asset(name: str) -> str:
    return resources.files("whitenorm.lab.reporting").joinpath(name).read_text(encoding="utf-8")


def _plotly_json(value: Any) -> Markup:
    """JSON that can't end the script element that it stands in."""
    return Markup(plotly.io.json.to_json_plotly(value).replace("<", "\\u003c"))


# --- what a section says ------------------------------------------------------------------------


def _section(path: Path, results: Results, folder: Path) -> dict[str, Any]:
    study = results.study
    key = f"{study.name}-{results.scale_name}"
    curves = results.scale.curves()
    anchors = {(p.name, c.label): f"{key}-{index}" for index, (p, c) in enumerate(curves)}
    environments = Counter(
        json.dumps(record.environment, sort_keys=True) for record in results.all.values()
    )
    return {
        "key": key,
        "study": study,
        "scale_name": results.scale_name,
        "scale": results.scale,
        "records": len(results.all),
        "link": Path(os.path.relpath(path, folder)).as_posix(),
        "verdicts": [(claim, claim.judge(results)) for claim in study.claims],
        "figures": list(figures(results, anchors)),
        "numbers": tables.numbers(results),
        "links": [
            (anchors[panel.name, curve.label], colours(panel)[curve.label])
            for panel, curve in tables.tabulated(results)
        ],
        "paper": tables.beside_the_paper(results),
        "curves": [_curve(results, panel, curve, anchors) for panel, curve in curves],
        "environments": [(count, json.loads(text)) for text, count in environments.items()],
    }


def _curve(
    results: Results, panel: Panel, curve: Curve, anchors: dict[tuple[str, str], str]
) -> dict[str, Any]:
    choice = results.choice(curve)
    settings = curve.run.changed(choice.point or {}).settings()
    return {
        "anchor": anchors[panel.name, curve.label],
        "panel": panel.name,
        "label": curve.label,
        "colour": colours(panel)[curve.label],
        "chosen": point_text(choice.point),
        "settings": "\n".join(f"{name}: {json.dumps(value)}" for name, value in settings.items()),
        "grid": [
            (point_text(point), _outcome(record, number(score)), point == choice.point, record)
            for point, record, score in choice.scores
            if record is not None
        ],
        "grid_size": len(choice.scores),
        "seeds": [(record, _outcome(record, record.status)) for record in results.records(curve)],
    }


def _outcome(record: Record, words: str) -> str:
    """These words, or why the run ended."""
    if record.status != "finished":
        words = record.status
    return f"{words} ({record.reason})" if record.reason else words
