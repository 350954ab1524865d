"""The tests in tests/gpu/interpreted, which run the kernels on the CPU, in a process of their own.

``TRITON_INTERPRET=1 pytest tests/gpu/interpreted`` runs them one by one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

HERE = Path(__file__).parent


@pytest.mark.parametrize("marks", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_what_the_kernels_compute(marks):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", marks, str(HERE / "interpreted")],
        capture_output=True, text=True, env=environment, cwd=HERE.parents[1], check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
