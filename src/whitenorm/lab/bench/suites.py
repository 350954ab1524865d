r"""The suites: tables of cases, each a list of alternatives that are measured in turns.

``quick`` shrinks every case to what a laptop runs in seconds, to see that all of it works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from whitenorm.lab.bench.alternatives import Network, layer, part
from whitenorm.lab.bench.cases import (
    inference_case,
    layer_case,
    memory_case,
    mlp,
    networks,
    resnet,
    training_case,
    vgg_a,
)
from whitenorm.lab.bench.paper import ratio
from whitenorm.lab.bench.timing import Alternative, Bar, Case

__all__ = ["SUITES", "Suite"]

GROUPS = (1, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Suite:
    """A list of cases.

    Args:
        title: In tables.
        cases: ``cases(quick)``.
        rounds: How many, unless told.
        seconds: How long a case goes on at least, for more rounds where they are cheap.
    """

    title: str
    cases: Callable[[bool], list[Case]]
    rounds: int
    seconds: float


# --- layers -------------------------------------------------------------------------------------

# The inputs of normalization layers; batches as large as two cores bear.
SHAPES = {
    "VGG-A": ((64, 64, 32, 32), (256, 128, 16, 16), (256, 256, 8, 8), (256, 512, 4, 4)),
    "VGG-A, last": ((256, 512, 2, 2),),
    "Res-20": ((128, 16, 32, 32), (128, 32, 16, 16), (128, 64, 8, 8)),
    "Res-50": ((32, 64, 56, 56), (8, 256, 56, 56), (8, 2048, 7, 7)),
    "MLP": ((256, 128), (2414, 128)),
}
# Other formats are measured on these alone.
FORMATS = ((64, 64, 32, 32), (256, 128, 16, 16), (256, 512, 4, 4), (32, 64, 56, 56))


def _layer(quick: bool) -> list[Case]:
    cases = []
    for network, shapes in SHAPES.items():
        for shape in shapes:
            if quick:
                shape = tuple(min(n, most) for n, most in zip(shape, (32, 16, 4, 4), strict=False))
            cases.append(layer_case(shape, _layers(shape, _groups(shape)), network))
    for dtype, last in (("float32", True), ("bfloat16", False), ("bfloat16", True)):
        for shape in [(8, 16, 4, 4)] if quick else FORMATS:
            names = _layers(shape, (16, 64) if shape[1] >= 64 else (16,))
            cases.append(layer_case(shape, names, "", dtype, last))
    return list({case.name: case for case in cases}.values())


def _groups(shape: tuple[int, ...]) -> list[int]:
    """All group sizes that the channels have and the samples can fill, the whole at the end."""
    channels, count = shape[1], torch.Size(shape).numel() // shape[1]
    return [k for k in dict.fromkeys((*GROUPS, channels)) if k <= min(channels, count, 512)]


def _layers(shape: tuple[int, ...], groups: Sequence[int]) -> list[str]:
    """BN, a convolution, DBN at these group sizes, and the baselines at 16 and the largest."""
    usual = [k for k in groups if k in (16, groups[-1])]
    ours = [f"dbn-g{k}" for k in groups]
    return ["bn", "conv", *ours, *(f"{name}-g{k}" for k in usual for name in ("loop", "newton"))]


# --- networks -----------------------------------------------------------------------------------


def _network(quick: bool) -> list[Case]:
    trained, inferred = [], []
    for name, (title, choices) in networks(quick).items():
        trained.append(training_case(name, title, choices))
        inferred.append(inference_case(name, title, choices))
    return trained + inferred


def _memory(quick: bool) -> list[Case]:
    chosen = ("vgg-a", "res-8") if quick else ("vgg-a", "res-20", "res-56", "res-18", "res-50")
    table = _with_mlp(quick)
    return [memory_case(name, *table[name], quick) for name in (*chosen, "mlp")]


def _with_mlp(quick: bool) -> dict[str, tuple[str, dict[str, Network]]]:
    """The networks, and the MLP of the PIE study, which the paper's appendix doesn't time."""
    return {**networks(quick), "mlp": ("MLP 1024-5x128-68", mlp(quick))}


# --- the bars -----------------------------------------------------------------------------------


_NAMES = {
    "dbn-g8": "DBN in all 8 convolution layers, G8",
    "dbn-g16": "DBN in all 8 convolution layers, G16",
    "dbn-g64": "DBN in all 8 convolution layers, G64",
    "dbn-g512": "DBN in all 8 convolution layers, G512",
    "dbn-scale": "DBN-scale-L1",
    "dbn-all-g16": "DBN in every layer, G16",
}


def _bars(quick: bool) -> list[Case]:
    vgg, res20, res56 = vgg_a(quick), *(resnet(8 if quick else d, quick) for d in (20, 56))

    def some(networks: dict[str, Network], *names: str) -> dict[str, Network]:
        return {name: networks[name] for name in ("bn", *names) if name in networks}

    rows: tuple[tuple[str, str, dict[str, Network], dict[str, float]], ...] = (
        (
            "vgg-a",
            "VGG-A",
            vgg,
            {"dbn-g16": 1.04, "dbn-g8": 1.05, "dbn-g64": 1.12, "dbn-g512": 1.40},
        ),
        ("res-20", "Res-20", res20, {"dbn-scale": 1.02, "dbn-all-g16": 1.12}),
        ("res-56", "Res-56", res56, {"dbn-all-g16": 1.12}),
    )
    pie = Bar(
        "PIE's MLP training step (batch 256, 5x128), G16, against BN",
        "dbn-g16",
        "bn",
        "step",
        1.6,
        "about 2",
    )
    return [
        *(_step_bars(name, title, some(n, *most), most) for name, title, n, most in rows),
        training_case("mlp", *_with_mlp(quick)["mlp"], [pie]),
        *_layer_bars(quick),
        _folded_bars("vgg-a", "VGG-A", some(vgg, "dbn-g16")),
        _folded_bars("res-20", "Res-20", res20),
        _memory_bars("vgg-a", "VGG-A", some(vgg, "dbn-g16", "dbn-g512"), quick),
        _memory_bars("res-20", "Res-20", some(res20, "dbn-all-g16"), quick),
    ]


def _step_bars(name: str, title: str, choices: dict[str, Network], most: dict[str, float]) -> Case:
    what = f"{title} training step (batch {choices['bn'].batch}), {{}}, against BN"
    bars = [
        Bar(what.format(_NAMES[ours]), ours, "bn", "step", at_most, _paper(name, ours))
        for ours, at_most in most.items()
        if ours in choices
    ]
    return training_case(name, title, choices, bars)


def _folded_bars(name: str, title: str, choices: dict[str, Network]) -> Case:
    bars = []
    for ours in [name for name in choices if name != "bn"]:
        what = f"{title} inference, {_NAMES[ours]}, folded, against BN folded"
        paper = _paper(name, ours, inference=True)
        bars.append(Bar(what, f"{ours}, folded", "bn, folded", "inference", 1.01, paper))
    return inference_case(name, title, choices, (True,), bars)


def _memory_bars(name: str, title: str, choices: dict[str, Network], quick: bool) -> Case:
    what = f"{title} training step, {{}}, peak memory against BN"
    bars = [
        Bar(what.format(_NAMES[ours]), ours, "bn", "allocated", 1.05)
        for ours in choices
        if ours != "bn"
    ]
    return memory_case(name, title, choices, quick, bars)


def _paper(name: str, ours: str, inference: bool = False) -> str:
    """The paper's ratio, whose networks weren't folded."""
    found = list(ratio(name, ours, inference).values())
    return f"{found[0]:.2f}{' (not folded)' if inference else ''}" if found else "-"


def _layer_bars(quick: bool) -> list[Case]:
    what = "layer forward+backward, {}, G{}, against {}"
    cases = []
    for shape, at_most in (
        ((64, 64, 32, 32), 1.5),
        ((256, 128, 16, 16), 1.8),
        ((256, 512, 4, 4), 1.8),
    ):
        names = ["bn", "dbn-g16", "loop-g16", "newton-g16"]
        title = what.format(list(shape), 16, "nn.BatchNorm2d")
        usual = ("loop-g16", "newton-g16")
        bars = [Bar(title, "dbn-g16", "bn", "both", at_most, beside=usual)]
        if shape == (64, 64, 32, 32):
            names += ["conv", "dbn-g64", "loop-g64", "newton-g64"]
            title = what.format(list(shape), "64 (full)", "a 3x3 convolution")
            usual, paper = ("loop-g64", "newton-g64"), f"{71 / 32:.1f}"
            bars.append(Bar(title, "dbn-g64", "conv", "both", 0.25, paper, usual))
        small = (4, shape[1], 4, 4) if quick else shape
        cases.append(layer_case(small, names, bars=bars))
    return cases


# --- where the time goes ------------------------------------------------------------------------


def _parts(quick: bool) -> list[Case]:
    """DBN beside what it can't do without: layers part by part, then training steps."""
    cases = []
    for shape, group, against in (
        ((256, 128), 16, "bn"),
        ((128, 16, 32, 32), 16, "bn"),
        ((128, 32, 16, 16), 16, "bn"),
        ((128, 64, 8, 8), 16, "bn"),
        ((64, 64, 32, 32), 16, "bn"),
        ((64, 64, 32, 32), 64, "conv"),
        ((256, 128, 16, 16), 16, "bn"),
        ((256, 512, 4, 4), 16, "bn"),
        ((128, 512, 4, 4), 512, "bn"),
    ):
        if quick:
            shape, group = (shape[0] // 8, shape[1], *[2] * len(shape[2:])), min(group, 32)
        ours = f"dbn-g{group}"
        makes = {name: partial(layer, name, shape) for name in (against, ours)}
        makes |= {name: partial(part, name, shape, group) for name in ("passes", "eigenvalues")}
        title = f"{list(shape)}, G{group}"
        alternatives = [Alternative(name, make) for name, make in makes.items()]
        info = {"ours": ours, "mode": "layer"}
        cases.append(Case(f"parts {title}", title, alternatives, [against], "both", info))
    for shape in ((8, 16, 4, 4), (8, 64, 4, 4), (256, 128)):
        makes = {name: partial(layer, name, shape) for name in ("bn", "dbn-g16")}
        makes |= {f"{name}, cold": partial(make, cold=True) for name, make in makes.items()}
        alternatives = [Alternative(name, make) for name, make in makes.items()]
        info, title = {"mode": "calls"}, f"{list(shape)}, G16"
        cases.append(Case(f"calls {title}", title, alternatives, ["bn"], "both", info))
    cifar = ("res-8",) if quick else ("res-20", "res-56")
    steps: dict[str, tuple[str, ...]] = {
        "vgg-a": ("dbn-g16", "dbn-g8", "dbn-g64", "dbn-g512"),
        **dict.fromkeys(cifar, ("dbn-all-g16",)),
        "mlp": ("dbn-g16",),
    }
    table = _with_mlp(quick)
    for name, names in steps.items():
        title, choices = table[name]
        for ours in [ours for ours in names if ours in choices]:
            three = {"bn": choices["bn"], ours: choices[ours]}
            three["bare"] = replace(choices[ours], bare=True)
            case = training_case(name, title, three)
            info = {**case.info, "ours": ours}
            cases.append(replace(case, name=f"parts {name} {ours}", info=info))
    return cases


# --- growth -------------------------------------------------------------------------------------


def _scaling(quick: bool) -> list[Case]:
    """BN and DBN along each of the sizes that the cost depends on, the others held."""
    sweeps: dict[str, tuple[str, dict[int, tuple[tuple[int, ...], int]]]] = {
        "batch": (
            "batch, at C = 128, 16x16 maps, G16",
            {n: ((n, 128, 16, 16), 16) for n in (4, 8, 16, 32, 64, 128, 256)},
        ),
        "channels": (
            "channels, at batch 64, 16x16 maps, G16",
            {c: ((64, c, 16, 16), 16) for c in (16, 32, 64, 128, 256, 512)},
        ),
        "group size": (
            "group size, at batch 64, C = 512, 8x8 maps",
            {k: ((64, 512, 8, 8), k) for k in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)},
        ),
        "positions": (
            "positions of a map, at batch 64, C = 64, G16",
            {s * s: ((64, 64, s, s), 16) for s in (2, 4, 8, 16, 32, 64)},
        ),
        "samples": (
            "samples of (N, C) input, at C = 128, G16",
            {n: ((n, 128), 16) for n in (64, 256, 1024, 4096, 16384, 65536)},
        ),
    }
    cases = []
    for axis, (title, points) in sweeps.items():
        if quick:
            points = dict(list(points.items())[:3])
        alternatives = []
        for value, (shape, group) in points.items():
            if quick:
                shape = (min(shape[0], 16), *shape[1:])
            for kind, name in (("bn", "bn"), ("dbn", f"dbn-g{group}")):
                info = {"kind": kind, "x": value, "shape": list(shape), "group": group}
                make = partial(layer, name, shape)
                alternatives.append(Alternative(f"{kind} at {value}", make, info))
        cases.append(
            Case(f"growth with {axis}", title, alternatives, [], "both", info={"axis": axis})
        )
    return cases


SUITES: dict[str, Suite] = {
    "bars": Suite("What must hold", _bars, rounds=30, seconds=8),
    "layer": Suite("One layer", _layer, rounds=20, seconds=2),
    "parts": Suite("Where the time goes", _parts, rounds=30, seconds=4),
    "network": Suite("Whole networks", _network, rounds=10, seconds=3),
    "scaling": Suite("Growth", _scaling, rounds=20, seconds=5),
    "memory": Suite("Memory", _memory, rounds=3, seconds=0),
}
