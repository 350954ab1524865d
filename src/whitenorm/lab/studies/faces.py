r"""Studies of conditioning and speed, with perceptrons on faces: figures 4 and 5."""

from collections.abc import Sequence
from typing import Any

from whitenorm.lab.records.run import Run, Settings
from whitenorm.lab.studies.claims import faster, lower, middle, ratio_within, together
from whitenorm.lab.studies.settings import BN, PLAIN, dbn, mlp
from whitenorm.lab.studies.study import (
    Claim,
    Curve,
    Grid,
    Panel,
    Panels,
    PaperNumber,
    Scale,
    Study,
    View,
)

_REACHED = [f"{clock}@{loss}" for loss in (0.1, 0.01) for clock in ("iteration", "seconds")]
_METRICS = ("train_loss", *_REACHED, "test_error", "seconds_per_iteration")
_FEW_RATES, _RATES = (0.1, 0.5, 2), (0.1, 0.2, 0.5, 1, 2)
_FEW_NNN = {"method.eps": (0.1, 1), "method.interval": (50,)}
_NNN = {"method.eps": (0.001, 0.01, 0.1, 1), "method.interval": (20, 50, 100, 200, 500)}
_OTHERS = {"plain": PLAIN, "NNN": {"name": "nnn"}, "LN": {"name": "ln"}, "BN": BN}


def _compared(name: str, run: Run, method: Settings, rates: Sequence[float], nnn: Grid) -> Panel:
    """DBN and four others, each with its learning rate from a grid; NNN tries its options too."""
    grid = {"optimiser.lr": rates}
    panel = Panel.of_methods(name, run, {**_OTHERS, "DBN": method}, grid)
    chosen = Curve("NNN", panel.curve("NNN").run, {**grid, **nnn})
    return Panel(name, tuple(chosen if c.label == "NNN" else c for c in panel.curves))


def _fisher(every: int) -> Settings:
    return {"fisher": {"every": every, "samples": 2000}}


def _fig4(rates: Sequence[float], nnn: Grid, **changes: Any) -> Panels:
    run = Run({"name": "yaleb"}, mlp([128, 64, 48, 48]), PLAIN, iterations=3000, evaluate_every=20)
    run = run.changed({"probes": _fisher(20), **changes})
    return (_compared("Yale-B", run, dbn(None), rates, nnn),)


_DBN_FIRST = [("DBN", other) for other in _OTHERS]
_PLAIN_LAST = [(label, "plain") for label in ("NNN", "LN", "BN", "DBN")]
_CONDITION = "fisher.at_90_percent"
FIG4 = Study(
    name="fig4",
    title="Yale-B: conditioning of the Fisher matrix, and loss over time",
    reference="Figure 4",
    question="Does whitening improve the conditioning of the optimisation problem, and its speed?",
    scales={
        "small": Scale(
            _fig4(_FEW_RATES, _FEW_NNN, iterations=300, evaluate_every=5, probes=_fisher(50)),
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
            y=(_CONDITION,),
            log="y",
        ),
        View("loss", "Training loss over training time", x="seconds", log="y"),
        View("updates", "Training loss over updates", x="iteration", log="y"),
    ),
    claims=(
        Claim(
            "NNN, LN, BN and DBN converge faster [...] compared to 'plain'.",
            "each clearly needs fewer seconds than plain to the loss that both reach",
            faster(_PLAIN_LAST, "seconds"),
        ),
        Claim(
            "NNN, LN, BN and DBN [...] achieve better conditioning compared to 'plain'.",
            "the median over training of each one's condition number (its log10, averaged over "
            "seeds) is clearly lower",
            lower(middle(_CONDITION), _PLAIN_LAST),
        ),
        Claim(
            "DBN achieves the best conditioning compared to other normalization methods",
            "the median over training of its condition number (its log10, averaged over seeds) is "
            "clearly lower than each other's",
            lower(middle(_CONDITION), _DBN_FIRST[1:]),
        ),
        Claim(
            "[DBN] speeds up convergence significantly.",
            "DBN clearly needs fewer updates, and fewer seconds, than each other method to the "
            "loss that both reach",
            together(faster(_DBN_FIRST, "iteration"), faster(_DBN_FIRST, "seconds")),
        ),
        Claim(
            "The model with DBN is 2x slower than the model with BN per iteration.",
            "a DBN update takes 1.5 to 2.5 times as long as a BN update",
            ratio_within("seconds_per_iteration", ("DBN", "BN"), 1.5, 2.5),
        ),
    ),
    metrics=_METRICS,
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


def _fig5(rates: Sequence[float], nnn: Grid, epochs: int) -> Panels:
    run = Run({"name": "pie"}, mlp([128] * 5), PLAIN, batch_size=256, epochs=epochs)
    groups = {f"G{size}": dbn(size, affine=False) for size in (1, 8, 16, 32, 64, 128)}
    return (
        Panel.of_methods("group size", run, groups, {"optimiser.lr": rates}),
        _compared("comparison", run, groups["G16"], rates, nnn),
    )


_MIDDLE_FIRST = [(f"G{size}", end) for size in (8, 16, 32, 64) for end in ("G1", "G128")]
FIG5 = Study(
    name="fig5",
    title="PIE: group size, and loss over time",
    reference="Figure 5",
    question="How much should be whitened together, and is it worth its time?",
    scales={
        "small": Scale(
            _fig5(_FEW_RATES, _FEW_NNN, epochs=15),
            duration="5 min on 2 cores",
            reduced="15 instead of 100 epochs; a grid of 3 learning rates, and for NNN 2 eps and "
            "1 interval; 3 instead of 5 seeds",
        ),
        "paper": Scale(_fig5(_RATES, _NNN, epochs=100), seeds=5, duration="40 min on 2 cores"),
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
            faster(_MIDDLE_FIRST, "iteration", ("group size",)),
        ),
        Claim(
            "DBN converges significantly faster than other normalization methods.",
            "DBN (groups of 16) clearly needs fewer seconds than each other method to the loss "
            "that both reach",
            faster(_DBN_FIRST, "seconds", ("comparison",)),
        ),
    ),
    metrics=_METRICS,
    notes=(
        "The pictures are JPEG-recompressed PIE, not the original file.",
        "Learning rates are chosen for each group size, as the paper says; the authors' script "
        "ran all at 1. DBN has no scale and shift, as in the script.",
        "The paper names no test set for PIE; 20 faces a person are held out here.",
    ),
)
