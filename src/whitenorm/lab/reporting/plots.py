r"""Figures as files, from results alone: PNG for a page, SVG for print."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from whitenorm.lab.reporting.style import FIGURE_STYLE, GREY, PALETTE, colours
from whitenorm.lab.studies.results import Results, Series
from whitenorm.lab.studies.study import Panel, View
from whitenorm.lab.studies.wording import axis_title

__all__ = ["draw", "draw_all", "few_values", "illustrations", "plain_ticks", "quadrants"]

_STYLE = {**FIGURE_STYLE, "font.size": 10, "legend.fontsize": 9, "lines.linewidth": 1.6}
_MARKERS = "osD^vPX"
_PALE = "#666666"


def draw_all(results: Results, folder: Path) -> list[Path]:
    """Draws every view of a study that there is something to draw of; the paths of the PNGs."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]
        for view in results.study.views:
            figure = draw(results, view)
            if figure is not None:
                stem = f"{results.study.name}-{results.scale_name}-{view.name}"
                paths.append(folder / f"{stem}.png")
                figure.savefig(paths[-1], dpi=160)
                # Without its date the file depends on the records alone.
                figure.savefig(folder / f"{stem}.svg", metadata={"Date": None})
    return paths


def draw(results: Results, view: View) -> Figure | None:
    """A figure with a plot for each panel of a view; None if there are no records for it."""
    panels = results.panels(view)
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]
        if view.kind == "swap":
            return _draw_swap(results, panels)
        if view.kind == "across":
            return _draw_across(results, view, panels)
        return _draw_lines(results, view, panels)


def _draw_across(results: Results, view: View, panels: list[Panel]) -> Figure | None:
    lines = results.across(view, panels)
    if not lines:
        return None
    figure = Figure(figsize=(4.8, 3.7), layout="constrained")
    axes = figure.subplots()
    _draw_series(view, lines, colours(panels[0]), axes)
    axes.set_xticks(range(len(panels)), [panel.name for panel in panels], fontsize=8)
    axes.set_ylabel(axis_title(view, "y"))
    axes.legend()
    figure.suptitle(view.title, fontsize=11)
    seeds = {len(results.records(c)) for p in panels for c in p.curves if results.records(c)}
    figure.supxlabel(_seeds_note(view, seeds), fontsize=8, color=_PALE)
    return figure


def _draw_lines(results: Results, view: View, panels: list[Panel]) -> Figure | None:
    panels = [panel for panel in panels if results.series(view, panel)]
    if not panels:
        return None
    columns = min(len(panels), 2)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(0.6 + 4.2 * columns, 0.6 + 3.1 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for panel, axes in zip(panels, grid.flat, strict=False):
        _draw_panel(results, view, panel, axes)
        axes.set_title(panel.name, fontsize=10)
    figure.suptitle(view.title, fontsize=11)
    seeds = {len(line.records) for panel in panels for line in results.series(view, panel)}
    _add_legends(figure, list(grid.flat[: len(panels)]), _seeds_note(view, seeds))
    return figure


def _seeds_note(view: View, seeds: set[int]) -> str:
    if seeds == {1}:
        return "lines: one seed"
    count = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    kind = "geometric mean" if "y" in view.log else "mean"
    return f"lines: {kind} over {count} seeds; bands: from the smallest to the largest"


def _draw_panel(results: Results, view: View, panel: Panel, axes: Any) -> None:
    lines = results.series(view, panel)
    _draw_series(view, lines, colours(panel), axes)
    axes.set_xlabel(axis_title(view, "x"))
    axes.set_ylabel(axis_title(view, "y"))
    if "x" in view.log:
        axes.set_xscale("log")
        if values := few_values(lines):
            axes.set_xticks(values, [f"{value:g}" for value in values])
            axes.minorticks_off()


def _add_legends(figure: Figure, plots: list[Any], note: str) -> None:
    """One below several plots that have the same, where it hides no curve; else one in each."""
    legends = [axes.get_legend_handles_labels() for axes in plots]
    if len(plots) > 1 and all(labels == legends[0][1] for _, labels in legends):
        place: dict[str, Any] = {"loc": "outside lower center", "ncols": len(legends[0][1])}
        legend = figure.legend(*legends[0], title=note, title_fontsize=8, **place)
        legend.get_title().set_color(_PALE)
    else:
        for axes in plots:
            axes.legend()
        figure.supxlabel(note, fontsize=8, color=_PALE)


def _draw_series(view: View, lines: list[Series], palette: dict[str, str], axes: Any) -> None:
    labels = list(palette)
    for line in lines:
        solid = line.column == view.y[0]
        every = max(len(line.x) // 8, 1)
        axes.plot(
            line.x,
            line.mean,
            color=palette[line.label],
            linestyle="-" if solid else "--",
            marker=_MARKERS[labels.index(line.label) % len(_MARKERS)] if solid else None,
            markevery=(labels.index(line.label) * every // 4, every),
            markersize=4,
            label=line.name if solid else None,
        )
        axes.fill_between(
            line.x, line.low, line.high, color=palette[line.label], alpha=0.18, linewidth=0
        )
    if "y" in view.log:
        axes.set_yscale("log")
        plain_ticks(axes)


def plain_ticks(axes: Any) -> None:
    """Plain numbers along a logarithmic ordinate of less than two decades, not powers of ten."""
    low, high = axes.get_ylim()
    if high >= 100 * low:
        return
    if high < 5 * low:
        values = list(MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high))
    else:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        values = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    values = [value for value in values if low <= value <= high]
    axes.set_yticks(values, [f"{value:g}" for value in values])
    axes.yaxis.set_minor_locator(NullLocator())


def few_values(lines: list[Series]) -> list[float]:
    """The values along the abscissa if they are at most ten, to be its ticks; else none."""
    values = sorted({x for line in lines for x in line.x})
    return values if len(values) <= 10 else []


def _draw_swap(results: Results, panels: list[Panel]) -> Figure | None:
    found = illustrations(results, panels)
    if not found:
        return None
    figure = Figure(figsize=(2.6 * (1 + len(found)), 5.2), layout="constrained")
    grid = figure.subplots(2, 1 + len(found), squeeze=False)
    first = next(iter(found.values()))
    shades = quadrants(first["blue"])
    for row in range(2):
        raw = grid[row][0]
        raw.scatter(*zip(*first["red"][row], strict=True), s=14, c=GREY, marker="x")
        raw.scatter(*zip(*first["blue"], strict=True), s=14, c=shades)
        raw.set_ylabel(f"batch {row + 1}")
        for column, (label, arrays) in enumerate(found.items(), start=1):
            grid[row][column].scatter(*zip(*arrays["whitened"][row], strict=True), s=14, c=shades)
            if row == 0:
                grid[row][column].set_title(f"whitened by {label}", fontsize=10)
    grid[0][0].set_title("before whitening", fontsize=10)
    for pair in grid.T:  # a column's two plots have the same axes, to be compared
        ends = [abs(value) for axes in pair for value in (*axes.get_xlim(), *axes.get_ylim())]
        for axes in pair:
            axes.set(xlim=(-max(ends), max(ends)), ylim=(-max(ends), max(ends)), aspect="equal")
            axes.tick_params(labelsize=8)
    figure.suptitle(
        "Two batches share the coloured points; the grey ones differ. A colour marks a "
        "quadrant:\nwhere colours trade places between the batches, axes have swapped.",
        fontsize=10,
    )
    return figure


def illustrations(results: Results, panels: list[Panel]) -> dict[str, Any]:
    """The arrays of the first seed's illustration for each label."""
    return {
        curve.label: records[0].arrays
        for panel in panels
        for curve in panel.curves
        if (records := results.records(curve)) and records[0].arrays
    }


def quadrants(points: list[list[float]]) -> list[str]:
    """A colour for each point, by its quadrant."""
    return [PALETTE[2 * (x < 0) + (y < 0)] for x, y in points]
