r"""What a measurement was made on, and whether it had the machine for itself."""

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch

from whitenorm.lab.records.environment import environment

TUNING = ("MALLOC_", "LD_PRELOAD", "OMP_", "GOMP_", "KMP_", "MKL_")  # environment variables
IDLE = 0.1  # constant work varies by at most so much on an idle machine


def describe() -> dict[str, Any]:
    """Versions, processor, threads, variables that tune them, revision of the source and time."""
    return {
        **environment(),
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(TUNING)},
        "revision": _revision(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _revision() -> str | None:
    """Of the clone that this file lies in, with "+" if files have changed since."""
    root = Path(__file__).parents[4]
    if not (root / ".git").exists() or not shutil.which("git"):  # an installed package
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=12", "--dirty=+"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def keep_memory() -> None:
    """Makes the C library keep memory that is freed, as GPUs' allocators do, if it is glibc.

    Otherwise it may return large blocks to the system and get them anew, cleared page by page.
    That can take a good part of an iteration, or nothing, depending on what was allocated before.
    """
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, -1)  # M_TRIM_THRESHOLD: never give memory back
        mallopt(-4, 0)  # M_MMAP_MAX: take no block from the system directly


def time_constant_work() -> list[float]:
    """Seconds of a loop that always does the same, so that only the machine can change them."""
    x, y = torch.randn(192, 192), torch.randn(2**18)
    product, twice = torch.empty_like(x), torch.empty_like(y)  # the loop allocates nothing
    times = []
    for _ in range(60):
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
    words = f"took from {less:.0%} less to {more:.0%} more than its median"
    return [f"constant work between the cases {words}"] if max(less, more) > IDLE else []
