r"""The suites: what is compared with what."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import prod

from whitenorm.lab.bench.harness import Bar, Case, Sampler, Suite
from whitenorm.lab.bench.ports import PORTS
from whitenorm.lab.bench.workloads import Layer, Network, PeakMemory, inference, layer, training

GROUPS = (1, 4, 8, 16, 32, 64)
SHAPES: list[tuple[int, ...]] = [  # batches as large as two cores can bear
    *((64, 64, 32, 32), (256, 128, 16, 16), (256, 256, 8, 8)),  # VGG-A
    *((256, 512, 4, 4), (256, 512, 2, 2)),  # VGG-A, last layers
    *((128, 16, 32, 32), (128, 32, 16, 16), (128, 64, 8, 8)),  # Res-20
    *((32, 64, 56, 56), (8, 256, 56, 56), (8, 2048, 7, 7)),  # Res-50
    *((256, 128), (2414, 128)),  # MLPs
]
FORMATS = [("float32", "channels_last"), ("bfloat16",), ("bfloat16", "channels_last")]
LAYERS = [*map(Layer, SHAPES), *(Layer((256, 128, 16, 16), *each) for each in FORMATS)]

VGG_A = {"dbn-g8": 4.32, "dbn-g16": 2.85, "dbn-g64": 1.82, "dbn-g512": 6.13}
ALL = {"dbn-all-g16": None}
NETWORKS = {  # of the paper's appendix, and the MLP of its PIE study
    "VGG-A": Network("vgg-a", 128, (3, 32, 32), VGG_A, where="features.*"),
    "Res-20": Network("resnet", 128, (3, 32, 32), {"dbn-scale": 1.65, **ALL}, {"depth": 20}),
    "Res-56": Network("resnet", 128, (3, 32, 32), {"dbn-scale": 1.25, **ALL}, {"depth": 56}),
    "WRN-28-10": Network("wrn", 8, (3, 32, 32), ALL),
    "Res-50": Network("imagenet-resnet", 4, (3, 224, 224), ALL, classes=1000),
    "MLP": Network("mlp", 256, (1024,), {"dbn-g16": None}, {"hidden": (128,) * 5}, 68),
}
GOALS = {  # (case, reference): at most so many times the reference's cost
    ("training vgg-a", "bn"): {"dbn-g16": 1.04, "dbn-g8": 1.05, "dbn-g64": 1.12, "dbn-g512": 1.40},
    ("training res-20", "bn"): {"dbn-scale": 1.02, "dbn-all-g16": 1.12},
    ("training res-56", "bn"): {"dbn-all-g16": 1.12},
    ("training mlp", "bn"): {"dbn-g16": 1.60},
    ("inference vgg-a", "bn, folded"): {"dbn-g16, folded": 1.01},
    ("inference res-20", "bn, folded"): {"dbn-scale, folded": 1.01, "dbn-all-g16, folded": 1.01},
    ("memory vgg-a", "bn"): {"dbn-g16": 1.05, "dbn-g512": 1.05},
    ("memory res-20", "bn"): {"dbn-all-g16": 1.05},
    ("layer [64, 64, 32, 32] float32 contiguous", "bn"): {"dbn-g16": 1.50},
    ("layer [64, 64, 32, 32] float32 contiguous", "conv"): {"dbn-g64": 0.25},
    ("layer [256, 128, 16, 16] float32 contiguous", "bn"): {"dbn-g16": 1.80},
    ("layer [256, 512, 4, 4] float32 contiguous", "bn"): {"dbn-g16": 1.80},
}


def _layer_case(given: Layer) -> Case:
    """BN, a convolution, DBN by group size, and the usual ports at 16 and the largest size."""
    # All group sizes that the channels have and the samples can fill, then all channels.
    channels = given.shape[1]
    most = min(channels, prod(given.shape) // channels, 512)
    groups = [k for k in dict.fromkeys((*GROUPS, channels)) if k <= most]
    names = ["bn", "conv", *(f"dbn-g{k}" for k in groups)]
    some = [k for k in groups if k in (16, groups[-1])]
    names += [f"{port}-g{k}" for k in some for port in PORTS]
    return Case(
        f"layer {list(given.shape)} {given.dtype} {given.layout}",
        str(list(given.shape)),
        {name: partial(layer, given, name) for name in names},
        ["bn", "conv"],
        {"mode": "layer", "dtype": given.dtype, "layout": given.layout},
    )


def _network_case(mode: str, work: Callable[[Network, str], Sampler], title: str) -> Case:
    network = NETWORKS[title]
    names = ["bn", *network.dbn]
    if mode == "inference":
        names += [f"{name}, folded" for name in names]
    return Case(
        f"{mode} {title.lower()}",
        title,
        {name: partial(work, network, name) for name in names},
        [name for name in names if name.startswith("bn")],
        {"mode": mode, "batch": network.batch},
        constant=mode == "memory",
    )


def _with_goals(cases: Iterable[Case]) -> Iterator[Case]:
    """The cases that have goals, and of these the alternatives that the goals are about."""
    for case in cases:
        goals = {reference: each for (name, reference), each in GOALS.items() if name == case.name}
        bars = [Bar(ours, who, most) for who in goals for ours, most in goals[who].items()]
        ports = [bar.alternative.replace("dbn", port) for bar in bars for port in PORTS]
        wanted = {*goals, *ports, *(bar.alternative for bar in bars)}
        makes = {name: make for name, make in case.alternatives.items() if name in wanted}
        if bars:
            yield replace(case, alternatives=makes, references=list(goals), bars=bars)


_LAYERS = [_layer_case(given) for given in LAYERS]
_TIMES = [
    *(_network_case("training", training, title) for title in NETWORKS),
    *(_network_case("inference", inference, title) for title in NETWORKS),
]
_MEMORY = [_network_case("memory", PeakMemory, title) for title in NETWORKS]
_BARS = list(_with_goals([*_TIMES, *_MEMORY, *_LAYERS]))
SUITES = {
    "bars": Suite("bars", "Goals", _BARS, rounds=30, small="mlp"),
    "layer": Suite("layer", "One layer", _LAYERS, rounds=20, small="[256, 128]"),
    "network": Suite("network", "Whole networks", _TIMES, rounds=10, small="mlp"),
    "memory": Suite("memory", "Memory", _MEMORY, rounds=1, small="mlp"),
}
