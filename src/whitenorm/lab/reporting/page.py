r"""The report: one page that needs no network, made from records alone.

What it says is worked out here; how it looks is in ``page.html``.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import plotly.io
from markupsafe import Markup
from plotly.offline import get_plotlyjs

import whitenorm
from whitenorm.lab.records.record import RecordError
from whitenorm.lab.reporting import tables
from whitenorm.lab.reporting.find import find_results, judged
from whitenorm.lab.reporting.forest import draw_forest
from whitenorm.lab.reporting.page_figures import figures
from whitenorm.lab.reporting.plots import draw_all
from whitenorm.lab.reporting.style import colours
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.wording import counted, notes, number, point_text


def build_report(folder: Path) -> Path:
    """Draws the figures of a folder's records and writes its ``report.html``."""
    folder = Path(folder)
    found = find_results(folder)
    if not found.results:
        raise RecordError(
            f"no records in {folder}: expected {folder}/records/<study>-<scale>.jsonl, as "
            "`whitenorm run` writes them" + "".join(f"; {remark}" for remark in found.remarks)
        )
    everything = [results for _, results in found.results]
    draw_forest(judged(everything), folder / "figures")
    tested = []
    for results in everything:
        draw_all(results, folder / "figures")
        if any(claim.judge(results).status != "not tested" for claim in results.study.claims):
            tested.append(results)
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    jinja = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    jinja.filters |= {"plotly_json": _plotly_json}
    jinja.filters |= {"counted": counted, "number": number, "point_text": point_text}
    own = all(results.study.name == "train" for results in everything)
    page = jinja.get_template("page.html").render(
        heading="Training runs" if own else "Decorrelated Batch Normalization, re-measured",
        sections=[_section(path, results, folder) for path, results in found.results],
        overview=tables.verdicts(*tested),
        remarks=found.remarks,
        version=whitenorm.__version__,
        newest=max(record.started for results in everything for record in results.all.values()),
        plotlyjs=Markup(get_plotlyjs()),
        templates=plotly.io.templates,
    )
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _plotly_json(value: Any) -> Markup:
    """JSON that can't end the script element that it stands in."""
    return Markup(plotly.io.json.to_json_plotly(value).replace("<", "\\u003c"))


def _section(path: Path, results: Results, folder: Path) -> dict[str, Any]:
    key = f"{results.study.name}-{results.scale_name}"
    curves: dict[tuple[str, str], dict[str, Any]] = {}
    for index, (panel, curve) in enumerate(results.scale.curves()):
        choice = results.choice(curve)
        curves[panel.name, curve.label] = {
            "anchor": f"{key}-{index}",
            "panel": panel.name,
            "label": curve.label,
            "colour": colours(panel)[curve.label],
            "choice": choice,
            "settings": _lines(curve.run.changed(choice.point or {}).settings()),
            "records": results.records(curve),
        }
    anchors = {name: curve["anchor"] for name, curve in curves.items()}
    return {
        "key": key,
        "results": results,
        "study": results.study,
        "summary": results.study.summary(results) if results.study.summary else "",
        "link": Path(os.path.relpath(path, folder)).as_posix(),
        "verdicts": [(claim, claim.judge(results)) for claim in results.study.claims],
        "figures": figures(results, anchors),
        "numbers": tables.numbers(results),
        "tabulated": [curves[p.name, c.label] for p, c in tables.tabulated(results)],
        "paper": tables.beside_the_paper(results),
        "curves": curves.values(),
        "notes": notes(results),
        "environments": Counter(_lines(record.environment) for record in results.all.values()),
    }


def _lines(values: Mapping[str, Any]) -> str:
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in values.items())
