r"""Studies of BN against DBN in every layer of a convolutional network: figures 6 and 7."""

from __future__ import annotations

from collections.abc import Sequence

from whitenorm.lab.records.run import Run, Settings
from whitenorm.lab.studies.claims import faster, final, lower
from whitenorm.lab.studies.shared_settings import BN, ERRORS, SUBSET, dbn, sgd, steps
from whitenorm.lab.studies.study import Claim, Panel, PaperNumber, Scale, Selection, Study

__all__ = ["FIG6", "FIG7"]

# --- Figure 6: VGG-A in four configurations -----------------------------------------------------


def _fig6(
    rates: Sequence[float],
    adam_rates: Sequence[float],
    intervals: Sequence[int],
    changes: Settings | None = None,
) -> tuple[Panel, ...]:
    base = Run(
        {"name": "cifar10", "preprocess": "pixel-std", "augment": "flip"},
        {"name": "vgg-a"},
        BN,
        sgd(1, 5e-4),
        {"name": "halve", "interval": 1000},
        epochs=80,
        batch_size=256,
    ).changed(changes or {})
    configurations: dict[str, Settings] = {
        "basic": {},
        "Adam": {"optimiser": {"name": "adam", "lr": 0.001, "weight_decay": 5e-4}},
        "ELU": {"model.activation": "elu"},
        "after non-linearity": {"model.norm_position": "after"},
    }
    return tuple(
        Panel.of_methods(
            name,
            base.changed(configuration),
            {"BN": BN, "DBN": dbn(16, affine=False)},
            {
                "optimiser.lr": adam_rates if name == "Adam" else rates,
                "schedule.interval": intervals,
            },
        )
        for name, configuration in configurations.items()
    )


_NARROW = {"model.width": 8, "batch_size": 128}
_NARROW_RATES = ((0.1, 0.5, 2), (0.001, 0.005, 0.02))
FIG6 = Study(
    name="fig6",
    title="CIFAR-10, VGG-A: BN against DBN in four configurations",
    reference="Figure 6",
    question="Does DBN train faster and generalise better than BN, whatever the optimiser, the "
    "non-linearity and its place?",
    scales={
        "small": Scale(
            _fig6(*_NARROW_RATES, (60,), {**_NARROW, "epochs": 5, "subset": SUBSET}),
            seeds=3,
            duration="4 min on 2 cores",
            reduced="an eighth of the width (8 to 64 channels); 4,000 training and 2,000 test "
            "images; batches of 128; 5 instead of 80 epochs; a grid of 3 learning rates, halved "
            "every 60 updates; 500 examples held out for the choice; 3 instead of 5 seeds",
            selection=Selection("test_error", validation=500),
        ),
        "reduced": Scale(
            _fig6(*_NARROW_RATES, (200,), {**_NARROW, "epochs": 8, "subset": {"train": 10_000}}),
            seeds=3,
            duration="25 min on 2 cores",
            reduced="an eighth of the width (8 to 64 channels); 10,000 training images; batches "
            "of 128; 8 instead of 80 epochs; a grid of 3 learning rates, halved every 200 "
            "updates; 1,000 examples held out for the choice; 3 instead of 5 seeds",
            selection=Selection("test_error", validation=1000),
        ),
        "paper": Scale(
            _fig6((1, 2, 4, 8), (0.001, 0.005, 0.01, 0.05), (1000, 2000, 4000, 8000)),
            seeds=5,
            duration="50 GPU days, at the paper's speed",
            selection=Selection("test_error", validation=5000),
        ),
    },
    views=(ERRORS,),
    claims=(
        Claim(
            "In all configurations, DBN converges faster with respect to the epochs [...] "
            "compared to BN.",
            "DBN clearly needs fewer epochs to the training loss that both reach, in each "
            "configuration",
            faster([("DBN", "BN")], "epoch"),
        ),
        Claim(
            "In all configurations, DBN [...] generalizes better, compared to BN.",
            "the last test error of DBN is clearly lower, in each configuration",
            lower(final("test_error"), [("DBN", "BN")]),
        ),
    ),
    metrics=("train_error", "test_error", "seconds_per_iteration"),
    paper=tuple(
        PaperNumber(panel, "DBN", "test_error", -value, minus="BN")
        for panel, value in (
            ("basic", 0.61),
            ("Adam", 1.34),
            ("ELU", 1.44),
            ("after non-linearity", 0.38),
        )
    ),
    notes=(
        "Pictures are flipped, and DBN has no scale and shift, as in the authors' scripts; the "
        "paper's text doesn't say. The classifier keeps BN.",
        "'Dividing by the variance' is read as dividing by the standard deviation.",
    ),
)


# --- Figure 7: S-plain ----------------------------------------------------------------------


def _fig7(
    depths: Sequence[int],
    widths: tuple[int, int],
    deeper: Settings,
    higher: Settings,
    rates: Sequence[float] = (),
) -> tuple[Panel, ...]:
    """A panel for each depth, and one at 4x the learning rate; each part has its own changes."""
    base = Run(
        {"name": "cifar10", "preprocess": "channel", "augment": "crop+flip"},
        {"name": "splain"},
        BN,
        sgd(0.1, 5e-4),
        batch_size=128,
        epochs=160,
    )
    first = base.changed({"model.width": widths[0], **deeper})
    second = base.changed({"model.width": widths[1], "optimiser.lr": 0.4, **higher})

    def panel(name: str, run: Run, group: int, depth: int, rates: Sequence[float]) -> Panel:
        return Panel.of_methods(
            name,
            run.changed({"model.depth": depth}),
            {"BN": BN, "DBN": dbn(group, affine=False)},
            {"optimiser.lr": rates} if rates else {},
        )

    return (
        *(panel(f"{depth} layers", first, 16, depth, rates) for depth in depths),
        panel(_HIGHER, second, 14, depths[0], ()),
    )


_DEPTHS = [f"{depth} layers" for depth in (8, 14, 20, 32, 44)]
_HIGHER = "4x learning rate"
_TINY = {"dataset.size": 16, "epochs": 10, "subset": SUBSET}
_SHORT = {"dataset.size": 16, "epochs": 8, "subset": {"train": 8000, "test": 5000}}
FIG7 = Study(
    name="fig7",
    title="CIFAR-10, S-plain: deeper, and at 4x the learning rate",
    reference="Figure 7",
    question="Does DBN ease the optimisation of deep networks without shortcuts?",
    scales={
        "small": Scale(
            _fig7(
                (8, 14, 20),
                (16, 14),
                {**_TINY, "schedule": steps((5, 8), 0.2)},
                {**_TINY, "schedule": steps((3, 5, 7, 9), 0.2)},
            ),
            seeds=3,
            duration="4 min on 2 cores",
            reduced="depths 8, 14, 20 instead of 20, 32, 44; a third of the width; images of "
            "16x16, 4,000 to train on and 2,000 to test on; 10 instead of 160 and 200 epochs; 3 "
            "seeds",
        ),
        "reduced": Scale(
            _fig7(
                (20, 32, 44),
                (16, 14),
                {**_SHORT, "schedule": steps((4, 6), 0.2)},
                {**_SHORT, "schedule": steps((2, 4, 6, 7), 0.2)},
                (0.05, 0.1, 0.2),
            ),
            seeds=3,
            duration="40 min on 2 cores",
            reduced="a third of the width; images of 16x16, 8,000 to train on and 5,000 to test "
            "on; 8 instead of 160 and 200 epochs; the learning rate of the deeper networks from a "
            "grid of 3; 3 instead of 5 seeds",
        ),
        "paper": Scale(
            _fig7(
                (20, 32, 44),
                (48, 42),
                {"epochs": 160, "schedule": steps((80, 120), 0.2)},
                {"epochs": 200, "schedule": steps((60, 100, 140, 180), 0.2)},
            ),
            seeds=5,
            duration="two GPU weeks, a guess",
        ),
    },
    views=(ERRORS,),
    claims=(
        Claim(
            "With increased depth, the model with BN was more difficult to optimize than with "
            "DBN.",
            "the last training error of DBN is clearly lower than that of BN, at each depth",
            lower(final("train_error"), [("DBN", "BN")], panels=_DEPTHS),
        ),
        Claim(
            "DBN has significantly better training accuracy than BN [at 4x the learning rate].",
            "the last training error of DBN is clearly lower than that of BN",
            lower(final("train_error"), [("DBN", "BN")], panels=[_HIGHER]),
        ),
    ),
    metrics=("train_error", "test_error"),
    notes=(
        "The depth of the network at 4x the learning rate isn't stated; the shallowest is taken.",
    ),
)
