r"""How figures look: colours that all can tell apart, and matplotlib's settings."""

from __future__ import annotations

from itertools import cycle

from whitenorm.lab.studies.study import Panel

__all__ = ["FIGURE_STYLE", "GREY", "PALETTE", "colours"]

# Okabe and Ito's colours, which are told apart in every common colour blindness, in an order that
# keeps similar ones apart; and a grey. All can be seen on white and on black.
PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#8C8C8C",
)

GREY = PALETTE[-1]

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


def colours(panel: Panel) -> dict[str, str]:
    """A colour for each label of a panel."""
    labels = [curve.label for curve in panel.curves]
    free = [i for i in range(len(PALETTE)) if i not in {_USUAL.get(label) for label in labels}]
    others = cycle(free or range(len(PALETTE)))
    return {label: PALETTE[_USUAL[label] if label in _USUAL else next(others)] for label in labels}
