r"""The memory of a training step at its peak, seen by a process that does nothing else.

Two numbers. ``allocated``: the most bytes that torch's allocator had handed out at once since the
step began (activations, gradients, scratch; not the weights), from the profiler's record of every
allocation. It is the same in every run, and leaves out what other libraries allocate for
themselves. ``resident``: how far the process grew in its first three steps, which holds all of
it, but also what is loaded on first use and what the C library keeps; it varies by tens of
megabytes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from whitenorm.lab.bench.alternatives import Network, TrainingStep

__all__ = ["PeakMemory"]


class PeakMemory:
    """Bytes at the peak of a training step of a network; each call starts a process."""

    def __init__(self, network: Network) -> None:
        self.info: dict[str, Any] = {}
        self._network = network

    def __call__(self) -> dict[str, float]:
        settings = {"threads": torch.get_num_threads(), "network": self._network.settings()}
        code = f"from {__name__} import main; main()"
        command = [sys.executable, "-c", code, json.dumps(settings)]
        # The process must find the same package, however this one did.
        paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        if done.returncode:
            raise RuntimeError(
                f"measuring the memory of {self._network} failed:\n{done.stderr.strip()}"
            )
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    def check(self) -> None:
        """The process that measures checks."""


def peak(network: Network) -> dict[str, float]:
    """Bytes at the peak of a training step in this process, which must be fresh."""
    step = TrainingStep(network)
    before = _resident()
    for _ in range(3):
        step()
    resident = _resident() - before
    step.check()
    step.optimiser.zero_grad()  # gradients of the step before aren't this step's
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    totals = [e["args"]["Total Allocated"] for e in events if e.get("name") == "[memory]"]
    if not totals:
        raise RuntimeError(f"the profiler of torch {torch.__version__} recorded no allocations")
    return {"allocated": max(totals), "resident": resident}


def _resident() -> int:
    """The most bytes of memory that the process has had."""
    if sys.platform == "linux":
        # Not getrusage, which there begins with the memory of the process that started this one.
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    import resource  # not on every platform

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Prints the peak of the network whose settings are this process's argument."""
    given = json.loads(sys.argv[1])
    torch.set_num_threads(given["threads"])
    print(json.dumps(peak(Network(**given["network"]))))
