"""A study through everything that may happen to it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_study import EPOCHS, comparables, tiny_study

from whitenorm.lab.data.for_run import missing
from whitenorm.lab.data.sources import DataError
from whitenorm.lab.execution.jobs import checkpoint_path
from whitenorm.lab.execution.runner import Observer, run_study, trace_path
from whitenorm.lab.networks.methods import METHODS, Row
from whitenorm.lab.records.record import RecordFile
from whitenorm.lab.records.run import Run
from whitenorm.lab.studies.catalogue import STUDIES
from whitenorm.lab.studies.results import Results

TESTS = Path(__file__).parents[2]
SOURCE = TESTS.parent / "src"


class Counter(Observer):
    def __init__(self):
        self.phases, self.ran = [], []

    def phase(self, name, plan, runs, finished):
        self.phases.append((name, len(runs), finished))

    def record(self, record):
        self.ran.append(record.id)


# --- the two phases -----------------------------------------------------------------------------


def test_the_grid_chooses_and_then_the_seeds_run(tmp_path):
    counter = Counter()
    study = tiny_study()
    outcome = run_study(study, "small", tmp_path, observer=counter)
    # 3 curves x 2 rates; then 3 x 3 seeds, of which the first have run.
    assert counter.phases == [("grid", 6, 0), ("seeds", 9, 3)]
    assert len(counter.ran) == len(set(counter.ran)) == len(outcome.records) == 12
    results = Results(study, "small", outcome.records)
    for _, curve in results.scale.curves():
        scores = {score: point for point, _, score in results.choice(curve).scores}
        assert results.choice(curve).point == scores[min(scores)]
        assert [r.run.seed for r in results.records(curve)] == [0, 1, 2]
    assert results.others == []


def test_what_is_recorded_is_not_run_again(tmp_path):
    study = tiny_study(epochs=1)
    first = run_study(study, "small", tmp_path, seeds=1)
    counter = Counter()
    second = run_study(study, "small", tmp_path, seeds=2, observer=counter)
    assert counter.phases == [("grid", 6, 6), ("seeds", 6, 3)]
    assert len(counter.ran) == 3
    assert set(first.records) < set(second.records)
    assert comparables(RecordFile.of(tmp_path, "tiny", "small").read()) == comparables(
        second.records
    )


def test_nothing_is_left_of_the_work_but_records(tmp_path):
    run_study(tiny_study(epochs=1), "small", tmp_path, seeds=1, checkpoint_every=0)
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith(".")) == [
        "checkpoints",
        "records",
    ]
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_failed_run_is_told_and_tried_again(tmp_path, monkeypatch):
    class Broken(torch.nn.Module):
        def forward(self, input):
            raise RuntimeError("no such kernel")

    good = METHODS["bn"]
    bad = Row(good.options, lambda **_: {"norm": lambda features, dims: Broken()})
    monkeypatch.setitem(METHODS, "bn", bad)
    study = tiny_study(epochs=1)
    outcome = run_study(study, "small", tmp_path, seeds=1)
    assert [f.run.method["name"] for f in outcome.failures] == ["bn", "bn"]
    assert outcome.failures[0].error == "RuntimeError: no such kernel"
    assert "in forward" in outcome.failures[0].trace
    assert "in forward" in trace_path(tmp_path, outcome.failures[0].run).read_text()
    assert len(outcome.records) == 4  # plain and DBN; seeds wait for the whole grid
    monkeypatch.setitem(METHODS, "bn", good)
    outcome = run_study(study, "small", tmp_path, seeds=1)
    assert not outcome.failures
    assert len(outcome.records) == 6


def test_missing_data_is_said_before_anything_runs(tmp_path):
    with pytest.raises(DataError, match=r"no data for fig3: MNIST is missing at .*mnist"):
        run_study(STUDIES["fig3"], "small", tmp_path / "out", data=tmp_path)
    assert not (tmp_path / "out").exists()
    assert set(missing(["none", "digits", "mnist"], tmp_path)) == {"mnist"}


def test_panels_without_data_are_left_out_and_named(tmp_path):
    study = STUDIES["fig2"]
    outcome = run_study(study, "paper", tmp_path / "out", data=tmp_path, seeds=1)
    assert list(outcome.left_out) == ["mnist"]
    assert {r.run.task for r in outcome.records.values()} == {"illustration"}


def test_panels_run_apart_have_the_records_that_they_have_together(tmp_path):
    panels = tuple(
        replace(tiny_study(epochs=epochs).scales["small"].panels[0], name=name)
        for name, epochs in {"one": 1, "two": 2}.items()
    )
    study = tiny_study()
    study = replace(study, scales={"small": replace(study.scales["small"], panels=panels)})
    together = run_study(study, "small", tmp_path / "together", seeds=1).records
    first = run_study(study, "small", tmp_path / "apart", seeds=1, panels=["two"]).records
    assert {record.run.epochs for record in first.values()} == {2}
    both = run_study(study, "small", tmp_path / "apart", seeds=1, panels=["one"]).records
    assert comparables(both) == comparables(together)


# --- being killed -------------------------------------------------------------------------------


@contextmanager
def started(out):
    path = os.pathsep.join([str(SOURCE), str(TESTS)])
    process = subprocess.Popen(
        [sys.executable, "-m", "tiny_study", str(out)],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def children(parent):
    """Worker processes of a process."""
    found = subprocess.run(
        ["ps", "-ww", "-o", "pid=", "-o", "args=", "--ppid", str(parent)],
        capture_output=True,
        text=True,
    )
    return [int(line.split()[0]) for line in found.stdout.splitlines() if "LokyProcess" in line]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_study_ends_as_if_it_had_not_been(tmp_path):
    """SIGKILL half-way; then to the end, and against one that nobody killed."""
    file = RecordFile.of(tmp_path / "killed", "tiny", "small")
    deadline = time.monotonic() + 120
    with started(tmp_path / "killed") as process:
        while len(file.read()) < 4:
            assert process.poll() is None, process.stderr.read().decode()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        workers = children(process.pid)
        assert len(workers) == 2
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert 0 < len(file.read()) < 12
    while any(map(alive, workers)):  # they don't outlive the process that asked for their work
        assert time.monotonic() < deadline
        time.sleep(0.02)
    survivors = file.path.read_bytes()
    study = tiny_study(epochs=EPOCHS)
    outcome = run_study(study, "small", tmp_path / "killed")
    straight = run_study(study, "small", tmp_path / "straight")
    assert comparables(outcome.records) == comparables(straight.records)
    lines = file.path.read_bytes()
    assert lines.startswith(survivors)  # append-only
    assert len(file.read()) == lines.count(b"\n") == 12  # none lost, none twice
    assert list((tmp_path / "killed" / "checkpoints").iterdir()) == []


def test_a_study_that_version_0_1_began_is_ended_by_this_one(tmp_path):
    """Four records and a checkpoint at iteration 20 of 32, as that version left them."""
    shutil.copytree(Path(__file__).parent / "interrupted-0.1", tmp_path, dirs_exist_ok=True)
    file = RecordFile.of(tmp_path, "tiny", "small")
    recorded, before = file.read(), file.path.read_bytes()
    (path,) = (tmp_path / "checkpoints").iterdir()
    begun = torch.load(path, weights_only=True)
    run = Run(**begun["run"])
    assert path == checkpoint_path(tmp_path, run)
    assert (len(recorded), begun["iteration"]) == (4, 20)

    counter = Counter()
    outcome = run_study(tiny_study(), "small", tmp_path, observer=counter)

    assert counter.phases == [("grid", 6, 4), ("seeds", 9, 3)]
    assert not set(counter.ran) & set(recorded)
    assert file.path.read_bytes().startswith(before)
    record = outcome.records[run.id]
    assert record.history["iteration"] == [8, 16, 24, 32]
    for name, column in begun["history"].items():  # times among them, which no fresh start repeats
        assert record.history[name][: len(column)] == column
    assert record.history["seconds"][2] > begun["seconds"] > begun["history"]["seconds"][-1]
    assert len(outcome.records) == len(file.read()) == 12
    assert not outcome.failures
    assert list((tmp_path / "checkpoints").iterdir()) == []


# --- the real data ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_small_study_runs_to_its_end(name, tmp_path):
    study = STUDIES[name]
    absent = missing(study.scales["small"].datasets())
    if len(absent) == len(study.scales["small"].datasets()):
        pytest.skip(f"no data: {', '.join(absent.values())}")
    outcome = run_study(study, "small", tmp_path, executor="processes", workers=os.cpu_count())
    assert not outcome.failures
    results = Results(study, "small", outcome.records)
    for panel, curve in results.scale.curves():
        if curve.run.dataset["name"] not in absent:
            assert len(results.records(curve)) == results.scale.seeds, (panel.name, curve.label)
    assert results.others == []
    for claim in study.claims:
        assert claim.judge(results).status != "not tested"
