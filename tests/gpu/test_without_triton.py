"""A machine without Triton imports and runs everything, and Triton isn't imported unasked."""

import os
import subprocess
import sys

PROGRAM = """
import sys
sys.modules["triton"] = None
import torch, whitenorm
from whitenorm import gpu
assert gpu.is_enabled()

def train():
    layer = whitenorm.DecorrelatedBatchNorm2d(8, group_size=4)
    x = torch.randn(4, 8, 3, 3, requires_grad=True)
    layer(x).sum().backward()
    assert gpu.unmet_requirement("cpu") == "the device is cpu, not cuda"
    assert "whitenorm.gpu.kernels" not in sys.modules

train()
gpu.disable()
train()
del sys.modules["triton"]  # as where it is installed
gpu.enable()
train()
"""


def test_nothing_needs_triton_and_nothing_imports_it_on_a_machine_without_a_gpu():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        capture_output=True,
        text=True,
        env={**os.environ, "WHITENORM_TRITON": "auto"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
