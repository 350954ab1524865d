r"""The demo: what whitening is for, on data inside scikit-learn, within half a minute."""

from typing import Any

from whitenorm.lab.records.run import Run, Settings
from whitenorm.lab.studies.claims import Measure, effect, final, lower, middle
from whitenorm.lab.studies.perceptrons import ILLUSTRATION, SWAP_VIEW
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.settings import BN, PLAIN, mlp
from whitenorm.lab.studies.study import Claim, Panel, Scale, Study, View, panels
from whitenorm.lab.studies.wording import number

_LAYER = {"running": "covariance", "shrinkage": "bounded"}  # the layer's own defaults
_DBN: Settings = {"name": "dbn", **_LAYER}
_PCA: Settings = {"name": "dbn-pca", **_LAYER}
_RATES = {"optimiser.lr": (0.03, 0.1, 0.3, 1, 3)}
_UPDATES, _BATCH = 200, 128
_FISHER: Settings = {"fisher": {"every": 20, "samples": 1000}}
_CORRELATIONS: Settings = {
    "correlations": {"every": _UPDATES, "layer": "hidden.1.norm", "neurons": 32}
}


def _panel(dataset: str, curves: dict[str, dict[str, Any]], probes: Settings) -> Panel:
    run = Run({"name": dataset}, mlp([64] * 4), PLAIN, iterations=_UPDATES, evaluate_every=5)
    return panels(run.changed({"probes": probes}), {dataset: {}}, curves, _RATES)[0]


_PHOTOGRAPHS = _panel(
    "photographs",
    {
        "plain": {"method": PLAIN},
        "BN": {"method": BN, "probes": {**_FISHER, **_CORRELATIONS}},
        "DBN-PCA": {"method": _PCA},
        "DBN": {"method": _DBN, "probes": {**_FISHER, **_CORRELATIONS}},
    },
    probes=_FISHER,
)
_SMALL_BATCHES = tuple(f"{label}, batches of {_BATCH}" for label in ("DBN", "BN"))
_DIGITS = _panel(
    "digits",
    {
        "BN": {"method": BN},
        "DBN": {"method": _DBN},
        _SMALL_BATCHES[1]: {"method": BN, "batch_size": _BATCH},
        _SMALL_BATCHES[0]: {"method": _DBN, "batch_size": _BATCH},
    },
    probes={},
)

_LOSS, _ERROR = final("train_loss"), final("test_error")
_CONDITION = "fisher.at_90_percent"


def _how(measure: Measure, results: Results, panel: Panel, ours: str, other: str) -> str:
    """Better or worse, if the 95% interval over seeds says so."""
    found = effect(measure, results, panel.curve(ours), panel.curve(other))
    none = 1.0 if found and found.ratio else 0.0
    if found and found.high < none:
        return "better"
    return "worse" if found and found.low > none else "neither clearly better nor worse"


def _against(
    measure: Measure, unit: str, results: Results, panel: Panel, ours: str, other: str
) -> str:
    means = (measure.of(results, panel.curve(label)).mean for label in (ours, other))
    a, b = (number(float(f"{mean:.2g}")) + unit for mean in means)
    return f"{measure.name} {a} against {b}"


def _compared(results: Results, name: str, ours: str = "DBN", other: str = "BN") -> str:
    """How DBN fits and tests beside BN in a panel, with the numbers."""
    pair = results, {panel.name: panel for panel in results.scale.panels}[name], ours, other
    numbers = f"{_against(_LOSS, '', *pair)}, {_against(_ERROR, '%', *pair)}"
    return f"fits {_how(_LOSS, *pair)} and tests {_how(_ERROR, *pair)} than BN ({numbers})"


def _summary(results: Results) -> str:
    """What the records say of DBN beside BN, won or lost."""
    return (
        "On patches of photographs, whose pixels are strongly correlated, DBN "
        f"{_compared(results, 'photographs')}. On digits, whose pixels hardly are, it "
        f"{_compared(results, 'digits')}; there in batches of {_BATCH}, it "
        f"{_compared(results, 'digits', *_SMALL_BATCHES)}."
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
            duration="30 s on 2 cores",
            reduced="not an experiment of the paper: from which of two photographs is a patch of "
            f"12x12? Four hidden layers of 64, {_UPDATES} updates with the whole training set, "
            "DBN as the layer is by default, each method at its best learning rate",
        )
    },
    views=(
        View("loss", "Training loss", x="iteration", log="y", panels=("photographs", "digits")),
        View(
            "error",
            "Test error",
            x="iteration",
            y=("test_error",),
            panels=("photographs", "digits"),
        ),
        View(
            "conditioning",
            "Conditioning of the last layer's Fisher matrix",
            x="iteration",
            y=(_CONDITION,),
            log="y",
            panels=("photographs",),
        ),
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
            "It tests better, too.",
            "its last test error there is lower than BN's",
            lower(_ERROR, [("DBN", "BN")], ["photographs"]),
        ),
        Claim(
            "Its problem is better conditioned.",
            "the median over training of the condition number of the last layer's Fisher matrix "
            "there is lower than BN's",
            lower(middle(_CONDITION), [("DBN", "BN")], ["photographs"]),
        ),
        Claim(
            "It matters how one whitens: by ZCA, as DBN does, it fits better than by PCA.",
            "the last training loss of DBN there is lower than that of DBN-PCA",
            lower(_LOSS, [("DBN", "DBN-PCA")], ["photographs"]),
        ),
        Claim(
            "On digits, in small batches, BN fits better than DBN.",
            f"the last training loss of BN on digits in batches of {_BATCH} is lower",
            lower(_LOSS, [_SMALL_BATCHES[::-1]], ["digits"]),
        ),
    ),
    metrics=("train_loss", "test_error", "seconds_per_iteration"),
    notes=(
        "Held-out patches share no pixel with those for training: they come from other tiles of "
        "the photographs.",
        "Only the mean over all patches is subtracted, so that a patch keeps its brightness.",
        "The correlations are those of the first 32 neurons: two groups that DBN whitens. Between "
        "groups it leaves them.",
    ),
    summary=_summary,
)
