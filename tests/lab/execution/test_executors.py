"""Every executor gives the same records."""

import sys

import pytest
from tiny_study import comparables, tiny_study

from whitenorm.lab.execution.executors import ExecutorError, execute_all
from whitenorm.lab.execution.runner import run_study


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    out = tmp_path_factory.mktemp("in-process")
    return comparables(run_study(tiny_study(), "small", out).records)


def test_processes_give_the_same_records(tmp_path, in_process):
    outcome = run_study(tiny_study(), "small", tmp_path, executor="processes", workers=2)
    assert comparables(outcome.records) == in_process


@pytest.mark.slow
def test_a_ray_cluster_gives_the_same_records(tmp_path, in_process):
    pytest.importorskip("ray", reason="Ray is not installed (whitenorm[ray])")
    outcome = run_study(tiny_study(), "small", tmp_path, executor="ray", workers=2)
    assert comparables(outcome.records) == in_process
    again = run_study(tiny_study(), "small", tmp_path, executor="ray", workers=2)
    assert comparables(again.records) == in_process


def test_executors_that_can_not_be_used_say_why(monkeypatch):
    with pytest.raises(ExecutorError, match="unknown executor 'slurm'; there are in-process, pro"):
        list(execute_all("slurm", str, [1], 1))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExecutorError, match=r"pip install 'whitenorm\[ray\]'"):
        list(execute_all("ray", str, [1], 2))
