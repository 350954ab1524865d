r"""Studies of the layer's own settings, not the paper's: few samples, and channels that depend."""

from collections.abc import Sequence

from whitenorm.lab.records.run import Run, Settings
from whitenorm.lab.studies.claims import final, lower, no_higher
from whitenorm.lab.studies.settings import BN, mlp, sgd
from whitenorm.lab.studies.study import (
    BEYOND,
    Claim,
    Grid,
    Panel,
    Panels,
    Scale,
    Selection,
    Study,
    View,
)

_ERROR = final("test_error")
# What counts as a difference that matters, in points of test error, beside being clear.
_MATTERS, _NEAR_BN = 0.5, 1.0


def _kinds(group_size: int) -> dict[str, Settings]:
    """DBN with what may be given to inference."""
    dbn = {"name": "dbn", "group_size": group_size}
    return {
        "BN": BN,
        "averaged whitening": dbn,
        "averaged covariance": {**dbn, "running": "covariance"},
        "covariance, shrunk": {**dbn, "running": "covariance", "shrinkage": "auto"},
        "covariance, bounded": {**dbn, "running": "covariance", "shrinkage": "bounded"},
    }


# --- what inference is given --------------------------------------------------------------------


def _perceptrons(
    dataset: str, widths: Sequence[int], batches: Sequence[int], updates: int
) -> Panels:
    """64 channels in groups of 16, computed from the few features of the layer before."""
    run = Run({"name": dataset}, mlp([]), BN, iterations=updates, evaluate_every=updates)
    found: list[Panel] = []
    for width in widths:
        wide = run.changed({"model.hidden": [width, 64]})
        for size in batches:
            name = f"perceptron, {width} inputs, batch {size}"
            found.append(Panel.of_methods(name, wide.changed({"batch_size": size}), _kinds(16)))
    return tuple(found)


def _convolution(size: int, width: int, updates: int) -> Run:
    """S-plain with 8 layers on MNIST: 9 pixels feed the first, the last has few positions."""
    return Run(
        {"name": "mnist", "size": size},
        {"name": "splain", "depth": 8, "width": width},
        BN,
        sgd(0.05, 0),
        iterations=updates,
        evaluate_every=updates,
        subset={"train": 20_000, "test": 5000},
    )


def _convolutions(groups: Sequence[int], batches: Sequence[int]) -> Panels:
    run = _convolution(size=8, width=32, updates=300)
    return tuple(
        Panel.of_methods(
            f"convolution, groups of {group}, batch {size}",
            run.changed({"batch_size": size}),
            _kinds(group),
        )
        for group in groups
        for size in batches
    )


def _starting(scale_panels: Panels, *beginnings: str) -> tuple[str, ...]:
    return tuple(p.name for p in scale_panels if p.name.startswith(beginnings))


_SAMPLES = (16, 64, 256, 1024)  # 1 to 64 samples for each channel of a group of 16
_RANK = _perceptrons("mnist", (8, 16, 64), _SAMPLES, 400) + _convolutions(
    (4, 9, 16, 32), (4, 16, 64)
)
_RANK_SMALL = _perceptrons("digits", (8, 16, 64), (16, 64, 256), 100)
RANK = Study(
    name="rank",
    title="What inference is given, where channels can't be independent",
    reference=BEYOND,
    question="Which running statistic and how much shrinkage should be the layer's default?",
    scales={
        "small": Scale(
            _RANK_SMALL,
            duration="1 min on 2 cores",
            reduced="perceptrons only, digits instead of MNIST, 100 instead of 400 updates",
        ),
        "paper": Scale(_RANK, duration="30 min on 2 cores"),
    },
    views=(View("error", "Test error by batch size", "across", "end", ("test_error",), "y"),),
    claims=(
        Claim(
            "Averaging covariances instead of whitening matrices never does harm.",
            "in no panel is the last test error with running covariances above that with "
            f"running whitening matrices by more than {_MATTERS} points",
            no_higher(_ERROR, [("averaged covariance", "averaged whitening")], _MATTERS),
        ),
        Claim(
            "It mends inference where a group's channels are computed from fewer inputs.",
            "the last test error with running covariances is lower in perceptrons whose "
            "16 channels see 8 inputs, and in convolutions whose 16 or 32 channels see 9 pixels",
            lower(
                _ERROR,
                [("averaged covariance", "averaged whitening")],
                (
                    *_starting(_RANK, "perceptron, 8 inputs", "convolution, groups of 16"),
                    *_starting(_RANK, "convolution, groups of 32"),
                    *_starting(_RANK_SMALL, "perceptron, 8 inputs"),
                ),
            ),
        ),
        Claim(
            "Automatic shrinkage never does harm beside running covariances.",
            "in no panel is the last test error with shrinkage above that without by "
            f"more than {_MATTERS} points",
            no_higher(_ERROR, [("covariance, shrunk", "averaged covariance")], _MATTERS),
        ),
        Claim(
            "With both, BatchNorm can be swapped for DBN anywhere.",
            "in no panel is the last test error with running covariances and shrinkage "
            f"above BN's, by more than {_NEAR_BN:g} point",
            no_higher(_ERROR, [("covariance, shrunk", "BN")], _NEAR_BN),
        ),
        Claim(
            "Shrinkage of 0.05 or more never does harm beside automatic shrinkage.",
            "in no panel is the last test error with bounded shrinkage above that with "
            f"automatic shrinkage, by more than {_MATTERS} points",
            no_higher(_ERROR, [("covariance, bounded", "covariance, shrunk")], _MATTERS),
        ),
        Claim(
            "With it, BatchNorm can be swapped for DBN anywhere.",
            "in no panel is the last test error with bounded shrinkage above BN's by "
            f"more than {_NEAR_BN:g} point",
            no_higher(_ERROR, [("covariance, bounded", "BN")], _NEAR_BN),
        ),
    ),
    metrics=("test_error", "train_loss"),
    notes=(
        "The layers' settings are their defaults: scale and shift, eps 1e-5, a momentum of 0.1. "
        "Runs of one seed with either running statistic are the same training.",
        "The bounded curve and its two claims were added when the others were known: automatic "
        "shrinkage hadn't mended the convolutions in groups of 32. It was tried on that case "
        "before.",
        "Perceptrons have a hidden layer of 8, 16 or 64 units and then one of 64 channels in "
        "groups of 16, trained by plain SGD with a learning rate of 0.1. The convolutional "
        "network has 8 layers of 32 channels on pictures of 8x8, trained with a learning rate of "
        "0.05 and a momentum of 0.9; its first layer sees 9 pixels, its last ones have 4 "
        "positions a picture.",
    ),
)

# --- shrinkage ----------------------------------------------------------------------------------

_PAIR = [("DBN, shrunk", "DBN")]


def _shrunk(group_size: int) -> dict[str, Settings]:
    """BN, and DBN without and with automatic shrinkage."""
    dbn = {"name": "dbn", "group_size": group_size, "running": "covariance"}
    return {"BN": BN, "DBN": dbn, "DBN, shrunk": {**dbn, "shrinkage": "auto"}}


def _map(
    run: Run, groups: Sequence[int], batches: Sequence[int], grid: Grid, what: str = ""
) -> Panels:
    """A panel for each group size and batch size."""
    return tuple(
        Panel.of_methods(
            f"{what}groups of {group}, batch {size}",
            run.changed({"batch_size": size}),
            _shrunk(group),
            grid,
        )
        for group in groups
        for size in batches
    )


def _few_samples(scale_panels: Panels, fewer_than: int) -> tuple[str, ...]:
    """Names of the panels of a map with fewer samples than that for each channel of a group."""
    names = []
    for panel in scale_panels:
        run = panel.curve("DBN").run
        if run.batch_size is not None and run.batch_size < fewer_than * run.method["group_size"]:
            names.append(panel.name)
    return tuple(names)


_RATES: Grid = {"optimiser.lr": (0.1, 0.5, 2)}
_PIE = Run({"name": "pie"}, mlp([128] * 5), BN, iterations=300, evaluate_every=300)
_PIE_MAP = _map(_PIE, (4, 8, 16, 32, 64, 128), (16, 32, 64, 128, 256, 512), _RATES)
_DIGITS = Run({"name": "digits"}, mlp([64] * 3), BN, iterations=200, evaluate_every=200)
_DIGITS_MAP = _map(_DIGITS, (4, 16, 64), (16, 64, 256), {"optimiser.lr": (0.1, 0.5)})
_YALE = Run({"name": "yaleb"}, mlp([128, 64, 48, 48]), BN, iterations=300, evaluate_every=300)
_YALE_MAP = _map(_YALE, (16, 48), (64, 256, 1024), _RATES, "Yale-B, ")
_SMALL_BATCHES = _convolution(size=16, width=16, updates=400)
_FEW_PICTURES = _map(
    _SMALL_BATCHES, (8, 16), (2, 4, 16), {"optimiser.lr": (0.003, 0.02, 0.1)}, "convolution, "
)
SHRINKAGE = Study(
    name="shrinkage",
    title="Automatic shrinkage, by group size and batch size",
    reference=BEYOND,
    question="Does shrinkage make whitening safe where batches are small for their groups?",
    scales={
        "small": Scale(
            _DIGITS_MAP,
            duration="2 min on 2 cores",
            reduced="digits instead of faces, three layers of 64, 200 updates, two learning rates",
            selection=Selection("test_error", validation=200, widen=()),
        ),
        "paper": Scale(
            _PIE_MAP + _YALE_MAP + _FEW_PICTURES,
            duration="90 min on 2 cores",
            selection=Selection("test_error", validation=300, widen=()),
        ),
    },
    views=(View("error", "Test error by batch size", "across", "end", ("test_error",), "y"),),
    claims=(
        Claim(
            "Automatic shrinkage is nowhere worse than none.",
            "in no panel is the last test error with shrinkage above that without by "
            f"more than {_MATTERS} points",
            no_higher(_ERROR, _PAIR, _MATTERS),
        ),
        Claim(
            "It helps where a batch has fewer than four samples for each channel of a group.",
            "the last test error with shrinkage is lower there, in perceptrons",
            lower(_ERROR, _PAIR, _few_samples(_PIE_MAP + _YALE_MAP + _DIGITS_MAP, 4)),
        ),
        Claim(
            "With it, no batch is too small for a group to be swapped in for BatchNorm.",
            "in no panel is the last test error with shrinkage above BN's by more than "
            f"{_NEAR_BN:g} point",
            no_higher(_ERROR, [("DBN, shrunk", "BN")], _NEAR_BN),
        ),
    ),
    metrics=("test_error", "train_loss"),
    notes=(
        "Faces: the networks of figures 5 (PIE) and 4 (Yale-B) with mini-batches, scale and shift "
        "and plain SGD. Convolutions: S-plain with 8 layers of 16 channels on MNIST at 16x16, "
        "with a momentum of 0.9; its last layers have 16 positions. The number of updates is the "
        "same at every batch size. DBN averages covariances for inference.",
        "Learning rates are chosen by the error on held-out training examples, with a seed that "
        "isn't drawn.",
    ),
)
