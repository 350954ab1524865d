r"""Studies of how to whiten, with multilayer perceptrons: figures 2 and 3, and the demo."""

from __future__ import annotations

from typing import Any

from whitenorm.lab.records.run import Run, Settings
from whitenorm.lab.studies.claims import at_least, final, lower
from whitenorm.lab.studies.study import Claim, Panel, Scale, Study, View

__all__ = ["DEMO", "FIG2", "FIG3"]


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
    drawn = {label: _WHITENINGS[label] for label in ("PCA", "ZCA")}
    return Panel.of_methods("illustration", run, drawn)


def _swapping(dataset: str, width: int, largest: int, pairs: int) -> Panel:
    run = Run(
        {"name": dataset},
        {"name": "mlp", "hidden": [width]},
        {"name": "dbn"},
        batch_size=largest,
        iterations=pairs,
        task="axis-swapping",
    )
    return Panel.of_methods("hidden layer", run, _WHITENINGS)


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
            (_illustration(), _swapping("mnist", 100, 25_600, 10)), seeds=5, duration="minutes"
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


def _fig3(**changes: Any) -> tuple[Panel, ...]:
    full = {"group_size": 100, "affine": True, "eps": 1e-5}
    methods: dict[str, Settings] = {
        "plain": {"name": "plain"},
        "DBN-PCA": {"name": "dbn-pca", **full},
        "DBN-ZCA": {"name": "dbn", **full},
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
    layers = {"2-layer MLP": [100], "4-layer MLP": [100, 100, 100]}
    grid = {"optimiser.lr": (0.1, 0.5, 1, 5)}
    return tuple(
        Panel.of_methods(name, base.changed({"model.hidden": hidden}), methods, grid)
        for name, hidden in layers.items()
    )


FIG3 = Study(
    name="fig3",
    title="MNIST: PCA whitening harms, ZCA whitening helps",
    reference="Figure 3",
    question="Does it matter by which rotation activations are whitened?",
    scales={
        "small": Scale(
            _fig3(iterations=200, subset={"train": 5000, "test": 2000}),
            seeds=3,
            duration="3 min on 2 cores",
            reduced="5,000 instead of 50,000 examples in the (full) batch; 200 instead of 1000 "
            "updates; 3 instead of 5 seeds",
        ),
        "paper": Scale(
            _fig3(iterations=240),
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
    grid = {"optimiser.lr": (0.1, 0.5, 1)}
    return (_illustration(), Panel.of_methods("digits", base, methods, grid))


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
