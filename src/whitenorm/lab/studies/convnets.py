r"""The studies of the table that train convolutional networks: figures 6 and 7, tables 1 to 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whitenorm.lab.records.run import Run
from whitenorm.lab.studies.claims import faster, final, lower, together
from whitenorm.lab.studies.study import (
    Claim,
    Curve,
    Panel,
    PaperNumber,
    Scale,
    Selection,
    Study,
    View,
)

__all__ = ["FIG6", "FIG7", "TABLE1", "TABLE2", "TABLE3"]

_BN = {"name": "bn"}
_ERRORS = View(
    "errors", "Error in training (solid) and testing (dashed)", y=("train_error", "test_error")
)
_SUBSET = {"train": 4000, "test": 2000}
_SOME = {"train": 8000, "test": 5000}
_MORE = {"train": 10_000}  # and the whole test set


def _steps(at: Sequence[int], factor: float) -> dict[str, Any]:
    return {"name": "steps", "at": list(at), "factor": factor}


def _sgd(lr: float, weight_decay: float, nesterov: bool = False) -> dict[str, Any]:
    settings = {"name": "sgd", "lr": lr, "momentum": 0.9, "weight_decay": weight_decay}
    return settings | ({"nesterov": True} if nesterov else {})


# --- Figure 6: VGG-A in four configurations -----------------------------------------------------


def _fig6(
    rates: Sequence[float],
    adam_rates: Sequence[float],
    intervals: Sequence[int],
    **changes: Any,
) -> tuple[Panel, ...]:
    base = Run(
        {"name": "cifar10", "preprocess": "pixel-std", "augment": "flip"},
        {"name": "vgg-a"},
        _BN,
        _sgd(1, 5e-4),
        {"name": "halve", "interval": 1000},
        epochs=80,
        batch_size=256,
    ).changed(changes)
    adam = {"optimiser": {"name": "adam", "lr": 0.001, "weight_decay": 5e-4}}
    configurations: dict[str, Mapping[str, Any]] = {
        "basic": {},
        "Adam": adam,
        "ELU": {"model.activation": "elu"},
        "after non-linearity": {"model.norm_position": "after"},
    }
    methods = {"BN": _BN, "DBN": {"name": "dbn", "group_size": 16, "affine": False}}
    return tuple(
        Panel(
            name,
            tuple(
                Curve(
                    label,
                    base.changed({"method": method, **configuration}),
                    {
                        "optimiser.lr": adam_rates if name == "Adam" else rates,
                        "schedule.interval": intervals,
                    },
                )
                for label, method in methods.items()
            ),
        )
        for name, configuration in configurations.items()
    )


FIG6 = Study(
    name="fig6",
    title="CIFAR-10, VGG-A: BN against DBN in four configurations",
    reference="Figure 6",
    question="Does DBN train faster and generalise better than BN, whatever the optimiser, the "
    "non-linearity and its place?",
    scales={
        "small": Scale(
            _fig6(
                (0.1, 0.5, 2),
                (0.001, 0.005, 0.02),
                (60,),
                batch_size=128,
                epochs=5,
                subset=_SUBSET,
                **{"model.width": 8},
            ),
            seeds=3,
            duration="4 min on 2 cores",
            reduced="an eighth of the width (8 to 64 channels); 4,000 training and 2,000 test "
            "images; batches of 128; 5 instead of 80 epochs; a grid of 3 learning rates, halved "
            "every 60 updates; 500 examples held out for the choice; 3 instead of 5 seeds",
            selection=Selection("test_error", validation=500),
        ),
        "reduced": Scale(
            _fig6(
                (0.1, 0.5, 2),
                (0.001, 0.005, 0.02),
                (200,),
                batch_size=128,
                epochs=8,
                subset=_MORE,
                **{"model.width": 8},
            ),
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
    views=(_ERRORS,),
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


def _pair(name: str, base: Run, group: int, depth: int, rates: Sequence[float] = ()) -> Panel:
    methods = {"BN": _BN, "DBN": {"name": "dbn", "group_size": group, "affine": False}}
    grid = {"optimiser.lr": rates} if rates else {}
    sized = base.changed({"model.depth": depth})
    curves = tuple(Curve(k, sized.changed({"method": m}), grid) for k, m in methods.items())
    return Panel(name, curves)


def _fig7(
    depths: Sequence[int],
    widths: tuple[int, int],
    groups: tuple[int, int],
    deeper: Mapping[str, Any],
    higher: Mapping[str, Any],
    rates: Sequence[float] = (),
) -> tuple[Panel, ...]:
    base = Run(
        {"name": "cifar10", "preprocess": "channel", "augment": "crop+flip"},
        {"name": "splain"},
        _BN,
        _sgd(0.1, 5e-4),
        batch_size=128,
        epochs=160,
    )
    first = base.changed({"model.width": widths[0], **deeper})
    second = base.changed({"model.width": widths[1], "optimiser.lr": 0.4, **higher})
    return (
        *(_pair(f"{depth} layers", first, groups[0], depth, rates) for depth in depths),
        _pair(_HIGHER, second, groups[1], depths[0]),
    )


_DEPTHS = [f"{depth} layers" for depth in (8, 14, 20, 32, 44)]
_HIGHER = "4x learning rate"


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
                (16, 14),
                {
                    "dataset.size": 16,
                    "epochs": 10,
                    "subset": _SUBSET,
                    "schedule": _steps((5, 8), 0.2),
                },
                {
                    "dataset.size": 16,
                    "epochs": 10,
                    "subset": _SUBSET,
                    "schedule": _steps((3, 5, 7, 9), 0.2),
                },
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
                (16, 14),
                {
                    "dataset.size": 16,
                    "epochs": 8,
                    "subset": _SOME,
                    "schedule": _steps((4, 6), 0.2),
                },
                {
                    "dataset.size": 16,
                    "epochs": 8,
                    "subset": _SOME,
                    "schedule": _steps((2, 4, 6, 7), 0.2),
                },
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
                (16, 14),
                {"epochs": 160, "schedule": _steps((80, 120), 0.2)},
                {"epochs": 200, "schedule": _steps((60, 100, 140, 180), 0.2)},
            ),
            seeds=5,
            duration="two GPU weeks, a guess",
        ),
    },
    views=(_ERRORS,),
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


# --- Table 1: residual networks -----------------------------------------------------------------

_L1 = {
    "DBN-L1": {"name": "dbn", "group_size": 8, "affine": False},
    "DBN-scale-L1": {"name": "dbn", "group_size": 8, "affine": True},
}


_EVERYWHERE = {"name": "dbn", "group_size": 16, "affine": True}
_EVERYWHERE_WINS = [("DBN everywhere", "Baseline"), ("DBN everywhere", "DBN-scale-L1")]


def _table1(
    depths: Sequence[int], rates: Sequence[float] = (), everywhere: bool = False, **changes: Any
) -> tuple[Panel, ...]:
    base = Run(
        {"name": "cifar10", "preprocess": "channel", "augment": "crop+flip"},
        {"name": "resnet"},
        _BN,
        _sgd(0.1, 1e-4),
        _steps((80, 120), 0.1),
        batch_size=128,
        epochs=160,
    ).changed(changes)
    panels = []
    for depth in depths:
        sized = base.changed({"model.depth": depth})
        first = sized.changed({"model.placement": "first"})
        grid = {"optimiser.lr": rates} if rates else {}
        curves = [Curve("Baseline", sized, grid)]
        curves += [Curve(label, first.changed({"method": m}), grid) for label, m in _L1.items()]
        if everywhere:
            curves.append(Curve("DBN everywhere", sized.changed({"method": _EVERYWHERE}), grid))
        panels.append(Panel(f"Res-{depth}", tuple(curves)))
    return tuple(panels)


(_HOUR,) = _table1((20,), epochs=24, schedule=_steps((12, 18), 0.1), precision="bf16")
_TABLE1 = {
    "Baseline": (7.94, 7.31, 7.17, 7.21),
    "DBN-L1": (7.94, 7.28, 6.87, 6.63),
    "DBN-scale-L1": (7.77, 6.94, 6.83, 6.49),
}
TABLE1 = Study(
    name="table1",
    title="CIFAR-10, residual networks: one DBN layer at the start",
    reference="Table 1",
    question="Does one whitened layer improve a residual network?",
    scales={
        "small": Scale(
            _table1(
                (8, 14),
                epochs=12,
                subset=_SUBSET,
                schedule=_steps((6, 9), 0.1),
                **{"dataset.size": 16},
            ),
            seeds=3,
            duration="4 min on 2 cores",
            reduced="Res-8 and Res-14; images of 16x16, 4,000 to train on and 2,000 to test on; "
            "12 instead of 160 epochs; 3 instead of 5 seeds",
        ),
        "reduced": Scale(
            _table1(
                (20,),
                (0.05, 0.1, 0.2),
                everywhere=True,
                epochs=10,
                subset=_MORE,
                schedule=_steps((5, 8), 0.1),
                **{"dataset.size": 16},
            ),
            seeds=3,
            duration="30 min on 2 cores",
            reduced="Res-20 only; images of 16x16, 10,000 to train on; 10 instead of 160 epochs; "
            "the learning rate from a grid of 3, by the lowest training loss; 3 instead of 5 "
            "seeds",
        ),
        "hour": Scale(
            (Panel(_HOUR.name, (_HOUR.curve("DBN-scale-L1"),)),),
            seeds=1,
            duration="1 h on 1 core",
            reduced="DBN-scale-L1 of Res-20 only, on the whole training set; 24 instead of 160 "
            "epochs; bfloat16 (autocast); 1 seed",
        ),
        "paper": Scale(
            _table1((20, 32, 44, 56)),
            seeds=5,
            duration="7 GPU days, at the paper's speed",
        ),
    },
    views=(
        _ERRORS,
        View("loss", "Training loss over training time", x="seconds", log="y"),
    ),
    claims=(
        Claim(
            "Our methods obtain lower test errors compared to BN over all 4 networks.",
            "the last test error of DBN-L1, and of DBN-scale-L1, is clearly lower than the "
            "baseline's, for each network",
            lower(final("test_error"), [("DBN-L1", "Baseline"), ("DBN-scale-L1", "Baseline")]),
        ),
        Claim(
            "DBN-scale-L1 marginally outperforms DBN-L1 in all cases.",
            "the last test error of DBN-scale-L1 is clearly lower than that of DBN-L1, for each "
            "network",
            lower(final("test_error"), [("DBN-scale-L1", "DBN-L1")]),
        ),
        Claim(
            "DBN in every layer (not in the paper, which could not afford it).",
            "its last training loss, and its last test error, are clearly lower than those of the "
            "baseline and of DBN-scale-L1, and it clearly needs fewer epochs, and fewer seconds, "
            "to the training loss that both reach",
            together(
                *(lower(final(m), _EVERYWHERE_WINS) for m in ("train_loss", "test_error")),
                *(faster(_EVERYWHERE_WINS, clock) for clock in ("epoch", "seconds")),
            ),
        ),
    ),
    metrics=("train_loss", "train_error", "test_error", "seconds_per_iteration"),
    paper=tuple(
        PaperNumber(f"Res-{depth}", label, "test_error", value)
        for label, values in _TABLE1.items()
        for depth, value in zip((20, 32, 44, 56), values, strict=True)
    ),
    notes=(
        "In the paper's own table, DBN-L1 and the baseline tie at Res-20 (7.94).",
        "Crops are padded by reflection, as in the authors' scripts.",
    ),
)


# --- Table 2: wide residual networks ------------------------------------------------------------


def _table2(sizes: Sequence[tuple[int, int]], **changes: Any) -> tuple[Panel, ...]:
    base = Run(
        {"name": "cifar10", "preprocess": "channel", "augment": "crop+flip"},
        {"name": "wrn", "dropout": 0.3},
        _BN,
        _sgd(0.1, 5e-4, nesterov=True),
        _steps((60, 120, 160), 0.2),
        batch_size=128,
        epochs=200,
    ).changed(changes)
    dbn = {"method": {"name": "dbn", "group_size": 16, "affine": True}}
    panels = []
    for dataset, title in (("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100")):
        for depth, widen in sizes:
            sized = base.changed(
                {"dataset.name": dataset, "model.depth": depth, "model.widen": widen}
            )
            stem = sized.changed({"model.placement": "stem", **dbn})
            curves = (Curve("Baseline", sized), Curve("DBN-scale-L1", stem))
            panels.append(Panel(f"{title}, WRN-{depth}-{widen}", curves))
    return tuple(panels)


_TABLE2 = (
    ("CIFAR-10, WRN-28-10", (3.99, 0.13), (3.79, 0.09)),
    ("CIFAR-10, WRN-40-10", (3.80, 0.11), (3.74, 0.11)),
    ("CIFAR-100, WRN-28-10", (18.75, 0.28), (18.36, 0.17)),
    ("CIFAR-100, WRN-40-10", (18.7, 0.22), (18.27, 0.19)),
)
TABLE2 = Study(
    name="table2",
    title="CIFAR-10 and CIFAR-100, wide residual networks",
    reference="Table 2",
    question="Does one whitened layer improve a wide residual network?",
    scales={
        "small": Scale(
            _table2(
                ((10, 1), (16, 1)),
                epochs=12,
                subset=_SUBSET,
                schedule=_steps((4, 7, 10), 0.2),
                **{"dataset.size": 16},
            ),
            seeds=3,
            duration="3 min on 2 cores, a data set",
            reduced="WRN-10-1 and WRN-16-1; images of 16x16, 4,000 to train on and 2,000 to test "
            "on; 12 instead of 200 epochs; 3 instead of 5 seeds",
        ),
        "paper": Scale(
            _table2(((28, 10), (40, 10))),
            seeds=5,
            duration="50 GPU days, at the paper's speed",
        ),
    },
    views=(_ERRORS,),
    claims=(
        Claim(
            "DBN improves the original WRN on both datasets and both networks.",
            "the last test error of DBN-scale-L1 is clearly lower than the baseline's, in each "
            "case",
            lower(final("test_error"), [("DBN-scale-L1", "Baseline")]),
        ),
    ),
    metrics=("train_error", "test_error", "seconds_per_iteration"),
    paper=tuple(
        PaperNumber(panel, label, "test_error", value, spread)
        for panel, *columns in _TABLE2
        for label, (value, spread) in zip(("Baseline", "DBN-scale-L1"), columns, strict=True)
    ),
    notes=("The DBN layer is added after the first convolution, as in the authors' scripts.",),
)


# --- Table 3: ImageNet --------------------------------------------------------------------------


def _table3(
    depths: Sequence[int], dataset: Mapping[str, Any], **changes: Any
) -> tuple[Panel, ...]:
    base = Run(
        dataset,
        {"name": "imagenet-resnet"},
        _BN,
        _sgd(0.1, 1e-4),
        _steps((30, 60), 0.1),
        batch_size=256,
        epochs=90,
    ).changed(changes)
    dbn = {"name": "dbn", "group_size": 32, "affine": True}
    panels = []
    for depth in depths:
        sized = base.changed({"model.depth": depth})
        extra = sized.changed({"model.stem": "extra-conv"})
        curves = (
            Curve("Baseline", sized),
            Curve("Baseline + conv", extra),
            Curve("DBN-scale-L1", extra.changed({"method": dbn})),
        )
        panels.append(Panel(f"Res-{depth}", curves))
    return tuple(panels)


_TABLE3 = (
    (18, (30.21, 10.87), (29.87, 10.36)),
    (34, (26.53, 8.59), (26.46, 8.42)),
    (50, (24.87, 7.58), (24.29, 7.08)),
    (101, (22.54, 6.38), (22.17, 6.09)),
)
TABLE3 = Study(
    name="table3",
    title="ImageNet, residual networks",
    reference="Table 3",
    question="Does one whitened layer improve a residual network on ImageNet?",
    scales={
        "small": Scale(
            _table3(
                (18,),
                {"name": "tiny-imagenet-20", "size": 32, "augment": "crop+flip"},
                batch_size=64,
                epochs=10,
                schedule=_steps((6, 8), 0.1),
            ),
            seeds=3,
            duration="6 min on 2 cores",
            reduced="Res-18 only, on 20 classes of Tiny-ImageNet at 32x32 (2,000 training "
            "images); batches of 64; 10 instead of 90 epochs; padded crops instead of random "
            "resized ones",
        ),
        "paper": Scale(
            _table3(
                (18, 34, 50, 101),
                {"name": "imagenet", "stream": True, "size": 224, "colour": True},
            ),
            seeds=1,
            duration="3 months of 2 to 8 GPUs, likewise",
        ),
    },
    views=(
        _ERRORS,
        View("top5", "Top-5 test error", y=("test_top5_error",)),
    ),
    claims=(
        Claim(
            "DBN-scale-L1 achieves lower test errors compared to the original residual networks.",
            "the last top-1 and top-5 test errors of DBN-scale-L1 are clearly lower than those of "
            "the baseline, and of the baseline with the extra convolution, for each network",
            together(
                *(
                    lower(
                        final(metric),
                        [("DBN-scale-L1", "Baseline"), ("DBN-scale-L1", "Baseline + conv")],
                    )
                    for metric in ("test_error", "test_top5_error")
                )
            ),
        ),
    ),
    metrics=("train_error", "test_error", "test_top5_error"),
    paper=tuple(
        PaperNumber(f"Res-{depth}", label, metric, value)
        for depth, *columns in _TABLE3
        for label, values in zip(("Baseline", "DBN-scale-L1"), columns, strict=True)
        for metric, value in zip(("test_error", "test_top5_error"), values, strict=True)
    ),
    notes=(
        "The authors added a 3x3 convolution with the DBN layer and gave their baseline none. "
        "'Baseline + conv' has it, with BN, so that only the normalisation differs.",
        "With one seed, as in the paper, no difference can be called clear.",
    ),
)
