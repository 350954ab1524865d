r"""The machine and the versions that a record was made with."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy
import torch

import whitenorm

__all__ = ["environment"]


def environment(device: str = "cpu") -> dict[str, Any]:
    """What a result may depend on besides its settings: versions, processor, threads."""
    versions = {
        "whitenorm": whitenorm.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }
    machine: dict[str, Any] = {
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
    }
    if torch.device(device).type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
    return {**versions, **machine}


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
