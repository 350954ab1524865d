r"""The interactive figures of the page, drawn by plotly."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from whitenorm.lab.reporting import plots
from whitenorm.lab.reporting.heat_maps import (
    COLOURS,
    CORRELATIONS_NOTE,
    Map,
    correlation_maps,
)
from whitenorm.lab.reporting.style import GREY, colours
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import View
from whitenorm.lab.studies.wording import axis_title, metric_name, solid_and_dashed

Anchors = Mapping[tuple[str, str], str]  # where a click on a curve leads, by panel and label

# The page adds a template, light or dark.
_LAYOUT: dict[str, Any] = {
    "template": "none",
    "margin": {"l": 64, "r": 12, "t": 12, "b": 48},
    "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    "modebar": {"orientation": "v"},  # beside the legend, not over it
}


class Shown(NamedTuple):
    """A figure and what stands over it."""

    name: str
    title: str
    note: str
    drawing: go.Figure
    wide: bool = False  # as the page


def figures(results: Results, anchors: Anchors) -> Iterator[Shown]:
    """The figures of a study, from its records."""
    for view in results.study.views:
        if view.kind == "swap":
            if found := plots.swap_points(results, view):
                yield Shown(view.name, view.title, plots.SWAP_NOTE, _swap_figure(*found), True)
        elif view.kind == "correlations":
            if maps := correlation_maps(results, view):
                drawing = _correlations_figure(maps)
                yield Shown(view.name, view.title, CORRELATIONS_NOTE, drawing, True)
        else:
            for index, plot in enumerate(plots.line_plots(results, view)):
                title = f"{view.title}: {plot.title}" if plot.title else view.title
                drawing = _line_figure(view, plot, anchors)
                yield Shown(f"{view.name}-{index}", title, solid_and_dashed(view), drawing)


def _line_figure(view: View, plot: plots.Plot, anchors: Anchors) -> go.Figure:
    figure = go.Figure(layout=_LAYOUT)
    palette = colours(plot.panel)
    for line in plot.lines:
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
            hovertemplate=f"%{{y:.4g}}<extra>{words}, mean of {plots.seeds_of(line)}</extra>",
            meta=anchors[plot.panel.name, line.label],
        )
    logarithmic = {"type": "log", "exponentformat": "power", "nticks": 6}
    x_axis, y_axis = (logarithmic if axis in view.log else {} for axis in "xy")
    if plot.ticks:
        x_axis = x_axis | {"tickvals": [*plot.ticks], "ticktext": [*plot.ticks.values()]}
    figure.update_xaxes(title=plot.x_title, automargin=True, **x_axis)
    figure.update_yaxes(title=axis_title(view, "y"), automargin=True, **y_axis)
    return figure


def _swap_figure(shades: list[str], columns: dict[str, list[plots.Points]]) -> go.Figure:
    """A row for each batch; a column before whitening, and one for each whitening."""
    figure = make_subplots(
        rows=2,
        cols=len(columns),
        column_titles=list(columns),
        row_titles=["batch 1", "batch 2"],
        shared_xaxes="columns",
        shared_yaxes="columns",
        horizontal_spacing=0.05,
        vertical_spacing=0.05,
    )
    for column, batches in enumerate(columns.values(), start=1):
        for row, points in enumerate(batches, start=1):
            unshared = len(points) - len(shades)
            marker = {
                "color": [GREY] * unshared + shades,
                "symbol": ["x"] * unshared + ["circle"] * len(shades),
            }
            x, y = zip(*points, strict=True)
            place = {"row": row, "col": column}
            figure.add_scatter(x=x, y=y, mode="markers", marker=marker, hoverinfo="x+y", **place)
    margin = {"l": 40, "r": 24, "t": 24, "b": 32}
    return figure.update_layout(_LAYOUT | {"showlegend": False, "margin": margin})


def _correlations_figure(rows: list[tuple[Map, Map]]) -> go.Figure:
    """A row for each curve: before the layer, and after it."""
    titles = [one.title.replace(": ", "<br>") for row in rows for one in row]  # for a phone
    figure = make_subplots(len(rows), 2, subplot_titles=titles, vertical_spacing=0.14)
    figure.update_annotations(font_size=13)
    for row, maps in enumerate(rows, start=1):
        for column, one in enumerate(maps, start=1):
            shown = {
                "coloraxis": "coloraxis",
                "hovertemplate": "neurons %{x}, %{y}: %{z:.2f}<extra></extra>",
            }
            figure.add_heatmap(z=one.matrix, row=row, col=column, **shown)
            across = f"x{2 * row + column - 2}"
            figure.update_yaxes(scaleanchor=across, autorange="reversed", row=row, col=column)
    figure.update_xaxes(constrain="domain", visible=False)
    figure.update_yaxes(constrain="domain", visible=False)
    colours = {"colorscale": COLOURS, "reversescale": True, "cmin": -1, "cmax": 1}
    colours |= {"colorbar": {"thickness": 10}}
    margin = {"l": 8, "r": 8, "t": 44, "b": 8}
    return figure.update_layout(_LAYOUT | {"coloraxis": colours, "margin": margin})
