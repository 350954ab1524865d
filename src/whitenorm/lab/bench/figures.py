r"""A record of layers as a figure: DBN by group size, and the usual ports, against BN."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from whitenorm.lab.reporting.style import FIGURE_STYLE, PALETTE

SHOWN = ("[64, 64, 32, 32]", "[256, 128, 16, 16]", "[256, 512, 4, 4]", "[256, 128]")
LOOKS = {
    "dbn": ("o-", "DBN"),
    "loop": ("s", "loop over eigh"),
    "newton": ("D", "Newton-Schulz"),
    "floor": ("v", "floor"),
}


def save_layer_figure(record: dict[str, Any], path: Path) -> None:
    """Writes an SVG with the inputs that the page shows; the same record gives the same file."""
    usual = [case for case in record["cases"] if _is_usual(case["info"])]
    cases = [case for case in usual if case["title"] in SHOWN] or usual
    style: Any = {**FIGURE_STYLE, "font.size": 8}
    with mpl.rc_context(style):
        figure = Figure(figsize=(2.6 * len(cases), 2.8), layout="constrained")
        grid = figure.subplots(1, len(cases), squeeze=False, sharex=True, sharey=True)[0]
        for case, axes in zip(cases, grid, strict=True):
            for (kind, (look, words)), colour in zip(LOOKS.items(), PALETTE, strict=False):
                points = [
                    (int(name.partition("-g")[2]), found["ratios"]["bn"]["both"]["median"])
                    for name, found in case["alternatives"].items()
                    if name.startswith(kind)
                ]
                if points:  # records from before the floor have none of it
                    axes.plot(*zip(*points, strict=True), look, color=colour, label=words, ms=4)
            axes.axhline(1, color="black", lw=1)
            axes.set(title=case["title"], xscale="log", yscale="log", xlabel="group size")
            axes.xaxis.set_major_locator(LogLocator(base=4))
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.minorticks_off()
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        grid[0].set_ylabel("forward + backward, against BN")
        figure.legend(
            *grid[0].get_legend_handles_labels(),
            loc="outside upper center",
            ncols=2 * min(len(cases), 2),
        )
        figure.savefig(path, metadata={"Date": None})


def _is_usual(info: dict[str, Any]) -> bool:
    return (info["dtype"], info["layout"]) == ("float32", "contiguous")
