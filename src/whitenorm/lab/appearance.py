r"""How results look in figures and pages: words for columns, numbers, colours all can see."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import cycle
from typing import Any

from whitenorm.lab.results import Summary
from whitenorm.lab.study import Panel, View

__all__ = [
    "FIGURE_STYLE",
    "PALETTE",
    "axis_title",
    "colours",
    "metric_name",
    "number",
    "point_text",
    "summary",
]

# Okabe and Ito's, in an order that keeps neighbours apart; told apart in every common colour
# blindness, and on white and black. The last one is made for both backgrounds.
PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#8C8C8C",
)

# matplotlib's settings for every figure.
FIGURE_STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "whitenorm",  # the same records give the same file
    "svg.fonttype": "none",
}

_COLUMNS = {
    "iteration": "update",
    "epoch": "epoch",
    "seconds": "training time (s)",
    "batch_size": "batch size (examples)",
    "train_loss": "training loss (nats)",
    "train_error": "training error (%)",
    "test_loss": "test loss (nats)",
    "test_error": "test error (%)",
    "test_top5_error": "top-5 test error (%)",
    "seconds_per_iteration": "time an update (ms)",
    "swapped": "share of axes that swapped",
    "drift": "drift of the axes",
    "fisher.at_90_percent": "condition number (at 90%)",
    "fisher.at_smallest": "condition number",
    "jacobian.median": "median singular value",
    "jacobian.log10_deviation": "deviation of log10 of singular values",
    "jacobian.log10_rms": "RMS of log10 of singular values",
    "activations.correlation": "mean |correlation|",
    "activations.condition": "condition number",
}
# A method has the same colour in every figure.
_USUAL = {
    "DBN": 0,
    "DBN-ZCA": 0,
    "DBN-scale-L1": 0,
    "ZCA": 0,
    "BN": 1,
    "Baseline": 1,
    "LN": 2,
    "NNN": 3,
    "DBN-PCA": 4,
    "PCA": 4,
    "DBN-L1": 5,
    "Baseline + conv": 5,
    "DBN everywhere": 2,
    "plain": 6,
    "running whitening": 0,
    "running covariance": 1,
}
_FACTORS = {"seconds_per_iteration": 1e3}


def metric_name(column: str) -> str:
    """A column in words, with its unit.

    Example:
        >>> metric_name("test_error"), metric_name("iteration@0.1")
        ('test error (%)', 'updates to loss 0.1')
    """
    clock, _, loss = column.partition("@")
    if loss:
        return f"{'updates' if clock == 'iteration' else clock} to loss {loss}"
    return _COLUMNS.get(column, column.replace("_", " ").replace(".", ": "))


def axis_title(view: View, axis: str) -> str:
    """The title of a view's axis."""
    if axis == "x":
        return metric_name(view.x)
    if len(view.y) == 2 and view.y[0].replace("train", "test") == view.y[1]:
        return metric_name(view.y[0]).replace("training ", "")
    return metric_name(view.y[0])


def colours(panel: Panel) -> dict[str, str]:
    """A colour for each label of a panel."""
    labels = [curve.label for curve in panel.curves]
    free = [i for i in range(len(PALETTE)) if i not in {_USUAL.get(label) for label in labels}]
    others = cycle(free or range(len(PALETTE)))
    return {label: PALETTE[_USUAL[label] if label in _USUAL else next(others)] for label in labels}


def number(value: float, spread: float | None = None) -> str:
    """A number to as many digits as its spread leaves certain; four without one.

    Example:
        >>> number(7.7712, 0.031), number(1234.5), number(0.0001234)
        ('7.77 ± 0.03', '1234', '0.0001234')
    """
    if not math.isfinite(value):
        return "—"
    if spread is None or not math.isfinite(spread) or spread == 0:
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.3e}"
    digits = -math.floor(math.log10(spread))
    if digits > 6 or abs(value) >= 1e5:
        return f"{value:.3g} ± {spread:.1g}"
    digits = max(digits, 0)
    return f"{value:.{digits}f} ± {spread:.{digits}f}"


def summary(values: Summary, metric: str) -> str:
    """Mean and spread in the unit of :func:`metric_name`."""
    if values.n == 0 or not (values.values or values.diverged):
        return "—"
    if values.diverged:
        return f"{values.diverged} of {values.n} diverged"
    factor = _FACTORS.get(metric, 1.0)
    return number(values.mean * factor, values.spread * factor)


def point_text(point: Mapping[str, Any] | None) -> str:
    """A point of a grid in words: ``lr 0.5, eps 0.1``."""
    if not point:
        return ""
    names = {path: path.partition(".")[2] or path for path in point}
    return ", ".join(f"{names[path]} {json.dumps(value)}" for path, value in point.items())
