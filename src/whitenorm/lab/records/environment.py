r"""The machine and the versions that a record was made with."""

import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

import whitenorm


def clock(device: str = "cpu") -> tuple[str, Callable[[], float]]:
    """What a training's seconds are measured by: the name and the clock.

    On one thread of a CPU, the time that the process had the core, so that other programs on the
    machine don't count.
    """
    if torch.device(device).type == "cpu" and torch.get_num_threads() == 1:
        return "cpu time", time.process_time
    return "wall time", time.perf_counter


def environment(device: str = "cpu") -> dict[str, Any]:
    """What a result may depend on besides its settings: versions, processor, threads."""
    cpuinfo = Path("/proc/cpuinfo")
    cpu = re.search(r"model name\s*:\s*(.*\S)", cpuinfo.read_text() if cpuinfo.exists() else "")
    found = {
        "whitenorm": whitenorm.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu[1] if cpu else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "clock": clock(device)[0],
    }
    if torch.device(device).type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found
