r"""The suites: what is compared with what."""

from collections.abc import Sequence
from functools import partial
from math import prod

from whitenorm.lab.bench.harness import Bar, Case, Suite
from whitenorm.lab.bench.ports import PORTS
from whitenorm.lab.bench.workloads import Layer, Network, PeakMemory, inference, layer, training

GROUPS = (1, 4, 8, 16, 32, 64)
SHAPES: list[tuple[int, ...]] = [  # batches as large as two cores can bear
    *((64, 64, 32, 32), (256, 128, 16, 16)),  # VGG-A
    *((256, 512, 4, 4), (256, 512, 2, 2)),  # VGG-A, last layers
    *((128, 16, 32, 32), (128, 32, 16, 16), (128, 64, 8, 8)),  # Res-20
    *((32, 64, 56, 56), (8, 2048, 7, 7)),  # Res-50
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
    "Res-50": Network("imagenet-resnet", 4, (3, 224, 224), ALL, classes=1000),
    "MLP": Network("mlp", 256, (1024,), {"dbn-g16": None}, {"hidden": (128,) * 5}, 68),
}
# Goals: at most so many times the cost of the reference.
# What the layer does beyond the floor (are values finite, are means near zero, shrinkage, running
# averages, autograd's books) is k x k or a check, no pass over the activations: a quarter for it.
ABOVE_FLOOR = 1.25
FOLDED = 1.05  # of BN folded, which is the same network then: for the noise of the measurement
MEMORY = 1.05  # of BN, which keeps its input alone as well: for k x k matrices and scratch


def _layer_case(given: Layer, names: Sequence[str]) -> Case:
    floors = [name for name in names if name.startswith("floor")]
    return Case(
        f"layer {list(given.shape)} {given.dtype} {given.layout}",
        str(list(given.shape)),
        {name: partial(layer, given, name) for name in ("bn", *names)},
        ["bn", *floors],
        {"mode": "layer", "dtype": given.dtype, "layout": given.layout},
        [Bar(name.replace("floor", "dbn"), name, ABOVE_FLOOR) for name in floors],
    )


def _training_case(title: str, names: Sequence[str]) -> Case:
    network = NETWORKS[title]
    makes = {name: partial(training, network, name) for name in ("bn", *names)}
    info = {"mode": "training", "batch": network.batch}
    return Case(f"training {title.lower()}", title, makes, ["bn"], info)


def _inference_case(title: str, names: Sequence[str]) -> Case:
    network = NETWORKS[title]
    every = [f"{name}{folded}" for folded in ("", ", folded") for name in ("bn", *names)]
    return Case(
        f"inference {title.lower()}",
        title,
        {name: partial(inference, network, name) for name in every},
        ["bn", "bn, folded"],
        {"mode": "inference", "batch": network.batch},
        [Bar(f"{name}, folded", "bn, folded", FOLDED) for name in names],
    )


def _memory_case(title: str, names: Sequence[str]) -> Case:
    network = NETWORKS[title]
    return Case(
        f"memory {title.lower()}",
        title,
        {name: partial(PeakMemory, network, name) for name in ("bn", *names)},
        ["bn"],
        {"mode": "memory", "batch": network.batch},
        [Bar(name, "bn", MEMORY) for name in names],
        constant=True,
    )


def _by_group_size(given: Layer) -> Case:
    """DBN by group size, and the ports and the floor at 16 and the largest size."""
    # All group sizes that the channels have and the samples can fill, then all channels.
    channels = given.shape[1]
    most = min(channels, prod(given.shape) // channels, 512)
    groups = [k for k in dict.fromkeys((*GROUPS, channels)) if k <= most]
    others = [*PORTS, "floor"] if given == Layer(given.shape) else [*PORTS]
    names = [f"{kind}-g{k}" for k in groups if k in (16, groups[-1]) for kind in others]
    return _layer_case(given, [*(f"dbn-g{k}" for k in groups), *names])


def _beside(*dbn: str, floor: bool = False) -> list[str]:
    """DBNs, the ports in their place, and the floor of each."""
    kinds = ("dbn", *PORTS, "floor") if floor else ("dbn", *PORTS)
    return [name.replace("dbn", kind) for name in dbn for kind in kinds]


_SUMMARY = [
    _training_case("VGG-A", _beside("dbn-g16")),
    _training_case("Res-20", _beside("dbn-scale", "dbn-all-g16")),
    _training_case("MLP", _beside("dbn-g16")),
    _layer_case(Layer((64, 64, 32, 32)), _beside("dbn-g16", "dbn-g64", floor=True)),
    _layer_case(Layer((256, 128, 16, 16)), _beside("dbn-g16", floor=True)),
    _layer_case(Layer((256, 512, 4, 4)), _beside("dbn-g16", floor=True)),
    _layer_case(Layer((256, 128)), _beside("dbn-g16", floor=True)),
    _inference_case("VGG-A", ["dbn-g16"]),
    _inference_case("Res-20", ["dbn-all-g16"]),
    _memory_case("VGG-A", ["dbn-g16"]),
    _memory_case("Res-20", ["dbn-all-g16"]),
]
_NETWORKS = [
    make(title, [*network.dbn])
    for make in (_training_case, _inference_case)
    for title, network in NETWORKS.items()
]
_MEMORY = [_memory_case(title, [*network.dbn]) for title, network in NETWORKS.items()]
SUITES = {
    "summary": Suite("summary", "In short", _SUMMARY, rounds=10, small="mlp"),
    "layer": Suite("layer", "One layer", [*map(_by_group_size, LAYERS)], 10, "[256, 128]"),
    "network": Suite("network", "Whole networks", _NETWORKS, rounds=10, small="mlp"),
    "memory": Suite("memory", "Memory", _MEMORY, rounds=1, small="mlp"),
}
