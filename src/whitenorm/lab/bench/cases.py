r"""Cases from their parts: layers on one shape, and networks with several normalizations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from whitenorm.lab.bench.alternatives import Network, baselines, inference, layer, training
from whitenorm.lab.bench.memory import PeakMemory
from whitenorm.lab.bench.paper import ratio
from whitenorm.lab.bench.timing import Alternative, Bar, Case

__all__ = [
    "inference_case",
    "layer_case",
    "memory_case",
    "mlp",
    "networks",
    "resnet",
    "training_case",
    "vgg_a",
]


def layer_case(
    shape: tuple[int, ...],
    names: Iterable[str],
    network: str = "",
    dtype: str = "float32",
    channels_last: bool = False,
    references: Sequence[str] = ("bn", "conv"),
    bars: Sequence[Bar] = (),
) -> Case:
    """Forward and backward of several layers on inputs of one shape."""
    layout = "channels_last" if channels_last else "contiguous"
    names = list(dict.fromkeys(names))
    if baselines() is None:
        names = [name for name in names if not name.startswith(("loop", "newton"))]

    def alternative(name: str) -> Alternative:
        make = partial(layer, name, shape, getattr(torch, dtype), channels_last)
        group = int(name.partition("-g")[2] or 1)
        return Alternative(name, make, {"kind": name.partition("-g")[0], "group": group})

    return Case(
        f"layer {list(shape)} {dtype} {layout}",
        f"{list(shape)}",
        [alternative(name) for name in names],
        [name for name in references if name in names],
        total="both",
        info={"shape": list(shape), "network": network, "dtype": dtype, "layout": layout},
        bars=bars,
    )


# --- networks -----------------------------------------------------------------------------------


def vgg_a(quick: bool) -> dict[str, Network]:
    """DBN, with scale and shift as BN has, in all eight convolution layers."""
    options = {"width": 8} if quick else {}
    bn = Network("vgg-a", "bn", 16 if quick else 128, (3, 32, 32), model_options=options)
    groups = (8, 16) if quick else (8, 16, 64, 256, 512)
    return {"bn": bn, **{f"dbn-g{k}": _with(bn, group_size=k) for k in groups}}


def resnet(depth: int, quick: bool) -> dict[str, Network]:
    """DBN-scale is the paper's L1: DBN in the stem alone. DBN-all has it in every layer."""
    bn = Network("resnet", "bn", 4 if quick else 128, (3, 32, 32), model_options={"depth": depth})
    scale = replace(_with(bn, group_size=8), model_options={"depth": depth, "placement": "first"})
    return {"bn": bn, "dbn-scale": scale, "dbn-all-g16": _with(bn, group_size=16)}


def wrn(quick: bool) -> dict[str, Network]:
    options = {"depth": 10, "widen": 1} if quick else {"depth": 28, "widen": 10}
    bn = Network("wrn", "bn", 4 if quick else 8, (3, 32, 32), model_options=options)
    scale = replace(_with(bn, group_size=16), model_options={**options, "placement": "stem"})
    return {"bn": bn, "dbn-scale": scale, "dbn-all-g16": _with(bn, group_size=16)}


def imagenet_resnet(depth: int, quick: bool) -> dict[str, Network]:
    size, batch = (48, 4) if quick else (224, 8 if depth < 50 else 4)
    options = {"depth": depth}
    bn = Network("imagenet-resnet", "bn", batch, (3, size, size), 1000, options)
    twin = replace(bn, model_options={**options, "stem": "extra-conv"})
    return {
        "bn": bn,
        "bn-extra-conv": twin,
        "dbn-scale": _with(twin, group_size=32),
        "dbn-all-g16": replace(bn, everywhere=16),
    }


def mlp(quick: bool) -> dict[str, Network]:
    """The MLP of the PIE study."""
    hidden = (32, 32) if quick else (128,) * 5
    bn = Network("mlp", "bn", 64 if quick else 256, (1024,), 68, {"hidden": hidden})
    return {"bn": bn, "dbn-g16": _with(bn, group_size=16)}


def _with(bn: Network, **options: Any) -> Network:
    return replace(bn, method="dbn", method_options=options)


def networks(quick: bool) -> dict[str, tuple[str, dict[str, Network]]]:
    """name -> (title, alternatives)."""
    cifar = (8,) if quick else (20, 32, 44, 56)
    large = (18,) if quick else (18, 34, 50, 101)
    return {
        "vgg-a": ("VGG-A", vgg_a(quick)),
        **{f"res-{d}": (f"Res-{d}", resnet(d, quick)) for d in cifar},
        "wrn-28-10": ("WRN-28-10", wrn(quick)),
        **{f"res-{d}": (f"Res-{d}", imagenet_resnet(d, quick)) for d in large},
    }


def training_case(
    name: str, title: str, networks: dict[str, Network], bars: Sequence[Bar] = ()
) -> Case:
    """Training steps of a network with several normalizations."""
    alternatives = [
        Alternative(key, partial(training, network), {"paper": ratio(name, key)})
        for key, network in networks.items()
    ]
    references = [key for key in networks if key.startswith("bn")]
    info = {"network": title, "batch": networks["bn"].batch, "mode": "training"}
    return Case(f"train {name}", title, alternatives, references, info=info, bars=bars)


def inference_case(
    name: str,
    title: str,
    networks: dict[str, Network],
    modes: Sequence[bool] = (False, True),
    bars: Sequence[Bar] = (),
) -> Case:
    """Inference with several normalizations, as they are and folded into the layers before."""
    alternatives = [
        Alternative(
            f"{key}, folded" if folded else key,
            partial(inference, network, folded),
            {"paper": {} if folded else ratio(name, key, inference=True), "is_folded": folded},
        )
        for folded in modes
        for key, network in networks.items()
    ]
    references = [a.name for a in alternatives if a.name.startswith("bn")]
    info = {"network": title, "batch": networks["bn"].batch, "mode": "inference"}
    return Case(f"infer {name}", title, alternatives, references, info=info, bars=bars)


def memory_case(
    name: str, title: str, networks: dict[str, Network], quick: bool, bars: Sequence[Bar] = ()
) -> Case:
    """Peak memory of a training step with several normalizations, each in fresh processes."""
    alternatives = [Alternative(key, partial(PeakMemory, n)) for key, n in networks.items()]
    info = {"network": title, "batch": networks["bn"].batch, "mode": "memory"}
    rounds = 1 if quick else 3
    return Case(
        f"memory {name}", title, alternatives, ["bn"], None, info, bars, warmup=0, rounds=rounds
    )
