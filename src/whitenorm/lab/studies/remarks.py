r"""Studies of what the paper only says in passing: its isometry, and its running statistics."""

from __future__ import annotations

from typing import Any

from whitenorm.lab.records.run import Run
from whitenorm.lab.studies.claims import at, final, lower, no_higher, together
from whitenorm.lab.studies.study import Claim, Panel, Scale, Study, View

__all__ = ["ISOMETRY", "RUNNING"]


# --- Section 3.5: are the singular values of the input-output Jacobian near 1? ------------------

_DISTANCE, _SPREAD = "jacobian.log10_rms", "jacobian.log10_deviation"


def _isometry(dataset: str, depths: tuple[int, ...], width: int, **changes: Any) -> Scale:
    base = Run(
        {"name": dataset},
        {"name": "mlp"},
        {"name": "plain"},
        batch_size=256,
        iterations=200,
        evaluate_every=10,
        probes={"jacobian": {"every": 50, "samples": 256}},
    )
    methods = {label: {"name": label.lower()} for label in ("plain", "BN", "DBN")}
    panels = tuple(
        Panel.of_methods(
            f"{depth} layers", base.changed({"model.hidden": [width] * (depth - 1)}), methods
        )
        for depth in depths
    )
    return Scale(panels, **changes)


ISOMETRY = Study(
    name="isometry",
    title="Dynamical isometry: singular values of the input-output Jacobian",
    reference="Section 3.5",
    question="Does whitening keep the singular values of the Jacobian closer together?",
    scales={
        "small": _isometry(
            "digits",
            (3, 6, 11),
            64,
            seeds=3,
            duration="1 min on 2 cores",
            reduced="digits instead of Yale-B, layers of 64 instead of 128, 3 instead of 5 seeds",
        ),
        "paper": _isometry("yaleb", (3, 6, 11, 21), 128, seeds=5, duration="5 min on 2 cores"),
    },
    views=(
        View(
            "start",
            "Distance from isometry at initialisation",
            kind="across",
            x="start",
            y=(_DISTANCE,),
        ),
        View(
            "spread",
            "Spread of the singular values at initialisation",
            kind="across",
            x="start",
            y=(_SPREAD,),
        ),
        View("training", "Distance from isometry during training", x="iteration", y=(_DISTANCE,)),
    ),
    claims=(
        Claim(
            "[DBN] is more likely to achieve dynamical isometry than BN.",
            "the root mean square of log10 of the singular values, which is 0 if all are 1, is "
            "clearly lower with DBN than with BN at each depth, at initialisation and at the end",
            together(
                lower(at(_DISTANCE, "start"), [("DBN", "BN")]),
                lower(at(_DISTANCE, "end"), [("DBN", "BN")]),
            ),
        ),
        Claim(
            "Batch Normalization achieves approximate dynamical isometry",
            "at initialisation it is clearly lower with BN than without normalisation, at each "
            "depth",
            lower(at(_DISTANCE, "start"), [("BN", "plain")]),
        ),
    ),
    metrics=("train_loss", "test_error"),
    notes=(
        "The paper argues this from the assumptions that layers are linear and activations "
        "Gaussian and uncorrelated, and doesn't measure it. The networks are those of figure 5 "
        "at several depths, on Yale-B, with mini-batches of 256, groups of 16 and a learning rate "
        "of 0.1 for all.",
        "Jacobians are those of 256 examples, with the statistics of their batch held fixed. "
        "Their singular values are at a distance from 1 because they differ, and because they are "
        "all too large or too small; the spread, a standard deviation, shows the first alone.",
    ),
)


# --- Section 3.3: what to average for inference -------------------------------------------------


def _running(dataset: str, hidden: list[int], batches: tuple[int, ...], **changes: Any) -> Scale:
    iterations = changes.pop("iterations")
    base = Run(
        {"name": dataset},
        {"name": "mlp", "hidden": hidden},
        {"name": "dbn"},
        iterations=iterations,
        evaluate_every=iterations // 10,
    )
    methods = {
        f"running {kind}": {"name": "dbn", "running": kind} for kind in ("whitening", "covariance")
    }
    panels = tuple(
        Panel.of_methods(f"batch {size}", base.changed({"batch_size": size}), methods)
        for size in batches
    )
    return Scale(panels, **changes)


RUNNING = Study(
    name="running",
    title="What to average for inference: whitening matrices or covariances",
    reference="Section 3.3",
    question="Does it matter for the test error which of the two inference is given?",
    scales={
        "small": _running(
            "digits",
            [64, 64, 64],
            (8, 16, 32, 128),
            iterations=300,
            seeds=3,
            duration="1 min on 2 cores",
            reduced="digits instead of PIE, three hidden layers of 64 instead of five of 128, "
            "300 instead of 1500 updates, 3 instead of 5 seeds",
        ),
        "paper": _running(
            "pie",
            [128] * 5,
            (8, 16, 32, 64, 128, 256),
            iterations=1500,
            seeds=5,
            duration="5 min on 2 cores",
        ),
    },
    views=(
        View(
            "error", "Test error by batch size", kind="across", x="end", y=("test_error",), log="y"
        ),
        View("curves", "Test error during training", x="iteration", y=("test_error",), log="y"),
    ),
    claims=(
        Claim(
            "We also maintain [...] the expected whitening matrix for use during inference.",
            "at no batch size is the last test error with running whitening matrices clearly "
            "above that with running covariances",
            no_higher(final("test_error"), [("running whitening", "running covariance")]),
        ),
    ),
    metrics=("test_error", "test_loss", "train_loss"),
    notes=(
        "The network of figure 5 with groups of 16, scale and shift, a momentum of 0.1 and a "
        "learning rate of 0.1, for the same number of updates at every batch size. Runs of one "
        "seed are the same training; only what inference uses differs.",
        "The pictures are JPEG-recompressed PIE, not the original file.",
    ),
)
