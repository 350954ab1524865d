r"""What a measurement was made on, and whether it had the machine for itself."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from whitenorm.lab.bench.timing import spread
from whitenorm.lab.records.record import environment

__all__ = ["Watch", "calibration", "describe", "disturbances", "keep_memory"]

OTHERS = 0.1  # cores: more than this, and a core was not ours alone
SPREAD = 0.1  # of a loop that always does the same
LOAD = 0.5  # processes, where nothing better is known
ROOT = Path(__file__).parents[4]


def describe() -> dict[str, Any]:
    """Versions, processor, threads, what tunes them, revision of the source and time."""
    return {
        **environment(),
        "variables": {name: os.environ[name] for name in sorted(os.environ) if _tunes(name)},
        "revision": revision(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _tunes(variable: str) -> bool:
    """Whether an environment variable changes how memory is handed out or threads work."""
    return variable.startswith(("MALLOC_", "LD_PRELOAD", "OMP_", "GOMP_", "KMP_", "MKL_"))


def revision() -> str | None:
    """Of the source tree, with "+" if it was changed since; None if it isn't a clone."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def keep_memory() -> bool:
    """Makes the C library keep memory that is freed, as GPUs' allocators do; whether it can.

    Otherwise it gives some back to the system and gets it anew, cleared page by page, which takes
    a good part of a training step at times, and none at others.
    """
    trim_threshold, mmap_max = -1, -4  # of mallopt(3)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc
        return False
    return bool(mallopt(trim_threshold, -1) and mallopt(mmap_max, 0))


class Watch:
    """How much of the processor others used, from its making to :meth:`stop`.

    Counts the cores that this process may use. Where the system doesn't tell, ``others`` and
    ``stolen`` (by the host of a virtual machine) are None.
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._busy = _busy_seconds()
        self._own = sum(os.times()[:4])

    def stop(self) -> dict[str, float | None]:
        """Seconds that passed, and the cores that others had on average."""
        seconds = time.perf_counter() - self._start
        own, busy = sum(os.times()[:4]) - self._own, _busy_seconds()
        others = stolen = None
        if busy is not None and self._busy is not None:
            others = max(busy[0] - self._busy[0] - own, 0.0) / seconds
            stolen = (busy[1] - self._busy[1]) / seconds
        return {"seconds": seconds, "others": others, "stolen": stolen}


def _busy_seconds() -> tuple[float, float] | None:
    """Seconds that our cores were in use, and those that a hypervisor took, since the start."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    except (OSError, AttributeError):
        return None
    busy = stolen = 0
    for name, *ticks in (line.split() for line in lines if line.startswith("cpu")):
        if name in ours:
            user, nice, system, _idle, _wait, irq, softirq, steal, *_ = map(int, ticks)
            busy += user + nice + system + irq + softirq
            stolen += steal
    tick = os.sysconf("SC_CLK_TCK")
    return busy / tick, stolen / tick


def calibration(rounds: int = 60) -> dict[str, float]:
    """A loop that does the same 60 times: median seconds, and how far the ninth decile is off."""
    x, y = torch.randn(192, 192), torch.randn(2**18)
    product, twice = torch.empty_like(x), torch.empty_like(y)  # no allocator's luck in here
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(8):
            torch.mm(x, x, out=product)
            torch.mul(y, 2.0, out=twice)
        times.append(time.perf_counter() - start)
    times = sorted(times[rounds // 6 :])
    middle = spread(times)["median"]
    return {"median": middle, "spread": times[len(times) * 9 // 10] / middle - 1}


def disturbances(
    watches: dict[str, dict[str, float | None]],
    calibrations: Sequence[dict[str, float]],
    load: Sequence[float],
) -> list[str]:
    """Why the machine can't have been idle, in words; empty if it may have been.

    Args:
        watches: What :meth:`Watch.stop` gave for each case.
        calibrations: From before and after.
        load: The load average over a minute, before and after.
    """
    reasons = []
    for key, words in (("others", "other processes used"), ("stolen", "the host took")):
        found = {name: watch[key] or 0.0 for name, watch in watches.items()}
        bad = [name for name, cores in found.items() if cores > OTHERS]
        if bad:
            worst = max(bad, key=lambda name: found[name])
            reasons.append(
                f"{words} more than {OTHERS} cores in {len(bad)} of {len(found)} cases "
                f"({found[worst]:.2f} in {worst!r})"
            )
    unknown = any(watch["others"] is None for watch in watches.values())
    if unknown and load[0] > LOAD:
        reasons.append(f"the load average was {load[0]:.2f} at the start, above {LOAD}")
    for when, result in zip(("before", "after"), calibrations, strict=False):
        if result["spread"] > SPREAD:
            reasons.append(
                f"a loop that always does the same varied by {result['spread']:.0%} {when} the "
                f"measurements, more than {SPREAD:.0%}"
            )
    if len(calibrations) == 2:
        drift = calibrations[1]["median"] / calibrations[0]["median"] - 1
        if abs(drift) > SPREAD:
            reasons.append(f"the same loop changed its speed by {drift:+.0%} during the run")
    return reasons
