r"""How figures look: colours that all can tell apart, and matplotlib's settings."""

from itertools import cycle

from whitenorm.lab.studies.study import Panel

# Okabe and Ito's colours, which are told apart in every common colour blindness, in an order that
# keeps similar ones apart; and a grey. All can be seen on white and on black. A method has the
# same colour in every figure.
_LABELS = {
    "#0072B2": ("DBN", "DBN-ZCA", "DBN-scale-L1", "ZCA", "running whitening"),
    "#D55E00": ("BN", "Baseline", "running covariance"),
    "#009E73": ("LN", "DBN everywhere"),
    "#CC79A7": ("NNN",),
    "#E69F00": ("DBN-PCA", "PCA"),
    "#56B4E9": ("DBN-L1", "Baseline + conv"),
    "#8C8C8C": ("plain",),
}
_COLOURS = {label: colour for colour, labels in _LABELS.items() for label in labels}
PALETTE = tuple(_LABELS)
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


def colours(panel: Panel) -> dict[str, str]:
    """A colour for each label of a panel."""
    labels = [curve.label for curve in panel.curves]
    taken = {_COLOURS.get(label) for label in labels}
    free = cycle([colour for colour in PALETTE if colour not in taken] or PALETTE)
    return {label: _COLOURS[label] if label in _COLOURS else next(free) for label in labels}
