r"""Studies of what else whitening is used for: single samples, first layers, embeddings."""

from collections.abc import Sequence
from dataclasses import replace

from whitenorm.lab.records.run import Run, Settings
from whitenorm.lab.studies.claims import final, lower
from whitenorm.lab.studies.settings import BN, PLAIN, mlp, sgd
from whitenorm.lab.studies.study import (
    BEYOND,
    MEDIAN_OF_THREE,
    Claim,
    Panel,
    Panels,
    Scale,
    Selection,
    Study,
    View,
    panels,
)

_ERROR = final("test_error")
_TITLES = {"digits": "digits", "mnist": "MNIST", "cifar10": "CIFAR-10"}
_LAYERS: dict[str, Settings] = {
    "BN": BN,
    "DBN": {"name": "dbn", "running": "covariance", "shrinkage": "bounded"},  # its defaults
    "GN": {"name": "gn"},
    "GW": {"name": "gw"},
}

# --- each sample by itself ----------------------------------------------------------------------


def _pairs(dataset: Settings, updates: int, subset: Settings) -> Panels:
    run = Run(
        dataset,
        {"name": "splain", "depth": 8, "width": 16},
        BN,
        sgd(0.02, 0),
        {"name": "halve", "interval": updates // 4},
        iterations=updates,
        batch_size=2,
        evaluate_every=updates // 4,
        subset=subset,
    )
    grid = {"optimiser.lr": (0.005, 0.02, 0.08)}
    return (Panel.of_methods("batch 2", run, _LAYERS, grid),)


BATCH2 = Study(
    name="batch2",
    title="Whitening each sample by itself, in batches of two",
    reference=BEYOND,
    question="Does group whitening train where batches are too small for batch statistics?",
    scales={
        "small": Scale(
            _pairs({"name": "digits", "size": 16}, 40, {"train": 1000, "test": 200}),
            duration="30 s on 2 cores",
            reduced="digits instead of MNIST, 40 instead of 800 updates",
            selection=Selection("test_error", validation=200, widen=()),
        ),
        "paper": Scale(
            _pairs({"name": "mnist", "size": 16}, 800, {"train": 20_000, "test": 2000}),
            duration="4 min on 2 cores",
            selection=replace(MEDIAN_OF_THREE, metric="test_error", validation=1000),
        ),
    },
    views=(View("error", "Test error over updates", x="iteration", y=("test_error",), log="y"),),
    claims=(
        Claim(
            "In batches of two, group whitening tests better than BatchNorm.",
            "the last test error with GW is lower than with BN",
            lower(_ERROR, [("GW", "BN")]),
        ),
        Claim(
            "In batches of two, group whitening tests better than whitening the batch.",
            "the last test error with GW is lower than with DBN",
            lower(_ERROR, [("GW", "DBN")]),
        ),
        Claim(
            "In batches of two, group whitening tests better than GroupNorm.",
            "the last test error with GW is lower than with GN",
            lower(_ERROR, [("GW", "GN")]),
        ),
    ),
    metrics=("test_error", "train_loss"),
    notes=(
        "S-plain with 8 layers of 16 channels on pictures of 16x16, with a momentum of 0.9 and "
        "a learning rate that is halved three times. GN and GW have 8 groups of 2 channels; "
        "DBN and GW have the layers' own defaults, with running covariances and bounded "
        "shrinkage.",
        "Learning rates are chosen by the error on held-out training examples, with seeds that "
        "aren't drawn. The length was set to 800 updates when three runs of BN's grid had shown "
        "that 500 are too few to learn much.",
    ),
)

# --- a first convolution that whitens -----------------------------------------------------------


def _first(
    dataset: Settings, width: int, epochs: int, batch_size: int, subset: Settings
) -> Panels:
    run = Run(
        dataset,
        {"name": "splain", "depth": 8, "width": width},
        BN,
        sgd(0.06, 5e-4),
        {"name": "one-cycle", "epochs": epochs, "peak": epochs / 4},
        batch_size=batch_size,
        epochs=epochs,
        subset=subset,
    )
    curves = {how: {"first_convolution": how} for how in ("drawn", "whitened")}
    return panels(run, {_TITLES[dataset["name"]]: {}}, curves, {"optimiser.lr": (0.02, 0.06, 0.2)})


_WHITENED = [("whitened", "drawn")]
PATCHES = Study(
    name="patches",
    title="A first convolution that whitens patches",
    reference=BEYOND,
    question="Does a whitened first convolution help a short training?",
    scales={
        "small": Scale(
            _first({"name": "digits"}, 16, 2, 64, {}),
            duration="20 s on 2 cores",
            reduced="digits instead of CIFAR-10, 16 instead of 32 channels, 2 instead of 4 epochs",
            selection=Selection(widen=()),
        ),
        "paper": Scale(
            _first(
                {"name": "cifar10", "size": 16, "augment": "crop+flip"},
                32,
                4,
                128,
                {"train": 4000, "test": 2000},
            ),
            duration="4 min on 2 cores",
            selection=MEDIAN_OF_THREE,
        ),
    },
    views=(View("error", "Test error over epochs", y=("test_error",)),),
    claims=(
        Claim(
            "A network that starts with whitened patches tests better after as many epochs.",
            "the last test error is lower with the first convolution whitened than drawn",
            lower(_ERROR, _WHITENED),
        ),
        Claim(
            "It trains faster.",
            "the training loss of the last epoch is lower with the first convolution whitened "
            "than drawn",
            lower(final("train_loss"), _WHITENED),
        ),
    ),
    metrics=("test_error", "train_loss"),
    notes=(
        "S-plain with 8 layers of 32 channels and BN on 4,000 pictures of CIFAR-10 at 16x16; the "
        "learning rate rises for an epoch and falls to 0. "
        "Whitened: the first convolution is set from the patches of 2,000 training pictures "
        "before training, to their 27 principal components and 5 of them again with the opposite "
        "sign, and frozen, as the fast recipes do; BN and ReLU follow. Drawn: it is drawn at "
        "random and trained, as all others. Runs of one seed share all other weights.",
    ),
)

# --- embeddings ---------------------------------------------------------------------------------


def _embeddings(
    dataset: Settings, hidden: Sequence[int], updates: int, batch_size: int, subset: Settings
) -> Panels:
    run = Run(
        dataset,
        mlp(hidden),
        PLAIN,
        {"name": "adam", "lr": 0.001},
        iterations=updates,
        evaluate_every=updates // 10,
        batch_size=batch_size,
        subset=subset,
    )
    curves: dict[str, Settings] = {
        "W-MSE": {"task": "embed-whitening-mse"},
        "MSE": {"task": "embed-mse"},
        "not trained": {"task": "embed-mse", "iterations": 1, "optimiser.lr": 0},
    }
    return panels(run, {_TITLES[dataset["name"]]: {}}, curves)


# The smaller one is claimed to be MSE's.
_COLLAPSED = [("MSE", "W-MSE")]
COLLAPSE = Study(
    name="collapse",
    title="Embeddings from two views, with whitening and without",
    reference=BEYOND,
    question="Does whitening keep embeddings from collapsing where nothing else does?",
    scales={
        "small": Scale(
            _embeddings({"name": "digits"}, [64, 64], 60, 128, {}),
            duration="10 s on 2 cores",
            reduced="digits without shifts instead of MNIST, 60 instead of 600 updates, 3 instead "
            "of 5 seeds",
        ),
        "paper": Scale(
            _embeddings(
                {"name": "mnist", "augment": "crop"},
                [256, 128],
                600,
                256,
                {"train": 5000, "test": 2000},
            ),
            duration="2 min on 2 cores",
            seeds=5,
        ),
    },
    views=(
        View(
            "rank",
            "Effective rank of the embeddings over updates",
            x="iteration",
            y=("effective_rank",),
        ),
        View("spread", "Spread of the embeddings over updates", x="iteration", y=("spread",)),
        View(
            "error",
            "Nearest-neighbour error over updates",
            x="iteration",
            y=("neighbour_error",),
        ),
    ),
    claims=(
        Claim(
            "Without whitening the embeddings collapse to a point.",
            "their spread at the end is lower with MSE than with W-MSE, and than untrained",
            lower(final("spread"), [*_COLLAPSED, ("MSE", "not trained")]),
        ),
        Claim(
            "What is left varies in fewer directions.",
            "their effective rank at the end is lower with MSE than with W-MSE, and than "
            "untrained",
            lower(final("effective_rank"), [*_COLLAPSED, ("MSE", "not trained")]),
        ),
        Claim(
            "With whitening they tell more.",
            "the nearest-neighbour error at the end is lower with W-MSE than with MSE, and than "
            "untrained",
            lower(final("neighbour_error"), [("W-MSE", "MSE"), ("W-MSE", "not trained")]),
        ),
    ),
    metrics=("spread", "effective_rank", "neighbour_error", "distance"),
    notes=(
        "A perceptron of 256 and 128 units without normalization and with 32 outputs, trained by "
        "Adam with a learning rate of 0.001, which isn't tuned. A view is a picture shifted by up "
        "to 4 of 32 pixels, with noise of a standard deviation of 0.3. MSE is the mean squared "
        "distance of the two views' normalized embeddings, W-MSE the same after whitening.",
        "Spread is the root of the summed variances of the normalized embeddings of the test "
        "set: 0 if all are the same, 1 if they lie evenly around the origin. The error is that "
        "of the 5 nearest of 5,000 training pictures, by centred embeddings, so that rounding "
        "isn't what makes close ones indistinguishable.",
    ),
)
