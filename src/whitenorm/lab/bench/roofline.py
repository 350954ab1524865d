r"""What the machine can do, and what that leaves possible for a layer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

__all__ = ["bound", "peak", "rates"]

MIB = 2**20
PASSES = 8  # reads x | reads x, writes y | reads x, g | reads x, g, writes dx: BN's count too
OUTPUTS = 2
FLOPS = 10  # times m d k: products for S, y and A, and two for dx, each 2 m d k


def rates(quick: bool = False) -> dict[str, Any]:
    """Rates of this machine with the threads that torch now has.

    ==============  ============================================================================
    ``copy``        [bytes of a tensor, bytes/s read and written by copying it to another]
    ``fresh``       the same with a newly allocated copy, as a layer's output is
    ``gemm``        float32 flop/s of a large matrix product
    ``products``    [k, flop/s of products of k x k matrices with long ones, as whitening does]
    ``eigh``        [k, seconds of a k x k float64 symmetric eigendecomposition, batched if small]
    ``call``        seconds of a call of an operation on one number
    ==============  ============================================================================
    """
    copy: list[list[float]] = []
    fresh: list[list[float]] = []
    for mib in (0.25, 4) if quick else (0.125, 0.5, 2, 8, 32, 128):
        a = torch.ones(int(mib * MIB) // 4)
        b = torch.empty_like(a)
        copy.append([a.nbytes, 2 * a.nbytes / _seconds(partial(b.copy_, a))])
        fresh.append([a.nbytes, 2 * a.nbytes / _seconds(a.clone)])
    n = 256 if quick else 2048
    large = torch.randn(n, n)
    products, eigh = [], []
    for k in (4, 16) if quick else (1, 4, 8, 16, 32, 64, 128, 256, 512):
        groups = max(512 // k, 1)
        matrix, long = torch.randn(groups, k, k), torch.randn(groups, k, 4096)
        products.append([k, 2 * k * long.numel() / _seconds(partial(torch.matmul, matrix, long))])
        root = matrix[:32].double()
        S = root @ root.mT
        eigh.append([k, _seconds(partial(torch.linalg.eigh, S)) / len(S)])
    one = torch.ones(1)
    return {
        "copy": copy,
        "fresh": fresh,
        "gemm": 2 * n**3 / _seconds(partial(torch.matmul, large, large)),
        "products": products,
        "eigh": eigh,
        "call": _seconds(partial(one.add, one)),
    }


def bound(
    shape: list[int], group: int, itemsize: int, calls: int, rates: dict[str, Any]
) -> dict[str, Any]:
    """Seconds that a forward and a backward pass of the layer need on this machine.

    ``memory``: eight passes over the activations at the speed of a copy of that size. ``fresh``:
    what it costs more that two of them, y and dx, write to memory that was just allocated.
    ``arithmetic``: 10 m d k operations at the fastest rate seen. ``calls``: as many calls of
    torch as the layer makes. ``eigh``: the decompositions, which nothing can overlap. The bound is
    the largest of memory + fresh, arithmetic and calls, plus eigh; ``by`` names the largest part.
    """
    size, channels = math.prod(shape), shape[1]
    copied, copied_fresh = (
        2 * size * itemsize / _at(rates[key], size * itemsize) for key in ("copy", "fresh")
    )
    parts = {
        "memory": PASSES / 2 * copied,
        "fresh": OUTPUTS * max(copied_fresh - copied, 0.0),
        "arithmetic": FLOPS * size * group / peak(rates),
        "calls": calls * rates["call"],
        "eigh": _at(rates["eigh"], group) * -(-channels // group) if group > 1 else 0.0,
    }
    traffic = parts["memory"] + parts["fresh"]
    total = max(traffic, parts["arithmetic"], parts["calls"]) + parts["eigh"]
    return {**parts, "bound": total, "by": max(parts, key=lambda name: parts[name])}


def peak(rates: dict[str, Any]) -> float:
    """The most flop/s that any product reached."""
    fastest: float = max(rates["gemm"], *(rate for _, rate in rates["products"]))
    return fastest


def _at(points: list[list[float]], x: float) -> float:
    """Interpolated between measured points, in logarithms; constant beyond them."""
    xs = [math.log(point[0]) for point in points]
    ys = [math.log(point[1]) for point in points]
    at = min(max(math.log(x), xs[0]), xs[-1])
    for i in range(1, len(xs)):
        if at <= xs[i]:
            share = (at - xs[i - 1]) / (xs[i] - xs[i - 1])
            return math.exp(ys[i - 1] + share * (ys[i] - ys[i - 1]))
    return math.exp(ys[-1])


def _seconds(action: Callable[[], object], samples: int = 9, least: float = 5e-3) -> float:
    """Median seconds of an action, each sample long enough to time."""
    action()
    start = time.perf_counter()
    action()
    repeats = max(1, math.ceil(least / max(time.perf_counter() - start, 1e-9)))
    found = []
    for _ in range(samples):
        start = time.perf_counter()
        for _ in range(repeats):
            action()
        found.append((time.perf_counter() - start) / repeats)
    return median(found)
