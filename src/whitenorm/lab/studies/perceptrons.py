r"""The studies of the table that train multilayer perceptrons: figures 2 to 5, and the demo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whitenorm.lab.records.run import Run
from whitenorm.lab.studies.claims import (
    at_least,
    faster,
    final,
    lower,
    middle,
    ratio_within,
    together,
)
from whitenorm.lab.studies.study import Claim, Curve, Panel, PaperNumber, Scale, Study, View

__all__ = ["DEMO", "FIG2", "FIG3", "FIG4", "FIG5"]

Settings = Mapping[str, Any]


# --- Figure 2: the axes that swap ---------------------------------------------------------------

_WHITENINGS = {
    "PCA": {"name": "dbn-pca"},
    "ZCA": {"name": "dbn"},
    "Cholesky": {"name": "dbn", "whitening": "cholesky"},
}
_SWAP_VIEW = View(
    "illustration", "Two batches that share points", kind="swap", panels=("illustration",)
)


def _illustration() -> Panel:
    run = Run(
        {"name": "none"}, {"name": "none"}, {"name": "dbn"}, iterations=1, task="illustration"
    )
    curves = (
        Curve(label, run.changed({"method": method}))
        for label, method in _WHITENINGS.items()
        if label != "Cholesky"
    )
    return Panel("illustration", tuple(curves))


def _swapping(dataset: str, width: int, largest: int, pairs: int) -> Panel:
    run = Run(
        {"name": dataset},
        {"name": "mlp", "hidden": [width]},
        {"name": "dbn"},
        batch_size=largest,
        iterations=pairs,
        task="axis-swapping",
    )
    curves = (
        Curve(label, run.changed({"method": method})) for label, method in _WHITENINGS.items()
    )
    return Panel("hidden layer", tuple(curves))


FIG2 = Study(
    name="fig2",
    title="PCA whitening swaps axes from batch to batch, ZCA doesn't",
    reference="Figure 2",
    question="Is a point represented alike when other points of its batch change?",
    scales={
        "small": Scale(
            (_illustration(), _swapping("digits", 32, 512, 10)),
            seeds=3,
            duration="seconds",
            reduced="the measured layer has 32 neurons and sees digits instead of MNIST",
        ),
        "paper": Scale(
            (_illustration(), _swapping("mnist", 100, 25_600, 10)),
            seeds=5,
            duration="minutes",
        ),
    },
    views=(
        _SWAP_VIEW,
        View(
            "swapped",
            "Axes that became another one between two batches",
            x="batch_size",
            y=("swapped",),
            log="x",
            panels=("hidden layer",),
        ),
    ),
    claims=(
        Claim(
            "The blue data points thus have two different representations with the axes swapped.",
            "the share of swapped axes is clearly lower with ZCA than with PCA, in the "
            "illustration and in a layer",
            lower(final("swapped"), [("ZCA", "PCA")]),
        ),
    ),
    metrics=("swapped", "drift"),
    notes=(
        "The paper only draws the illustration; the measure in a hidden layer, at "
        "initialisation and between random batches of one size, is added here.",
    ),
)


# --- Figure 3: MNIST, PCA against ZCA -----------------------------------------------------------

_FULL = {"affine": True, "eps": 1e-5}


def _fig3(layers: Mapping[str, list[int]], **changes: Any) -> tuple[Panel, ...]:
    grid = {"optimiser.lr": (0.1, 0.5, 1, 5)}
    methods = {
        "plain": {"name": "plain"},
        "DBN-PCA": {"name": "dbn-pca", "group_size": 100, **_FULL},
        "DBN-ZCA": {"name": "dbn", "group_size": 100, **_FULL},
    }
    base = Run(
        {"name": "mnist"},
        {"name": "mlp"},
        {"name": "plain"},
        {"name": "sgd", "lr": 0.1},
        {"name": "halve", "interval": 40},
        iterations=1000,
        evaluate_every=10,
        subset={"train": 50_000},
    ).changed(changes)
    return tuple(
        Panel(
            name,
            tuple(
                Curve(label, base.changed({"method": method, "model.hidden": hidden}), grid)
                for label, method in methods.items()
            ),
        )
        for name, hidden in layers.items()
    )


_FIG3_LAYERS = {"2-layer MLP": [100], "4-layer MLP": [100, 100, 100]}
FIG3 = Study(
    name="fig3",
    title="MNIST: PCA whitening harms, ZCA whitening helps",
    reference="Figure 3",
    question="Does it matter by which rotation activations are whitened?",
    scales={
        "small": Scale(
            _fig3(_FIG3_LAYERS, iterations=200, subset={"train": 5000, "test": 2000}),
            seeds=3,
            duration="3 min on 2 cores",
            reduced="5,000 instead of 50,000 examples in the (full) batch; 200 instead of 1000 "
            "updates; 3 instead of 5 seeds",
        ),
        "paper": Scale(
            _fig3(_FIG3_LAYERS, iterations=240),
            seeds=5,
            duration="40 min on 2 cores",
            reduced="240 instead of 1000 updates, all else as published: the learning rate is "
            "halved every 40, so that those of the other 760 add up to 1.6% of the whole",
        ),
    },
    views=(View("loss", "Training loss", x="iteration", log="y"),),
    claims=(
        Claim(
            "DBN-PCA has significantly inferior performance to 'plain'.",
            "the last training loss of plain is clearly lower than that of DBN-PCA, in both "
            "networks",
            lower(final("train_loss"), [("plain", "DBN-PCA")]),
        ),
        Claim(
            "On the 4-layer MLP, DBN-PCA behaves similarly to random guessing.",
            "the last training error of DBN-PCA on the 4-layer MLP is 80% or more (chance is 90%)",
            at_least(final("train_error"), "4-layer MLP", "DBN-PCA", 80.0),
        ),
        Claim(
            "ZCA whitening (referred to as DBN-ZCA) improves training performance significantly "
            "compared to no whitening ('plain') and DBN-PCA.",
            "the last training loss of DBN-ZCA is clearly lower than that of both, in both "
            "networks",
            lower(final("train_loss"), [("DBN-ZCA", "plain"), ("DBN-ZCA", "DBN-PCA")]),
        ),
    ),
    metrics=("train_loss", "train_error", "test_error"),
    notes=(
        "The authors' scripts ran PCA with a learned scale and shift and eps 1e-5, ZCA without "
        "and eps 1e-7. Here both have scale, shift and eps 1e-5.",
        "The learning rate is halved every 40 updates, as in the authors' scripts; the paper's "
        "text doesn't say.",
    ),
)


# --- Figures 4 and 5: faces ---------------------------------------------------------------------

_FACES_METRICS = (
    "train_loss",
    "iteration@0.1",
    "seconds@0.1",
    "iteration@0.01",
    "seconds@0.01",
    "test_error",
    "seconds_per_iteration",
)
_RATES = (0.1, 0.2, 0.5, 1, 2)
_NNN = {"method.eps": (0.001, 0.01, 0.1, 1), "method.interval": (20, 50, 100, 200, 500)}
_FEW_RATES = (0.1, 0.5, 2)
_FEW_NNN = {"method.eps": (0.1, 1), "method.interval": (50,)}


def _compared(base: Run, dbn: Settings, rates: tuple[float, ...], nnn: Settings) -> list[Curve]:
    methods: dict[str, Settings] = {
        "plain": {"name": "plain"},
        "NNN": {"name": "nnn"},
        "LN": {"name": "ln"},
        "BN": {"name": "bn"},
        "DBN": dbn,
    }
    return [
        Curve(
            label,
            base.changed({"method": method}),
            {"optimiser.lr": rates, **(nnn if label == "NNN" else {})},
        )
        for label, method in methods.items()
    ]


def _fig4(rates: tuple[float, ...], nnn: Settings, **changes: Any) -> tuple[Panel, ...]:
    base = Run(
        {"name": "yaleb"},
        {"name": "mlp", "hidden": [128, 64, 48, 48]},
        {"name": "plain"},
        iterations=3000,
        evaluate_every=20,
        probes={"fisher": {"every": 20, "samples": 2000}},
    ).changed(changes)
    dbn = {"name": "dbn", "group_size": None, "affine": True}
    return (Panel("Yale-B", tuple(_compared(base, dbn, rates, nnn))),)


_OTHERS = ("plain", "NNN", "LN", "BN")
FIG4 = Study(
    name="fig4",
    title="Yale-B: conditioning of the Fisher matrix, and loss over time",
    reference="Figure 4",
    question="Does whitening improve the conditioning of the optimisation problem, and its speed?",
    scales={
        "small": Scale(
            _fig4(
                _FEW_RATES,
                _FEW_NNN,
                iterations=300,
                evaluate_every=5,
                probes={"fisher": {"every": 50, "samples": 2000}},
            ),
            seeds=3,
            duration="5 min on 2 cores",
            reduced="300 instead of 3000 updates; a grid of 3 learning rates, and for NNN 2 eps "
            "and 1 interval; Fisher matrix every 50 updates; 3 instead of 5 seeds",
        ),
        "paper": Scale(_fig4(_RATES, _NNN), seeds=5, duration="75 min on 2 cores"),
    },
    views=(
        View(
            "conditioning",
            "Conditioning of the last layer's Fisher matrix",
            x="iteration",
            y=("fisher.at_90_percent",),
            log="y",
        ),
        View("loss", "Training loss over training time", x="seconds", log="y"),
        View("updates", "Training loss over updates", x="iteration", log="y"),
    ),
    claims=(
        Claim(
            "NNN, LN, BN and DBN converge faster [...] compared to 'plain'.",
            "each clearly needs fewer seconds than plain to the loss that both reach",
            faster([(label, "plain") for label in ("NNN", "LN", "BN", "DBN")], "seconds"),
        ),
        Claim(
            "NNN, LN, BN and DBN [...] achieve better conditioning compared to 'plain'.",
            "the median over training of each one's condition number (its log10, averaged over "
            "seeds) is clearly lower",
            lower(
                middle("fisher.at_90_percent"),
                [(label, "plain") for label in ("NNN", "LN", "BN", "DBN")],
            ),
        ),
        Claim(
            "DBN achieves the best conditioning compared to other normalization methods",
            "the median over training of its condition number (its log10, averaged over seeds) is "
            "clearly lower than each other's",
            lower(
                middle("fisher.at_90_percent"), [("DBN", label) for label in ("NNN", "LN", "BN")]
            ),
        ),
        Claim(
            "[DBN] speeds up convergence significantly.",
            "DBN clearly needs fewer updates, and fewer seconds, than each other method to the "
            "loss that both reach",
            together(
                faster([("DBN", label) for label in _OTHERS], "iteration"),
                faster([("DBN", label) for label in _OTHERS], "seconds"),
            ),
        ),
        Claim(
            "The model with DBN is 2x slower than the model with BN per iteration.",
            "a DBN update takes 1.5 to 2.5 times as long as a BN update",
            ratio_within("seconds_per_iteration", ("DBN", "BN"), 1.5, 2.5),
        ),
    ),
    metrics=_FACES_METRICS,
    paper=(PaperNumber("Yale-B", "DBN", "seconds_per_iteration", 2.0, over="BN"),),
    notes=(
        "The authors' Fisher matrix sums p(y) times the gradient over y before the outer product, "
        "which is zero but for rounding. Here it is the exact one of the last layer.",
        "A condition number is infinite where a hidden neuron is dead for all examples; points "
        "where it is so for a seed are left out of the drawing, and count as infinite in medians.",
        "The paper names no test set for Yale-B; 10 faces a person are held out here, so that "
        "2,034 of the 2,414 are trained on.",
    ),
)


def _fig5(rates: tuple[float, ...], nnn: Settings, **changes: Any) -> tuple[Panel, ...]:
    base = Run(
        {"name": "pie"},
        {"name": "mlp", "hidden": [128] * 5},
        {"name": "plain"},
        batch_size=256,
        epochs=100,
    ).changed(changes)
    groups = {
        size: {"name": "dbn", "group_size": size, "affine": False}
        for size in (1, 8, 16, 32, 64, 128)
    }
    return (
        Panel(
            "group size",
            tuple(
                Curve(f"G{size}", base.changed({"method": method}), {"optimiser.lr": rates})
                for size, method in groups.items()
            ),
        ),
        Panel("comparison", tuple(_compared(base, groups[16], rates, nnn))),
    )


FIG5 = Study(
    name="fig5",
    title="PIE: group size, and loss over time",
    reference="Figure 5",
    question="How much should be whitened together, and is it worth its time?",
    scales={
        "small": Scale(
            _fig5(_FEW_RATES, _FEW_NNN, epochs=15),
            seeds=3,
            duration="5 min on 2 cores",
            reduced="15 instead of 100 epochs; a grid of 3 learning rates, and for NNN 2 eps and "
            "1 interval; 3 instead of 5 seeds",
        ),
        "paper": Scale(_fig5(_RATES, _NNN), seeds=5, duration="40 min on 2 cores"),
    },
    views=(
        View("groups", "Training loss by group size", x="epoch", log="y", panels=("group size",)),
        View(
            "time",
            "Training loss over training time",
            x="seconds",
            log="y",
            panels=("comparison",),
        ),
        View("epochs", "Training loss over epochs", x="epoch", log="y", panels=("comparison",)),
    ),
    claims=(
        Claim(
            "The largest (G128) and smallest group sizes (G1) both have noticeably slower "
            "convergence compared to the ones with intermediate group sizes such as G16.",
            "G8, G16, G32 and G64 each clearly need fewer updates than G1, and than G128, to the "
            "loss that both reach",
            faster(
                [(f"G{size}", end) for size in (8, 16, 32, 64) for end in ("G1", "G128")],
                "iteration",
                ("group size",),
            ),
        ),
        Claim(
            "DBN converges significantly faster than other normalization methods.",
            "DBN (groups of 16) clearly needs fewer seconds than each other method to the loss "
            "that both reach",
            faster([("DBN", label) for label in _OTHERS], "seconds", ("comparison",)),
        ),
    ),
    metrics=_FACES_METRICS,
    notes=(
        "The pictures are JPEG-recompressed PIE, not the original file.",
        "Learning rates are chosen for each group size, as the paper says; the authors' script "
        "ran all at 1. DBN has no scale and shift, as in the script.",
        "The paper names no test set for PIE; 20 faces a person are held out here.",
    ),
)


# --- The demonstration --------------------------------------------------------------------------


def _demo() -> tuple[Panel, ...]:
    base = Run(
        {"name": "digits"},
        {"name": "mlp", "hidden": [64, 64, 64]},
        {"name": "plain"},
        batch_size=128,
        epochs=15,
    )
    methods = {
        "plain": {"name": "plain"},
        "BN": {"name": "bn"},
        "DBN-PCA": {"name": "dbn-pca"},
        "DBN-ZCA": {"name": "dbn"},
    }
    curves = (
        Curve(label, base.changed({"method": method}), {"optimiser.lr": (0.1, 0.5, 1)})
        for label, method in methods.items()
    )
    return (_illustration(), Panel("digits", tuple(curves)))


DEMO = Study(
    name="demo",
    title="A first look: whitening on handwritten digits",
    reference="As Figures 2 and 3",
    question="Does whitening speed up training, and does it matter how it is done?",
    scales={
        "small": Scale(
            _demo(),
            seeds=3,
            duration="20 s on 2 cores",
            reduced="not an experiment of the paper: scikit-learn's digits, three hidden layers "
            "of 64, mini-batches of 128, groups of 16",
        )
    },
    views=(
        _SWAP_VIEW,
        View("loss", "Training loss", x="epoch", log="y", panels=("digits",)),
        View("error", "Test error", x="epoch", y=("test_error",), panels=("digits",)),
    ),
    claims=(
        Claim(
            "DBN-PCA has significantly inferior performance to 'plain'.",
            "the last training loss of plain is clearly lower than that of DBN-PCA",
            lower(final("train_loss"), [("plain", "DBN-PCA")]),
        ),
        Claim(
            "ZCA whitening (referred to as DBN-ZCA) improves training performance significantly "
            "compared to no whitening ('plain') and DBN-PCA.",
            "the last training loss of DBN-ZCA is clearly lower than that of both",
            lower(final("train_loss"), [("DBN-ZCA", "plain"), ("DBN-ZCA", "DBN-PCA")]),
        ),
    ),
    metrics=("train_loss", "test_error", "seconds_per_iteration"),
)
