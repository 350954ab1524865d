r"""The suites: what is compared with what.

``quick`` leaves a few small cases that run in seconds, to see that all of it works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch

from whitenorm.lab.bench.harness import Alternative, Bar, Case, Sampler, Suite
from whitenorm.lab.bench.paper import ratio
from whitenorm.lab.bench.workloads import Network, PeakMemory, inference, layer, training

__all__ = ["SUITES", "networks"]

# --- layers -------------------------------------------------------------------------------------

GROUPS = (1, 4, 8, 16, 32, 64)
SHAPES: list[tuple[int, ...]] = [  # batches as large as two cores can bear
    *((64, 64, 32, 32), (256, 128, 16, 16), (256, 256, 8, 8)),  # VGG-A
    *((256, 512, 4, 4), (256, 512, 2, 2)),  # VGG-A, last layers
    *((128, 16, 32, 32), (128, 32, 16, 16), (128, 64, 8, 8)),  # Res-20
    *((32, 64, 56, 56), (8, 256, 56, 56), (8, 2048, 7, 7)),  # Res-50
    *((256, 128), (2414, 128)),  # MLPs
]
FORMATS = (("float32", True), ("bfloat16", False), ("bfloat16", True))  # whether channels last
FORMAT_SHAPES = [(64, 64, 32, 32), (256, 128, 16, 16), (256, 512, 4, 4), (32, 64, 56, 56)]


def _layer(quick: bool) -> list[Case]:
    cases = []
    for shape in [(32, 16), (8, 16, 4, 4)] if quick else SHAPES:
        # All group sizes that the channels have and the samples can fill, then all channels.
        most = min(shape[1], prod(shape) // shape[1], 512)
        groups = [k for k in dict.fromkeys((*GROUPS, shape[1])) if k <= most]
        cases.append(_layer_case(shape, _layer_names(groups)))
    for dtype, last in FORMATS:
        for shape in [(8, 16, 4, 4)] if quick else FORMAT_SHAPES:
            names = _layer_names((16, 64) if shape[1] >= 64 else (16,))
            cases.append(_layer_case(shape, names, dtype, last))
    return cases


def _layer_names(groups: Sequence[int]) -> list[str]:
    """BN, a convolution, DBN at these group sizes, and the usual ports at 16 and the largest."""
    some = [k for k in groups if k in (16, groups[-1])]
    ports = [f"{port}-g{k}" for k in some for port in ("loop", "newton")]
    return ["bn", "conv", *(f"dbn-g{k}" for k in groups), *ports]


def _layer_case(
    shape: tuple[int, ...],
    names: Sequence[str],
    dtype: str = "float32",
    channels_last: bool = False,
    bars: Sequence[Bar] = (),
) -> Case:
    layout = "channels_last" if channels_last else "contiguous"
    alternatives = []
    for name in names:
        kind, _, group = name.partition("-g")
        make = partial(layer, name, shape, getattr(torch, dtype), channels_last)
        alternatives.append(Alternative(name, make, {"kind": kind, "group": int(group or 1)}))
    info = {"mode": "layer", "dtype": dtype, "layout": layout}
    references = [name for name in ("bn", "conv") if name in names]
    case_name = f"layer {list(shape)} {dtype} {layout}"
    return Case(case_name, f"{list(shape)}", alternatives, references, info, bars, total="both")


# --- networks -----------------------------------------------------------------------------------

Choices = dict[str, Network]  # by normalization
MODES: dict[str, tuple[str, Callable[[Network], Sampler]]] = {  # how cases are called, and run
    "training": ("train", training),
    "inference": ("infer", inference),
    "memory": ("memory", PeakMemory),
}


def networks(quick: bool) -> dict[str, Choices]:
    """The networks that the paper's appendix times, and the MLP of its PIE study."""
    res, imagenet = ((20,), (18,)) if quick else ((20, 32, 44, 56), (18, 34, 50, 101))
    return {
        "VGG-A": _vgg_a(quick),
        **{f"Res-{depth}": _resnet(8 if quick else depth, quick) for depth in res},
        "WRN-28-10": _wrn(quick),
        **{f"Res-{depth}": _imagenet_resnet(depth, quick) for depth in imagenet},
        "MLP": _mlp(quick),
    }


def _vgg_a(quick: bool) -> Choices:
    """DBN in all eight convolution layers."""
    options = {"width": 8} if quick else {}
    bn = Network("vgg-a", "bn", 16 if quick else 128, (3, 32, 32), model_options=options)
    groups = (8, 16) if quick else (8, 16, 64, 256, 512)
    return {"bn": bn, **{f"dbn-g{k}": _dbn(bn, k) for k in groups}}


def _resnet(depth: int, quick: bool) -> Choices:
    """dbn-scale is the paper's DBN-scale-L1, DBN in the first layer; dbn-all is every layer."""
    bn = Network("resnet", "bn", 4 if quick else 128, (3, 32, 32), model_options={"depth": depth})
    return {"bn": bn, "dbn-scale": _dbn(bn, 8, placement="first"), "dbn-all-g16": _dbn(bn, 16)}


def _wrn(quick: bool) -> Choices:
    options = {"depth": 10, "widen": 1} if quick else {"depth": 28, "widen": 10}
    bn = Network("wrn", "bn", 4 if quick else 8, (3, 32, 32), model_options=options)
    return {"bn": bn, "dbn-scale": _dbn(bn, 16, placement="stem"), "dbn-all-g16": _dbn(bn, 16)}


def _imagenet_resnet(depth: int, quick: bool) -> Choices:
    """The authors' DBN-scale adds a 3x3 convolution too; bn-extra-conv is BN with the same one."""
    size, batch = (48, 4) if quick else (224, 8 if depth < 50 else 4)
    bn = Network("imagenet-resnet", "bn", batch, (3, size, size), 1000, {"depth": depth})
    twin = replace(bn, model_options={"depth": depth, "stem": "extra-conv"})
    ours = {"dbn-scale": _dbn(twin, 32), "dbn-all-g16": replace(bn, everywhere=16)}
    return {"bn": bn, "bn-extra-conv": twin, **ours}


def _mlp(quick: bool) -> Choices:
    hidden = (32, 32) if quick else (128,) * 5
    bn = Network("mlp", "bn", 64 if quick else 256, (1024,), 68, {"hidden": hidden})
    return {"bn": bn, "dbn-g16": _dbn(bn, 16)}


def _dbn(bn: Network, group_size: int, **model_options: Any) -> Network:
    options = {**bn.model_options, **model_options}
    method_options = {"group_size": group_size}
    return replace(bn, method="dbn", method_options=method_options, model_options=options)


def _folded(choices: Choices) -> Choices:
    return {f"{name}, folded": replace(network, folded=True) for name, network in choices.items()}


def _network_case(mode: str, title: str, choices: Choices, bars: Sequence[Bar] = ()) -> Case:
    prefix, work = MODES[mode]
    alternatives = []
    for name, network in choices.items():
        paper = {} if mode == "memory" else ratio(title, name, mode == "inference")
        alternatives.append(Alternative(name, partial(work, network), {"paper": paper}))
    references = [name for name in choices if name.startswith("bn")]
    info = {"mode": mode, "batch": next(iter(choices.values())).batch}
    case = Case(f"{prefix} {title.lower()}", title, alternatives, references, info, bars)
    # Memory is the same in every round.
    return replace(case, warmup=0, most_rounds=1) if mode == "memory" else case


def _network(quick: bool) -> list[Case]:
    known = networks(quick)
    trained = [_network_case("training", *item) for item in known.items()]
    both = {title: choices | _folded(choices) for title, choices in known.items()}
    return trained + [_network_case("inference", *item) for item in both.items()]


def _memory(quick: bool) -> list[Case]:
    chosen = ("VGG-A", "Res-20", "Res-56", "Res-18", "Res-50", "MLP")
    known = networks(quick)
    return [_network_case("memory", title, known[title]) for title in chosen if title in known]


# --- the bars: goals for some of these ratios ---------------------------------------------------

NETWORK_BARS: dict[str, dict[str, dict[str, float]]] = {  # against BN; in inference both folded
    "training": {
        "VGG-A": {"dbn-g16": 1.04, "dbn-g8": 1.05, "dbn-g64": 1.12, "dbn-g512": 1.40},
        "Res-20": {"dbn-scale": 1.02, "dbn-all-g16": 1.12},
        "Res-56": {"dbn-all-g16": 1.12},
        "MLP": {"dbn-g16": 1.60},
    },
    "inference": {
        "VGG-A": {"dbn-g16": 1.01},
        "Res-20": {"dbn-scale": 1.01, "dbn-all-g16": 1.01},
    },
    "memory": {
        "VGG-A": {"dbn-g16": 1.05, "dbn-g512": 1.05},
        "Res-20": {"dbn-all-g16": 1.05},
    },
}
LAYER_BARS = {
    (64, 64, 32, 32): [Bar("dbn-g16", "bn", 1.50), Bar("dbn-g64", "conv", 0.25)],
    (256, 128, 16, 16): [Bar("dbn-g16", "bn", 1.80)],
    (256, 512, 4, 4): [Bar("dbn-g16", "bn", 1.80)],
}


def _network_bars(quick: bool) -> Iterator[Case]:
    known = networks(quick)
    for mode, titles in NETWORK_BARS.items():
        for title in [title for title in titles if title in known]:
            goals = {name: most for name, most in titles[title].items() if name in known[title]}
            choices = {name: known[title][name] for name in ("bn", *goals)}
            suffix = ", folded" if mode == "inference" else ""
            bars = [Bar(name + suffix, "bn" + suffix, most) for name, most in goals.items()]
            yield _network_case(mode, title, _folded(choices) if suffix else choices, bars)


def _layer_bars(quick: bool) -> Iterator[Case]:
    for shape, bars in LAYER_BARS.items():
        ours = [bar.alternative for bar in bars]
        references = dict.fromkeys(["bn", *(bar.reference for bar in bars)])
        ports = [name.replace("dbn", port) for name in ours for port in ("loop", "newton")]
        small = (4, shape[1], 4, 4) if quick else shape
        yield _layer_case(small, [*references, *ours, *ports], bars=bars)


_ALL = (
    Suite("bars", "Goals", lambda quick: [*_network_bars(quick), *_layer_bars(quick)], rounds=30),
    Suite("layer", "One layer", _layer, rounds=20),
    Suite("network", "Whole networks", _network, rounds=10),
    Suite("memory", "Memory", _memory, rounds=1),
)
SUITES = {suite.name: suite for suite in _ALL}
