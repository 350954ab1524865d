r"""What figures show, from results alone; and their files: PNG for a page, SVG for print."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from whitenorm.lab.reporting.heat_maps import draw_correlations
from whitenorm.lab.reporting.style import FIGURE_STYLE, GREY, PALETTE, colours
from whitenorm.lab.reporting.tables import span
from whitenorm.lab.studies.results import Results, Series
from whitenorm.lab.studies.study import Panel, View
from whitenorm.lab.studies.wording import CLASSES, axis_title, dataset_title, solid_and_dashed

Points = list[list[float]]
_STYLE: Any = {**FIGURE_STYLE, "font.size": 10, "legend.fontsize": 9, "lines.linewidth": 1.6}
_MARKERS = "osD^vPX"
_PALE = "#666666"
SWAP_NOTE = (
    "Two batches share the coloured points; the grey ones differ. A colour marks a quadrant:\n"
    "where colours trade places between the batches, axes have swapped."
)


@dataclass(frozen=True)
class Plot:
    """Lines that are drawn together."""

    title: str
    panel: Panel  # that the colours are of
    lines: list[Series]
    x_title: str
    ticks: dict[float, str]  # along the abscissa; empty for the usual ones


def line_plots(results: Results, view: View) -> list[Plot]:
    """The plots of a view: one for each panel with records, or across panels that differ last."""
    panels = results.panels(view)
    plots = []
    if view.kind == "across":
        # "groups of 16, batch 32" is a place in the plot of "groups of 16".
        by_title: dict[str, list[Panel]] = {}
        for panel in panels:
            by_title.setdefault(panel.name.rpartition(", ")[0], []).append(panel)
        for title, some in by_title.items():
            if lines := results.across(view, some):
                names = {float(i): p.name.rpartition(", ")[2] for i, p in enumerate(some)}
                plots.append(Plot(_titled(title, some[0]), some[0], lines, "", names))
        return plots
    for panel in panels:
        if lines := results.series(view, panel):
            values = sorted({x for line in lines for x in line.x})
            few = "x" in view.log and len(values) <= 10
            ticks = {value: f"{value:g}" for value in values} if few else {}
            title = _titled(panel.name, panel)
            plots.append(Plot(title, panel, lines, axis_title(view, "x"), ticks))
    return plots


def _titled(name: str, panel: Panel) -> str:
    """The name of a panel, with its data set if it doesn't say that."""
    dataset = panel.curves[0].run.dataset["name"]
    title = dataset_title(dataset)
    return name if dataset == "none" or title.lower() in name.lower() else f"{title}: {name}"


def seeds_of(line: Series) -> int:
    """How many seeds a line is the mean of."""
    return len({record.run.seed for record in line.records})


def swap_points(results: Results, view: View) -> tuple[list[str], dict[str, list[Points]]] | None:
    """The illustration of axis swapping, with the first seed; None if there are no records for it.

    Returns:
        A colour for each point that both batches share, by its quadrant; and both batches before
        whitening and after each one. The shared points are the last ones of a batch.
    """
    found = {
        curve.label: records[0].arrays
        for panel in results.panels(view)
        for curve in panel.curves
        if (records := results.records(curve)) and records[0].arrays
    }
    if not found:
        return None
    first = next(iter(found.values()))
    before = [unshared + first["blue"] for unshared in first["red"]]
    shades = [PALETTE[2 * (x < 0) + (y < 0)] for x, y in first["blue"]]
    return shades, {"before": before} | {label: a["whitened"] for label, a in found.items()}


def draw_all(results: Results, folder: Path) -> list[Path]:
    """Draws every view of a study that there is something to draw of; the paths of the PNGs."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with mpl.rc_context(_STYLE):
        for view in results.study.views:
            if figure := draw(results, view):
                stem = f"{results.study.name}-{results.scale_name}-{view.name}"
                paths.append(folder / f"{stem}.png")
                figure.savefig(paths[-1], dpi=160)
                # Without its date the file depends on the records alone.
                figure.savefig(folder / f"{stem}.svg", metadata={"Date": None})
    return paths


def draw(results: Results, view: View) -> Figure | None:
    """The figure of a view; None if there are no records for it."""
    if view.kind in _OTHER_KINDS:
        return _OTHER_KINDS[view.kind](results, view)
    plots = line_plots(results, view)
    if not plots:
        return None
    columns = min(len(plots), 2 if len(plots) <= 6 else 3)
    rows = math.ceil(len(plots) / columns)
    figure = Figure(figsize=(0.6 + 4.2 * columns, 0.6 + 3.1 * rows), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for plot, axes in zip(plots, grid, strict=False):
        _draw_plot(view, plot, axes)
    for axes in grid[len(plots) :]:
        axes.set_axis_off()
    figure.suptitle(view.title, fontsize=11)
    seeds = {seeds_of(line) for plot in plots for line in plot.lines}
    kind = "geometric mean" if "y" in view.log else "mean"
    spread = "bands: from the smallest to the largest" if view.kind == "across" else "thin: seeds"
    note = f"thick: {kind} over {span(seeds)} seeds; {spread}"
    note = "lines: one seed" if seeds == {1} else note
    if styles := solid_and_dashed(view):
        note += f"; {styles}"
    if any(r.status == "diverged" for plot in plots for line in plot.lines for r in line.records):
        note += "; diverged runs are left out"
    _add_legends(figure, grid[: len(plots)], note)
    return figure


def _draw_plot(view: View, plot: Plot, axes: Any) -> None:
    palette = colours(plot.panel)
    for line in plot.lines:
        solid, colour = line.column == view.y[0], palette[line.label]
        place, every = list(palette).index(line.label), max(len(line.x) // 8, 1)
        axes.plot(
            line.x,
            line.mean,
            color=colour,
            linestyle="-" if solid else "--",
            marker=_MARKERS[place % len(_MARKERS)] if solid else None,
            markevery=(place * every // 4 if every > 1 else 0, every),  # not all at one place
            markersize=4,
            label=line.name if solid else None,
        )
        if view.kind == "across":
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
            continue
        probe, dot, _ = line.column.rpartition(".")
        for record in line.records:
            if record.status == "finished":
                x, y = record.column(probe + dot + view.x), record.column(line.column)
                values = [math.nan if v is None else v for v in y]
                axes.plot(x, values, color=colour, alpha=0.35, linewidth=0.6)
    if any("error" in column for column in view.y):
        _draw_chance(plot, axes)
    if view.crossing and (found := crossing(plot.lines, view)):
        axes.axvline(found[0], color=_PALE, linewidth=0.8, linestyle=":")
        words = f"{view.crossing[0]} falls behind {view.crossing[1]}\nat a loss of {found[1]:.1g}"
        foot: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axes.annotate(words, (found[0], 0.02), (6, 0), **foot, fontsize=8, color=_PALE)
    axes.set_title(plot.title, fontsize=10)
    axes.set(xlabel=plot.x_title, ylabel=axis_title(view, "y"))
    if "y" in view.log:
        axes.set_yscale("log")
        plain_ticks(axes)
    if "x" in view.log:
        axes.set_xscale("log")
    if plot.ticks:
        size = 8 if view.kind == "across" else 10
        axes.set_xticks(list(plot.ticks), list(plot.ticks.values()), fontsize=size)
        axes.xaxis.set_minor_locator(NullLocator())


def _draw_chance(plot: Plot, axes: Any) -> None:
    """The error of guessing, where the lines come near it."""
    classes = CLASSES.get(plot.panel.curves[0].run.dataset["name"])
    highest = max(value for line in plot.lines for value in line.high)
    if classes and highest > 0.75 * (chance := 100 - 100 / classes):
        axes.axhline(chance, color=_PALE, linewidth=0.8, linestyle=":")
        place = ("axes fraction", "data")
        axes.annotate(
            "chance", (0.99, chance), xycoords=place, ha="right", va="bottom", fontsize=8
        )


def crossing(lines: Sequence[Series], view: View) -> tuple[float, float] | None:
    """Where the first of a view's two labels falls behind the second; None if nowhere.

    That is the lowest value to which it is no later: the abscissa there, and the value.
    """
    ours, other = (
        next((x for x in lines if x.label == name), None) for name in view.crossing or ()
    )
    if ours is None or other is None:
        return None
    levels = sorted({*ours.mean, *other.mean})
    times = [(_first(ours, level), _first(other, level), level) for level in levels]
    reached = [(a, b, level) for a, b, level in times if max(a, b) < math.inf]
    ahead = [(a, level) for a, b, level in reached if a <= b]
    return ahead[0] if ahead and ahead[0][1] > reached[0][2] else None


def _first(line: Series, level: float) -> float:
    """The abscissa at which a line first is no higher than a level; infinite if it never is."""
    return next((x for x, y in zip(line.x, line.mean, strict=True) if y <= level), math.inf)


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


def _draw_swap(results: Results, view: View) -> Figure | None:
    found = swap_points(results, view)
    if found is None:
        return None
    shades, columns = found
    figure = Figure(figsize=(2.6 * len(columns), 5.2), layout="constrained")
    grid = figure.subplots(2, len(columns), squeeze=False)
    for (label, batches), pair in zip(columns.items(), grid.T, strict=True):
        title = "before whitening" if label == "before" else f"whitened by {label}"
        pair[0].set_title(title, fontsize=10)
        for points, axes in zip(batches, pair, strict=True):
            if unshared := points[: -len(shades)]:
                axes.scatter(*zip(*unshared, strict=True), s=14, c=GREY, marker="x")
            axes.scatter(*zip(*points[-len(shades) :], strict=True), s=14, c=shades)
        # The two plots have the same axes, to be compared.
        end = max(abs(value) for axes in pair for value in (*axes.get_xlim(), *axes.get_ylim()))
        for axes in pair:
            axes.set(xlim=(-end, end), ylim=(-end, end), aspect="equal")
            axes.tick_params(labelsize=8)
    for row, axes in enumerate(grid[:, 0]):
        axes.set_ylabel(f"batch {row + 1}")
    figure.suptitle(SWAP_NOTE, fontsize=10)
    return figure


_OTHER_KINDS: dict[str, Callable[[Results, View], Figure | None]] = {
    "correlations": draw_correlations,
    "swap": _draw_swap,
}
