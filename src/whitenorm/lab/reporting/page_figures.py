r"""The interactive figures of the page, drawn by plotly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from whitenorm.lab.reporting.plots import few_values, illustrations, quadrants
from whitenorm.lab.reporting.style import GREY, colours
from whitenorm.lab.studies.results import Results, Series
from whitenorm.lab.studies.study import Panel, View
from whitenorm.lab.studies.wording import axis_title, metric_name

__all__ = ["PageFigure", "figures"]

# The page adds a template, light or dark.
_LAYOUT = {
    "template": "none",
    "margin": {"l": 64, "r": 12, "t": 12, "b": 48},
    "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    "modebar": {"orientation": "v"},  # beside the legend, not over it
}
_SWAP_NOTE = (
    "A colour marks the quadrant of a shared point. Where colours trade places between the "
    "batches, axes have swapped. Grey points are in one batch."
)


@dataclass(frozen=True)
class PageFigure:
    """A figure of the page; one with a note is as wide as the page."""

    name: str
    title: str
    drawing: go.Figure
    note: str = ""


def figures(results: Results, anchors: Mapping[tuple[str, str], str]) -> Iterator[PageFigure]:
    """The figures of a study.

    Args:
        results: Of the study.
        anchors: The element of the page that a click on a curve leads to, by panel and label.
    """
    for view in results.study.views:
        panels = results.panels(view)
        if view.kind == "swap":
            if found := illustrations(results, panels):
                yield PageFigure(view.name, view.title, _swap_figure(found), _SWAP_NOTE)
        elif view.kind == "across":
            if lines := results.across(view, panels):
                drawing = _line_figure(view, panels[0], lines, anchors)
                names = [panel.name for panel in panels]
                drawing.update_xaxes(title=None, tickvals=[*range(len(names))], ticktext=names)
                yield PageFigure(view.name, view.title, drawing)
        else:
            for index, panel in enumerate(panels):
                if lines := results.series(view, panel):
                    drawing = _line_figure(view, panel, lines, anchors)
                    title = f"{view.title}: {panel.name}"
                    yield PageFigure(f"{view.name}-{index}", title, drawing)


def _line_figure(
    view: View, panel: Panel, lines: list[Series], anchors: Mapping[tuple[str, str], str]
) -> go.Figure:
    figure = go.Figure(layout=_LAYOUT)
    palette = colours(panel)
    for line in lines:
        solid, colour = line.column == view.y[0], palette[line.label]
        words = line.label if len(view.y) == 1 else f"{line.label}, {metric_name(line.column)}"
        figure.add_scatter(  # from the smallest to the largest value
            x=line.x + line.x[::-1],
            y=line.high + line.low[::-1],
            fill="toself",
            fillcolor=colour,
            opacity=0.18,
            mode="none",
            hoverinfo="skip",
            legendgroup=line.label,
            showlegend=False,
        )
        figure.add_scatter(
            x=line.x,
            y=line.mean,
            mode="lines" if len(line.x) > 20 else "lines+markers",
            line={"color": colour, "width": 2, "dash": "solid" if solid else "dash"},
            name=line.name,
            legendgroup=line.label,
            showlegend=solid,
            hovertemplate=f"%{{y:.4g}}<extra>{words}, mean of {len(line.records)}</extra>",
            meta=anchors[panel.name, line.label],
        )
    for axis, update in (("x", figure.update_xaxes), ("y", figure.update_yaxes)):
        update(title=axis_title(view, axis), automargin=True)
        if axis in view.log:
            update(type="log", exponentformat="power", nticks=6)
    if "x" in view.log and (values := few_values(lines)):
        figure.update_xaxes(tickvals=values, ticktext=[f"{value:g}" for value in values])
    return figure


def _swap_figure(found: dict[str, Any]) -> go.Figure:
    """A row for each batch; a column before whitening, and one for each whitening."""
    first = next(iter(found.values()))
    shades = quadrants(first["blue"])
    figure = make_subplots(
        rows=2,
        cols=1 + len(found),
        column_titles=["before", *found],
        row_titles=["batch 1", "batch 2"],
        shared_xaxes="columns",
        shared_yaxes="columns",
        horizontal_spacing=0.05,
        vertical_spacing=0.05,
    )
    for batch in range(2):
        before = first["red"][batch] + first["blue"]
        whitened = [arrays["whitened"][batch] for arrays in found.values()]
        for column, points in enumerate([before, *whitened], start=1):
            unshared = len(points) - len(shades)
            figure.add_scatter(
                x=[x for x, _ in points],
                y=[y for _, y in points],
                mode="markers",
                marker={
                    "color": [GREY] * unshared + shades,
                    "symbol": ["x"] * unshared + ["circle"] * len(shades),
                },
                hoverinfo="x+y",
                row=batch + 1,
                col=column,
            )
    margin = {"l": 40, "r": 24, "t": 24, "b": 32}
    return figure.update_layout(_LAYOUT | {"showlegend": False, "margin": margin})
