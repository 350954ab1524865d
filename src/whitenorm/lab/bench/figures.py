r"""Records as figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from whitenorm.lab.bench.markdown import label
from whitenorm.lab.bench.roofline import FLOPS, PASSES, peak
from whitenorm.lab.bench.tables import bars_of, curve, layer_bounds, main_layers, slope
from whitenorm.lab.reporting.style import FIGURE_STYLE, PALETTE

__all__ = ["figures", "save"]

_STYLE = {**FIGURE_STYLE, "font.size": 9}
_OURS, _THEIRS, _LOOP, _NEWTON = PALETTE[0], PALETTE[1], PALETTE[4], PALETTE[3]
_MARKERS = "osD^vPX<>*phd"


def figures(record: dict[str, Any]) -> dict[str, Figure]:
    """The figures of a record by name."""
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]
        return {name: make(record) for name, make in _FIGURES[record["suite"]].items()}


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as SVG; what is written depends on the record alone."""
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]
        figure.savefig(path, metadata={"Date": None})


def _logarithmic(axes: Axes, **axis: int) -> None:
    """Logarithmic x or y (``x=2``: in powers of 2), with ordinary numbers as labels."""
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    for name, base in axis.items():
        getattr(axes, f"set_{name}scale")("log", base=base)
        ticks = getattr(axes, f"{name}axis")
        ticks.set_major_formatter(plain)
        if base == 10:  # less than a decade has too few powers of ten to read it by
            ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ticks.set_minor_formatter(FuncFormatter(lambda *_: ""))


def _look(index: int, case: dict[str, Any]) -> dict[str, Any]:
    """How the curve of the case at this index is drawn."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "markersize": 4,
        "label": case["title"],
    }


def _bars(record: dict[str, Any]) -> Figure:
    """Each ratio with its quartiles, as a share of its bar."""
    entries = list(bars_of(record))
    figure = Figure(figsize=(9, 0.6 + 0.3 * len(entries)), layout="constrained")
    axes = figure.subplots()
    for row, (bar, case) in enumerate(reversed(entries)):
        ratio = case["alternatives"][bar["alternative"]]["ratios"][bar["reference"]]
        found, most = ratio[bar["quantity"]], bar["at_most"]
        colour = _OURS if found["median"] <= most else _THEIRS
        axes.plot([found["q1"] / most, found["q3"] / most], [row, row], color=colour, lw=3)
        axes.plot(found["median"] / most, row, "o", color=colour)
    axes.axvline(1, color="black", lw=1)
    _logarithmic(axes, x=10)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 8.5)))
    axes.set_yticks(
        range(len(entries)),
        [f"{bar['what']}  (<= {bar['at_most']:.2f})" for bar, _ in reversed(entries)],
        fontsize=8,
    )
    axes.set_xlabel("ratio / bar, with quartiles (met left of 1)")
    return figure


def _layer_groups(record: dict[str, Any]) -> Figure:
    """Left: our cost by group size. Right: everything at group 16, by shape."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    cases = main_layers(record)
    for index, case in enumerate(cases):
        points = [
            (a["info"]["group"], a["ratios"]["bn"]["both"]["median"])
            for a in case["alternatives"].values()
            if a["info"]["kind"] == "dbn"
        ]
        left.plot(*zip(*points, strict=True), lw=1.2, **_look(index, case))
    _logarithmic(left, x=2, y=10)
    left.axhline(1, color="black", lw=1)
    left.set(
        xlabel="group size", ylabel="forward + backward, against BN", title="DBN by group size"
    )
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13)}
    left.legend(fontsize=7, ncols=4, **below)
    kinds = (("dbn-g16", _OURS), ("loop-g16", _LOOP), ("newton-g16", _NEWTON))
    chosen = [case for case in cases if "dbn-g16" in case["alternatives"]][::-1]
    for (name, colour), marker in zip(kinds, "osD", strict=True):
        found = [
            (case["alternatives"][name]["ratios"]["bn"]["both"]["median"], row)
            for row, case in enumerate(chosen)
            if name in case["alternatives"]
        ]
        if found:
            right.plot(*zip(*found, strict=True), marker, color=colour, label=label(name))
    right.set_yticks(range(len(chosen)), [case["title"] for case in chosen], fontsize=8)
    _logarithmic(right, x=10)
    right.axvline(1, color="black", lw=1)
    right.set(xlabel="forward + backward, against BN", title="At group 16, beside usual ports")
    right.legend(fontsize=8, ncols=3, **below)
    return figure


def _roofline(record: dict[str, Any]) -> Figure:
    """Operations a second against operations a byte, under what the machine can do."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    rates, fastest = record["rates"], peak(record["rates"])
    intensities = [FLOPS * 2**i / (PASSES * 4) for i in range(10)]
    copies = [rate for _, rate in rates["copy"]]
    slow, fast = (
        [min(x * rate, fastest) / 1e9 for x in intensities] for rate in (min(copies), max(copies))
    )
    axes.fill_between(
        intensities, slow, fast, color="#8C8C8C", alpha=0.3, lw=0, label="copy and fastest product"
    )
    for index, case in enumerate(main_layers(record)):
        points = [
            (
                FLOPS * limits["group"] / (PASSES * 4),
                limits["arithmetic"] / limits["seconds"] * fastest / 1e9,
            )
            for found, name, limits in layer_bounds(record)
            if found is case and name != "bn"
        ]
        axes.plot(*zip(*points, strict=True), lw=0.8, **_look(index, case))
    _logarithmic(axes, x=2, y=10)
    axes.set_xticks(intensities, [f"{x:.3g}\n(k={2**i})" for i, x in enumerate(intensities)])
    axes.set(xlabel="operations a byte", ylabel="Gflop/s of forward + backward")
    axes.legend(fontsize=7, ncols=2)
    return figure


def _networks(record: dict[str, Any]) -> Figure:
    """Training steps against BN, beside the paper's."""
    entries = []
    for case in record["cases"]:
        if case["info"]["mode"] == "training":
            for name, alternative in case["alternatives"].items():
                if "bn" in alternative["ratios"]:
                    ratio = alternative["ratios"]["bn"]["step"]
                    papers = list(alternative["info"]["paper"].values())
                    entries.append((f"{case['title']}: {label(name)}", ratio, papers))
    entries.reverse()
    figure = Figure(figsize=(8, 0.8 + 0.24 * len(entries)), layout="constrained")
    axes = figure.subplots()
    for row, (_, ratio, papers) in enumerate(entries):
        axes.plot([ratio["q1"], ratio["q3"]], [row, row], color=_OURS, lw=3)
        axes.plot(ratio["median"], row, "o", color=_OURS, label="here" if row == 0 else None)
        axes.plot(papers, [row] * len(papers), "D", color=_THEIRS, markersize=5)
    axes.plot([], [], "D", color=_THEIRS, markersize=5, label="paper")
    axes.axvline(1, color="black", lw=1)
    axes.set_xscale("log")
    axes.set_xticks([1, 1.5, 2, 3, 4, 6], ["1", "1.5", "2", "3", "4", "6"])
    axes.minorticks_off()
    axes.set_yticks(range(len(entries)), [name for name, _, _ in entries], fontsize=8)
    axes.set_xlabel("training step, against BN")
    axes.legend(loc="lower right")
    return figure


def _growth(record: dict[str, Any]) -> Figure:
    """Cost along each size, with the growth that fits its upper half."""
    cases = record["cases"]
    columns = 3
    rows = -(-len(cases) // columns)
    figure = Figure(figsize=(3.6 * columns, 3.1 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(cases) :]:
        axes.set_axis_off()
    for case, axes in zip(cases, grid.flat, strict=False):
        for kind, colour in (("dbn", _OURS), ("bn", _THEIRS)):
            points = curve(case, kind)
            x, seconds = zip(*points, strict=True)
            fit = slope(points[len(points) // 2 :])
            axes.plot(
                x,
                [1e3 * s for s in seconds],
                color=colour,
                marker="o" if kind == "dbn" else "s",
                markersize=4,
                label=f"{label(kind)}, upper half $x^{{{fit:.2f}}}$",
            )
        last = curve(case, "dbn")[-1]
        axes.plot(
            [x[0], last[0]],
            [1e3 * last[1] * x[0] / last[0], 1e3 * last[1]],
            color="#8C8C8C",
            ls="--",
            lw=1,
            label="$x^1$",
        )
        _logarithmic(axes, x=2, y=10)
        axes.set(xlabel=case["info"]["axis"], ylabel="forward + backward (ms)")
        axes.set_title(case["title"], fontsize=8)
        axes.legend(fontsize=7)
    return figure


_FIGURES: dict[str, dict[str, Callable[[dict[str, Any]], Figure]]] = {
    "bars": {"bars-figure": _bars},
    "layer": {"layer-figure": _layer_groups, "layer-roofline": _roofline},
    "network": {"network-figure": _networks},
    "scaling": {"scaling-figure": _growth},
    "memory": {},
    "parts": {},
}
