"""A machine without Triton imports and runs everything, and Triton isn't imported unasked."""

import os
import subprocess
import sys

PROGRAM = """
import sys
{before}
import torch, whitenorm
from whitenorm import gpu
layer = whitenorm.DecorrelatedBatchNorm2d(8, group_size=4)
x = torch.randn(4, 8, 3, 3, requires_grad=True)
layer(x).sum().backward()
gpu.enable()
layer(x).sum().backward()
print(gpu.unmet_requirement("cpu"), "whitenorm.gpu.kernels" in sys.modules)
"""


def run(before, **variables):
    environment = {**os.environ, **variables}
    program = PROGRAM.format(before=before)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_needs_triton():
    missing = 'sys.modules["triton"] = None'
    assert run(missing, WHITENORM_TRITON="auto") == "the device is cpu, not cuda False"


def test_kernels_are_not_imported_on_a_machine_without_a_gpu():
    assert run("", WHITENORM_TRITON="auto").endswith("False")
