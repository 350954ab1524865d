r"""Heat maps of the correlations before and after a layer that normalizes."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import View

CORRELATIONS_NOTE = (
    "A square is the correlation of two neurons over training examples: red 1, white 0, blue -1.\n"
    "BN scales neurons, which changes no correlation; DBN removes those within its groups."
)
COLOURS = "RdBu"  # of matplotlib and of plotly; reversed, so that 1 is red


class Map(NamedTuple):
    """Correlations of some neurons at the end of training."""

    title: str
    matrix: np.ndarray  # NaN for a neuron that is constant

    @classmethod
    def of(cls, words: str, values: Any) -> "Map":
        """A map whose title says how large its correlations are, the diagonal left out."""
        matrix = np.array(values, dtype=float)
        others = np.abs(matrix[~np.eye(len(matrix), dtype=bool)])
        return cls(f"{words}: mean |r| {np.nanmean(others):.2f}", matrix)


def correlation_maps(results: Results, view: View) -> list[tuple[Map, Map]]:
    """Before and after the layer, with the first seed, for each curve that measured it."""
    found = []
    for panel in results.panels(view):
        for curve in panel.curves:
            measured = [r.probes.get("correlations") for r in results.records(curve)]
            if first := next(filter(None, measured), None):
                before, after = (
                    Map.of(f"{when} {curve.label}", first[when][-1])
                    for when in ("before", "after")
                )
                found.append((before, after))
    return found


def draw_correlations(results: Results, view: View) -> Figure | None:
    """A row for each curve; before the layer, and after it. None if there are no records."""
    rows = correlation_maps(results, view)
    if not rows:
        return None
    figure = Figure(figsize=(6.4, 0.8 + 2.9 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), 2, squeeze=False)
    for maps, pair in zip(rows, grid, strict=True):
        for one, axes in zip(maps, pair, strict=True):
            shown = axes.imshow(one.matrix, vmin=-1, vmax=1, cmap=f"{COLOURS}_r")
            axes.set_title(one.title, fontsize=10)
            axes.set(xticks=[], yticks=[])
            axes.grid(visible=False)
    figure.colorbar(shown, ax=grid, label="correlation", shrink=0.6)
    figure.suptitle(view.title, fontsize=11)
    return figure
