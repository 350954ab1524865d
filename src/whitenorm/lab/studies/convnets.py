r"""Studies of BN against DBN in every layer of a convolutional network: figures 6 and 7."""

from collections.abc import Sequence

from whitenorm.lab.records.run import Run, Settings
from whitenorm.lab.studies.claims import faster, final, lower
from whitenorm.lab.studies.settings import (
    BN,
    ERRORS,
    LOSSES,
    SUBSET,
    cifar_run,
    dbn,
    sgd,
    shrunk,
    steps,
)
from whitenorm.lab.studies.study import (
    Claim,
    Panel,
    Panels,
    PaperNumber,
    Scale,
    Selection,
    Study,
)

_VGG = Run(
    {"name": "cifar10", "preprocess": "pixel-std", "augment": "flip"},
    {"name": "vgg-a"},
    BN,
    sgd(1, 5e-4),
    {"name": "halve", "interval": 1000},
    epochs=80,
    batch_size=256,
)
_CONFIGURATIONS: dict[str, Settings] = {
    "basic": {},
    "Adam": {"optimiser": {"name": "adam", "lr": 0.001, "weight_decay": 5e-4}},
    "ELU": {"model.activation": "elu"},
    "after non-linearity": {"model.norm_position": "after"},
}


def _fig6(
    base: Run,
    rates: Sequence[float],
    adam_rates: Sequence[float],
    intervals: Sequence[int] = (),
    group: int = 16,
) -> Panels:
    def panel(name: str) -> Panel:
        grid: dict[str, Sequence[float]] = {"optimiser.lr": rates}
        if name == "Adam":
            grid["optimiser.lr"] = adam_rates
        if intervals:
            grid["schedule.interval"] = intervals
        run = base.changed(_CONFIGURATIONS[name])
        methods = {"BN": BN, "DBN": dbn(group, affine=False)}
        return Panel.of_methods(name, run, methods, grid)

    return tuple(map(panel, _CONFIGURATIONS))


# An eighth of the width, and of the groups, which are then two channels.
_LONG = _VGG.changed(
    {
        "model": {"name": "vgg-a", "width": 8, "initialization": "he"},
        "batch_size": 128,
        "epochs": 9,
        "schedule.interval": 450,
        "channels_last": True,
    }
)
_NARROW = _VGG.changed({"model.width": 8, "batch_size": 128, "epochs": 5, "subset": SUBSET})
FIG6 = Study(
    name="fig6",
    title="CIFAR-10, VGG-A: BN against DBN in four configurations",
    reference="Figure 6",
    question="Does DBN train faster and generalize better than BN, whatever the optimiser, the "
    "non-linearity and its place?",
    scales={
        "small": Scale(
            _fig6(_NARROW, (0.1, 0.5, 2), (0.001, 0.005, 0.02), (60,)),
            duration="4 min on 2 cores",
            reduced="an eighth of the width (8 to 64 channels); 4,000 training and 2,000 test "
            "images; batches of 128; 5 instead of 80 epochs; a grid of 3 learning rates, halved "
            "every 60 updates; 500 examples held out for the choice; 3 instead of 5 seeds",
            selection=Selection("test_error", validation=500),
        ),
        "long": Scale(
            _fig6(_LONG, (0.02, 0.1, 0.5), (0.0002, 0.001, 0.005), group=2),
            duration="2 h on 2 cores",
            reduced="an eighth of the width (8 to 64 channels) and of the groups (2 channels); "
            "batches of 128; 9 instead of 80 epochs; a grid of 3 learning rates, wider where "
            "need be, halved every 450 updates; 3 instead of 5 seeds",
            selection=Selection("test_error", validation=5000),
        ),
        "paper": Scale(
            _fig6(_VGG, (1, 2, 4, 8), (0.001, 0.005, 0.01, 0.05), (1000, 2000, 4000, 8000)),
            duration="50 GPU days, at the paper's speed",
            seeds=5,
            selection=Selection("test_error", validation=5000),
        ),
    },
    views=(ERRORS,),
    claims=(
        Claim(
            "In all configurations, DBN converges faster with respect to the epochs [...] "
            "compared to BN.",
            "DBN needs fewer epochs to training losses of 1.5, 1, 0.7 and 0.5, as far as one of "
            "the two gets there, in each configuration",
            faster([("DBN", "BN")], "epoch", goals=LOSSES),
        ),
        Claim(
            "In all configurations, DBN [...] generalizes better, compared to BN.",
            "the last test error of DBN is lower, in each configuration",
            lower(final("test_error"), [("DBN", "BN")]),
            headline=True,
        ),
    ),
    metrics=("train_error", "test_error", "test_error@same time", "seconds_per_iteration"),
    paper=tuple(
        PaperNumber(panel, "DBN", "test_error", difference, minus="BN")
        for panel, difference in zip(_CONFIGURATIONS, (-0.61, -1.34, -1.44, -0.38), strict=True)
    ),
    notes=(
        "Pictures are flipped, and DBN has no scale and shift, as in the authors' scripts; the "
        "paper's text doesn't say. The classifier keeps BN.",
        "'Dividing by the variance' is read as dividing by the standard deviation.",
    ),
)

_DEEPER = [f"{depth} layers" for depth in (8, 14, 20, 32, 44)]
_HIGHER = "4x learning rate"
_SPLAIN = cifar_run({"name": "splain"}, sgd(0.1, 5e-4), steps((80, 120), 0.2), epochs=160)


def _splain(name: str, depth: int, group: int, changes: Settings) -> Panel:
    run = _SPLAIN.changed({"model.depth": depth, **changes})
    return Panel.of_methods(name, run, {"BN": BN, "DBN": dbn(group, affine=False)})


def _fig7(
    depths: Sequence[int],
    deeper: Settings,
    higher: Settings,
    groups: tuple[int, int] = (16, 14),
) -> Panels:
    """A panel for each depth, and one at 4x the learning rate; each part has its own changes."""
    return (
        *(_splain(f"{depth} layers", depth, groups[0], deeper) for depth in depths),
        _splain(_HIGHER, depths[0], groups[1], {"optimiser.lr": 0.4, **higher}),
    )


def _tiny(width: int, at: Sequence[int]) -> Settings:
    return {"model.width": width, **shrunk(10, SUBSET, steps(at, 0.2))}


_HALF: Settings = {
    "model.width": 24,
    "model.initialization": "he",
    "channels_last": True,
    **shrunk(9, {}, steps((5, 7), 0.2)),
}
FIG7 = Study(
    name="fig7",
    title="CIFAR-10, S-plain: deeper, and at 4x the learning rate",
    reference="Figure 7",
    question="Does DBN ease the optimisation of deep networks without shortcuts?",
    scales={
        "small": Scale(
            _fig7((8, 14, 20), _tiny(16, (5, 8)), _tiny(14, (3, 5, 7, 9))),
            duration="4 min on 2 cores",
            reduced="depths 8, 14, 20 instead of 20, 32, 44; a third of the width; images of "
            "16x16, 4,000 to train on and 2,000 to test on; 10 instead of 160 and 200 epochs; 3 "
            "seeds",
        ),
        "long": Scale(
            _fig7((20, 32, 44), _HALF, _HALF, groups=(8, 8)),
            duration="4 h on 2 cores",
            reduced="half of the width and of the groups (24 channels in groups of 8); images of "
            "16x16; 9 instead of 160 and 200 epochs; 3 instead of 5 seeds",
        ),
        "paper": Scale(
            _fig7(
                (20, 32, 44),
                {"model.width": 48},
                {"model.width": 42, "epochs": 200, "schedule": steps((60, 100, 140, 180), 0.2)},
            ),
            duration="two GPU weeks, a guess",
            seeds=5,
        ),
    },
    views=(ERRORS,),
    claims=(
        Claim(
            "With increased depth, the model with BN was more difficult to optimize than with "
            "DBN.",
            "the last training error of DBN is lower than that of BN, at each depth",
            lower(final("train_error"), [("DBN", "BN")], panels=_DEEPER),
            headline=True,
        ),
        Claim(
            "DBN has significantly better training accuracy than BN [at 4x the learning rate].",
            "the last training error of DBN is lower than that of BN",
            lower(final("train_error"), [("DBN", "BN")], panels=[_HIGHER]),
        ),
    ),
    metrics=("train_error", "test_error", "test_error@same time", "seconds_per_iteration"),
    notes=(
        "The depth of the network at 4x the learning rate isn't stated; the shallowest is taken.",
    ),
)
