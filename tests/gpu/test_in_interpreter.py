"""The tests in tests/gpu/interpreted, which run the kernels on the CPU, in processes of their own.

``TRITON_INTERPRET=1 pytest tests/gpu/interpreted`` runs them one by one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("interpreted/test_*.py"))


def run(path, marks):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", marks, str(path)],
        capture_output=True, text=True, env=environment, cwd=HERE.parents[1], check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


QUICK = ("test_passes", "test_traffic", "test_values")


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[] if p.stem in QUICK else [pytest.mark.slow]) for p in FILES],
    ids=lambda path: path.stem,
)
def test_what_the_kernels_compute(path):
    run(path, "not slow")


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [p for p in FILES if "slow" in p.read_text()], ids=lambda p: p.stem
)
def test_what_the_kernels_compute_in_more_cases(path):
    run(path, "slow")
