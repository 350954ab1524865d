r"""What a measurement was made on, and whether it had the machine for itself."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch

from whitenorm.lab.records.environment import environment

__all__ = ["describe", "disturbances", "keep_memory", "time_constant_work"]

TUNING = ("MALLOC_", "LD_PRELOAD", "OMP_", "GOMP_", "KMP_", "MKL_")  # environment variables
IDLE = 0.1  # constant work varies by at most so much on an idle machine


def describe() -> dict[str, Any]:
    """Versions, processor, threads, variables that tune them, revision of the source and time."""
    return {
        **environment(),
        "variables": {
            key: os.environ[key] for key in sorted(os.environ) if key.startswith(TUNING)
        },
        "revision": _revision(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _revision() -> str | None:
    """Of this source, with "+" if files have changed since; None if git doesn't keep it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
        return done.stdout.strip()

    try:
        # An installed package may lie inside a clone of something else, which ignores it.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("describe", "--always", "--abbrev=12", "--dirty=+")
    except (OSError, subprocess.SubprocessError):
        return None


def keep_memory() -> bool:
    """Makes the C library keep memory that is freed, as GPUs' allocators do; whether it can.

    Otherwise it may return large blocks to the system and get them anew, cleared page by page.
    That can take a good part of an iteration, or nothing, depending on what was allocated before.
    """
    trim_threshold, mmap_max = -1, -4  # parameters of glibc's mallopt(3)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc
        return False
    return bool(mallopt(trim_threshold, -1) and mallopt(mmap_max, 0))


def time_constant_work(samples: int = 50) -> list[float]:
    """Seconds of a loop that always does the same, so that only the machine can change them."""
    x, y = torch.randn(192, 192), torch.randn(2**18)
    product, twice = torch.empty_like(x), torch.empty_like(y)  # the loop allocates nothing
    times = []
    for _ in range(samples + 10):
        start = time.perf_counter()
        for _ in range(8):
            torch.mm(x, x, out=product)
            torch.mul(y, 2.0, out=twice)
        times.append(time.perf_counter() - start)
    return times[10:]  # the first ones warm up


def disturbances(constant_work: Iterable[float]) -> list[str]:
    """Why the machine can't have been idle, in words; empty if it may have been.

    Example:
        >>> disturbances([1.0] * 80 + [1.3] * 20)
        ['constant work between the cases took from 0% less to 30% more than its median']
    """
    deciles = quantiles(constant_work, n=10)
    less, more = 1 - deciles[0] / deciles[4], deciles[-1] / deciles[4] - 1
    if max(less, more) <= IDLE:
        return []
    return [
        f"constant work between the cases took from {less:.0%} less to {more:.0%} more than its "
        "median"
    ]
