r"""The demo: what whitening is for, on data inside scikit-learn, within a minute."""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from whitenorm.lab.records.run import Run, Settings
from whitenorm.lab.studies.claims import Measure, effect, final, lower, middle
from whitenorm.lab.studies.perceptrons import ILLUSTRATION, SWAP_VIEW
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.settings import BN, CONDITION, CONDITIONING, PLAIN, mlp
from whitenorm.lab.studies.study import (
    MEDIAN_OF_THREE,
    Claim,
    Curve,
    Panel,
    Scale,
    Study,
    View,
    panels,
)
from whitenorm.lab.studies.wording import number, point_text

_LAYER = {"running": "covariance", "shrinkage": "bounded"}  # the layer's own defaults
_DBN: Settings = {"name": "dbn", **_LAYER}
_PCA: Settings = {"name": "dbn-pca", **_LAYER}
_UPDATES, _BATCH = 80, 128
_FISHER: Settings = {"fisher": {"every": 20, "samples": 500}}
_CORRELATIONS: Settings = {
    "correlations": {"every": _UPDATES, "layer": "hidden.1.norm", "neurons": 32}
}


def _panel(
    name: str,
    rates: Sequence[float],
    curves: dict[str, dict[str, Any]],
    changes: dict[str, Any],
) -> Panel:
    run = Run({"name": name}, mlp([64] * 4), PLAIN, iterations=_UPDATES, evaluate_every=8)
    return panels(run.changed(changes), {name: {}}, curves, {"optimiser.lr": rates})[0]


_PHOTOGRAPHS = _panel(
    "photographs",
    (0.03, 0.3, 3),
    {
        "plain": {"method": PLAIN},
        "BN": {"method": BN, "probes": {**_FISHER, **_CORRELATIONS}},
        "DBN-PCA": {"method": _PCA},
        "DBN": {"method": _DBN, "probes": {**_FISHER, **_CORRELATIONS}},
    },
    {"probes": _FISHER},
)
_DIGITS = _panel(
    f"digits, batches of {_BATCH}",
    (0.3, 1, 3),
    {"BN": {"method": BN}, "DBN": {"method": _DBN}},
    {"dataset": {"name": "digits"}, "batch_size": _BATCH},
)

_BOTH = (_PHOTOGRAPHS.name, _DIGITS.name)
_LOSS, _ERROR = final("train_loss"), final("test_error")


def _compared(results: Results, panel: Panel, measure: Measure, unit: str = "") -> str:
    """DBN beside BN: lower or higher if the 95% interval over seeds says so, and the means."""
    ours, other = (panel.curve(label) for label in ("DBN", "BN"))
    found, words = effect(measure, results, ours, other), "not clearly different from"
    none = 1.0 if found and found.ratio else 0.0
    if found and found.high < none:
        words = "clearly lower than"
    if found and found.low > none:
        words = "clearly higher than"
    means = [measure.of(results, curve).mean for curve in (ours, other)]
    a, b = (number(float(f"{mean:.2g}")) + unit for mean in means)
    return f"{measure.name} is {words} BN's ({a} against {b})"


def _best_tested(results: Results, curve: Curve) -> str:
    """The lowest test error among the learning rates, whatever they fit, and at which."""
    by_error = replace(results.scale.selection, metric="test_error")
    scores = curve.choose(by_error, results.all).scores
    point, _, error = min(scores, key=lambda entry: entry[2])
    return f"{number(float(f'{error:.2g}'))}% ({point_text(point)})" if isfinite(error) else "—"


def _summary(results: Results) -> str:
    """What the records say of DBN beside BN, won or lost."""
    there = {panel.name: panel for panel in results.scale.panels}
    photographs, digits = (
        f"DBN's {_compared(results, there[panel.name], _LOSS)}, and its "
        f"{_compared(results, there[panel.name], _ERROR, '%')}"
        for panel in (_PHOTOGRAPHS, _DIGITS)
    )
    ours, other = (there[_PHOTOGRAPHS.name].curve(label) for label in ("DBN", "BN"))
    seeds = len(results.records(ours))
    return (
        f"On patches of photographs, whose pixels are strongly correlated, {photographs}. That is "
        "at the learning rates that fit best; where they test best, by the median of the seeds "
        f"that tried them all, DBN has {_best_tested(results, ours)} and BN "
        f"{_best_tested(results, other)}. "
        f"On digits, whose pixels hardly are, in batches of {_BATCH}, {digits}. Numbers are means "
        f"over {seeds} seeds; clear is what their 95% interval shows."
    )


DEMO = Study(
    name="demo",
    title="What whitening is for: patches of photographs",
    reference="The demo",
    question="Does a network learn faster if the inputs of its layers are not only scaled, as by "
    "BN, but decorrelated, as by DBN?",
    scales={
        "small": Scale(
            (_PHOTOGRAPHS, _DIGITS, ILLUSTRATION),
            selection=replace(MEDIAN_OF_THREE, widen=()),
            duration="a minute on 2 cores",
            setting="not an experiment of the paper: from which of two photographs is a patch of "
            f"12x12? Four hidden layers of 64, {_UPDATES} updates with the whole training set, "
            "DBN as the layer is by default, each method at the best of three learning rates",
        )
    },
    views=(
        View("loss", "Training loss", x="iteration", log="y", panels=_BOTH),
        View(
            "error",
            "Test error",
            x="iteration",
            y=("test_error",),
            panels=_BOTH,
        ),
        replace(CONDITIONING, panels=("photographs",)),
        View(
            "correlations",
            "Correlations in the second hidden layer, after training",
            kind="correlations",
            panels=("photographs",),
        ),
        SWAP_VIEW,
    ),
    claims=(
        Claim(
            "With DBN the network fits patches of photographs better than with BN, after as many "
            "updates.",
            "its last training loss there is lower",
            lower(_LOSS, [("DBN", "BN")], ["photographs"]),
        ),
        Claim(
            "With DBN it tests better than with BN, too.",
            "its last test error there is lower than BN's",
            lower(_ERROR, [("DBN", "BN")], ["photographs"]),
        ),
        Claim(
            "With DBN the problem is better conditioned than with BN.",
            "the median over training of the condition number of the last layer's Fisher matrix "
            "there is lower than BN's",
            lower(middle(CONDITION), [("DBN", "BN")], ["photographs"]),
        ),
        Claim(
            "It matters how one whitens: by ZCA, as DBN does, it fits better than by PCA.",
            "the last training loss of DBN there is lower than that of DBN-PCA",
            lower(_LOSS, [("DBN", "DBN-PCA")], ["photographs"]),
        ),
        Claim(
            "On digits, in small batches, BN fits better than DBN.",
            f"the last training loss of BN on digits in batches of {_BATCH} is lower",
            lower(_LOSS, [("BN", "DBN")], [_DIGITS.name]),
        ),
    ),
    metrics=("train_loss", "test_error", "seconds_per_iteration"),
    notes=(
        "Held-out patches share no pixel with those for training: they come from other tiles of "
        "the photographs.",
        "Only the mean over all patches is subtracted, so that a patch keeps its brightness.",
        "The condition number rises as a network fits, since then ever fewer examples have a "
        "gradient: compare it at the start, and beside the training loss.",
        "The correlations are those of the first 32 neurons: two groups that DBN whitens. Between "
        "groups it leaves them.",
    ),
    summary=_summary,
)
