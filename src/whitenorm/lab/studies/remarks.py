r"""Studies of what the paper only says in passing: its isometry, and its running statistics."""

from collections.abc import Sequence

from whitenorm.lab.records.run import Run
from whitenorm.lab.studies.claims import at, final, lower, no_higher, together
from whitenorm.lab.studies.settings import PLAIN, mlp
from whitenorm.lab.studies.study import Claim, Panels, Scale, Study, View, panels

_DISTANCE = "jacobian.log10_rms"


def _isometry(dataset: str, width: int, depths: Sequence[int]) -> Panels:
    run = Run({"name": dataset}, mlp([]), PLAIN, iterations=200, batch_size=256, evaluate_every=10)
    run = run.changed({"probes": {"jacobian": {"every": 50, "samples": 256}}})
    return panels(
        run,
        {f"{depth} layers": {"model.hidden": [width] * (depth - 1)} for depth in depths},
        {label: {"method": {"name": label.lower()}} for label in ("plain", "BN", "DBN")},
    )


ISOMETRY = Study(
    name="isometry",
    title="Dynamical isometry: singular values of the input-output Jacobian",
    reference="Section 3.5",
    question="Does whitening keep the singular values of the Jacobian closer together?",
    scales={
        "small": Scale(
            _isometry("digits", 64, (3, 6, 11)),
            duration="1 min on 2 cores",
            reduced="digits instead of Yale-B, layers of 64 instead of 128, 3 instead of 5 seeds",
        ),
        "paper": Scale(
            _isometry("yaleb", 128, (3, 6, 11, 21)), seeds=5, duration="5 min on 2 cores"
        ),
    },
    views=(
        View("start", "Distance from isometry at initialization", "across", "start", (_DISTANCE,)),
    ),
    claims=(
        Claim(
            "[DBN] is more likely to achieve dynamical isometry than BN.",
            "the root mean square of log10 of the singular values, which is 0 if all are 1, is "
            "clearly lower with DBN than with BN at each depth, at initialization and at the end",
            together(*(lower(at(_DISTANCE, when), [("DBN", "BN")]) for when in ("start", "end"))),
        ),
        Claim(
            "Batch Normalization achieves approximate dynamical isometry",
            "at initialization it is lower with BN than without normalization, at each depth",
            lower(at(_DISTANCE, "start"), [("BN", "plain")]),
        ),
    ),
    metrics=("train_loss",),
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


def _running(dataset: str, hidden: list[int], batches: Sequence[int], updates: int) -> Panels:
    run = Run({"name": dataset}, mlp(hidden), {"name": "dbn"}, iterations=updates)
    return panels(
        run.changed({"evaluate_every": updates // 10}),
        {f"batch {size}": {"batch_size": size} for size in batches},
        {f"running {kind}": {"method.running": kind} for kind in ("whitening", "covariance")},
    )


RUNNING = Study(
    name="running",
    title="What to average for inference: whitening matrices or covariances",
    reference="Section 3.3",
    question="Does it matter for the test error which of the two inference is given?",
    scales={
        "small": Scale(
            _running("digits", [64, 64, 64], (8, 16, 32, 128), updates=300),
            duration="1 min on 2 cores",
            reduced="digits instead of PIE, three hidden layers of 64 instead of five of 128, "
            "300 instead of 1500 updates, 3 instead of 5 seeds",
        ),
        "paper": Scale(
            _running("pie", [128] * 5, (8, 16, 32, 64, 128, 256), updates=1500),
            duration="5 min on 2 cores",
            seeds=5,
        ),
    },
    views=(
        View(
            "error", "Test error by batch size", kind="across", x="end", y=("test_error",), log="y"
        ),
    ),
    claims=(
        Claim(
            "We also maintain [...] the expected whitening matrix for use during inference.",
            "at no batch size is the last test error with running whitening matrices "
            "above that with running covariances",
            no_higher(final("test_error"), [("running whitening", "running covariance")]),
            headline=True,
        ),
    ),
    metrics=("test_error", "test_loss", "train_loss"),
    notes=(
        "The network of figure 5 with groups of 16, scale and shift, a momentum of 0.1 and a "
        "learning rate of 0.1, for the same number of updates at every batch size. Runs of one "
        "seed are the same training; only what inference uses differs.",
    ),
)
