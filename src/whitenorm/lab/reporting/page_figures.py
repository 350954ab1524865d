r"""Figures for the page: traces and layouts for plotly.js, which the page gives their colours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from whitenorm.lab.reporting.plots import illustrations, quadrants
from whitenorm.lab.reporting.style import colours
from whitenorm.lab.studies.results import Results, Series
from whitenorm.lab.studies.study import Panel, View
from whitenorm.lab.studies.wording import axis_title, metric_name

__all__ = ["figures"]


def figures(results: Results, key: str) -> Iterator[dict[str, Any]]:
    """What to draw of a study: title, traces and layout of each figure.

    Args:
        results: Of the study.
        key: Of its section of the page; a curve leads to the element ``{key}-{its position}``.
    """
    for view in results.study.views:
        panels = [p for p in results.scale.panels if view.panels is None or p.name in view.panels]
        if view.kind == "swap":
            if found := illustrations(results, panels):
                yield {
                    "key": f"{key}-{view.name}",
                    "title": view.title,
                    "wide": True,
                    "note": "A colour marks the quadrant of a shared point. Where colours trade "
                    "places between the batches, axes have swapped. Grey points are in one batch.",
                    **_swap_figure(found),
                }
            continue
        if view.kind == "across":
            if lines := results.across(view, panels):
                ticks = {"tickvals": [*range(len(panels))], "ticktext": [p.name for p in panels]}
                figure = _line_figure(results, view, panels[0], lines, key)
                figure["layout"]["xaxis"] = ticks
                yield {
                    "key": f"{key}-{view.name}",
                    "title": view.title,
                    "wide": False,
                    "note": "",
                    **figure,
                }
            continue
        for index, panel in enumerate(panels):
            if lines := results.series(view, panel):
                yield {
                    "key": f"{key}-{view.name}-{index}",
                    "title": f"{view.title}: {panel.name}",
                    "wide": False,
                    "note": "",
                    **_line_figure(results, view, panel, lines, key),
                }


def _line_figure(
    results: Results, view: View, panel: Panel, lines: list[Series], key: str
) -> dict[str, Any]:
    palette = colours(panel)
    targets = {
        curve.label: f"{key}-{i}"
        for i, (owner, curve) in enumerate(results.scale.curves())
        if owner.name == panel.name
    }
    data: list[dict[str, Any]] = []
    for line in lines:
        solid, colour = line.column == view.y[0], palette[line.label]
        words = "" if len(view.y) == 1 else f", {metric_name(line.column)}"
        group = {"legendgroup": line.label, "line": {"color": colour}}
        data.append(
            {
                "x": line.x + line.x[::-1],
                "y": line.high + line.low[::-1],
                "fill": "toself",
                "fillcolor": f"{colour}2e",
                "mode": "none",
                "showlegend": False,
                "hoverinfo": "skip",
                **group,
                "line": {"width": 0},
            }
        )
        data.append(
            {
                "x": line.x,
                "y": line.mean,
                "mode": "lines" if len(line.x) > 20 else "lines+markers",
                "name": _name(line),
                "showlegend": solid,
                "meta": targets[line.label],
                "hovertemplate": f"%{{y:.4g}}<extra>{line.label}{words}, mean of "
                f"{len(line.records)}</extra>",
                "marker": {"size": 6},
                **group,
                "line": {"color": colour, "width": 2, "dash": "solid" if solid else "dash"},
            }
        )
    layout = {
        "xaxis": {"title": {"text": axis_title(view, "x")}, **_axis(view, "x", lines)},
        "yaxis": {"title": {"text": axis_title(view, "y")}, **_axis(view, "y", lines)},
        "hovermode": "closest",
    }
    return {"data": data, "layout": layout}


def _name(line: Series) -> str:
    if line.diverged:
        return f"{line.label} ({line.diverged} of {len(line.records)} diverged)"
    return line.label


def _axis(view: View, axis: str, lines: list[Series]) -> dict[str, Any]:
    if axis not in view.log:
        return {}
    values = sorted({x for line in lines for x in line.x})
    if axis == "x" and len(values) <= 10:
        return {"type": "log", "tickvals": values, "ticktext": [f"{v:g}" for v in values]}
    return {"type": "log", "exponentformat": "power", "dtick": 1 if axis == "y" else None}


def _swap_figure(found: dict[str, Any]) -> dict[str, Any]:
    """Two rows, for the batches; a column before whitening, and one for each whitening."""
    first = next(iter(found.values()))
    shades = quadrants(first["blue"])
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"showlegend": False, "annotations": [], "rows": 2}
    for column, title in enumerate(["before", *found]):
        reach = 1.1 * max(abs(value) for point in _drawn(found, column) for value in point)
        width = 0.94 / (1 + len(found))
        left, right = 0.06 + column * width, 0.06 + (column + 1) * width - 0.05
        layout["annotations"].append(_label(title, (left + right) / 2, 0.95))
        for row, domain in enumerate(((0.51, 0.94), (0.0, 0.43))):
            index = 2 * column + row + 1
            suffix = "" if index == 1 else str(index)
            axis = {"range": [-reach, reach], "tickfont": {"size": 10}, "nticks": 5}
            layout[f"xaxis{suffix}"] = {"domain": [left, right], "anchor": f"y{suffix}", **axis}
            layout[f"yaxis{suffix}"] = {"domain": domain, "anchor": f"x{suffix}", **axis}
            axes = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}", "mode": "markers"}
            if column == 0:
                middle = sum(domain) / 2
                layout["annotations"].append(_label(f"batch {row + 1}", 0, middle, angle=-90))
                data.append(_points(first["red"][row], "#8C8C8C", "x") | axes)
                data.append(_points(first["blue"], shades, "circle") | axes)
            else:
                data.append(_points(found[title]["whitened"][row], shades, "circle") | axes)
    return {"data": data, "layout": layout}


def _label(text: str, x: float, y: float, angle: int = 0) -> dict[str, Any]:
    anchors: dict[str, Any] = {"xanchor": "center", "yanchor": "bottom"}
    if angle:
        anchors = {"xanchor": "left", "yanchor": "middle", "xshift": -22}
    place = {"x": x, "y": y, "xref": "paper", "yref": "paper", **anchors}
    return {"text": text, "showarrow": False, "textangle": angle, **place}


def _drawn(found: dict[str, Any], column: int) -> list[list[float]]:
    """All points of a column, so that its two plots have the same axes."""
    if column == 0:
        arrays = next(iter(found.values()))
        return [*arrays["blue"], *arrays["red"][0], *arrays["red"][1]]
    batches = list(found.values())[column - 1]["whitened"]
    return [*batches[0], *batches[1]]


def _points(points: list[list[float]], colour: Any, symbol: str) -> dict[str, Any]:
    return {
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "marker": {"color": colour, "symbol": symbol, "size": 6},
        "hoverinfo": "x+y",
    }
