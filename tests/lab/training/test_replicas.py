"""Several processes train as one: shared batches, exact counts, resumed to the bit, no hangs."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from replica_training import stop_and_resume_replica, train_replica
from replicas import run_replicas
from tiny_study import BASE, assert_same, without_times
from typer.testing import CliRunner

from whitenorm.lab.cli import app
from whitenorm.lab.data.datasets import synthetic_dataset
from whitenorm.lab.data.for_run import load
from whitenorm.lab.execution.jobs import checkpoint_path
from whitenorm.lab.records.record import RecordFile
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.batches import Batches
from whitenorm.lab.training.checkpoints import Checkpoint
from whitenorm.lab.training.replicas import Replicas
from whitenorm.lab.training.trainer import Trainer, train

CPU = torch.device("cpu")
DBN = BASE.changed(
    {
        "method": {"name": "dbn", "group_size": 8},
        "optimiser": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
        "epochs": None,
        "iterations": 5,
        "evaluate_every": 1,
        "precision": "float64",
        "subset": {"train": 512, "test": 129},
    }
)
SHARED = {"replicas": 2, "synchronized": True}


# --- the same as one process --------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch_size": 63},  # shares of 32 and 31
        {"batch_size": None},
        {"method.running": "covariance"},
    ],
    ids=["even", "uneven", "all examples", "running covariance"],
)
def test_two_synchronised_replicas_train_as_one_process_with_the_joint_batch(changes):
    run = DBN.changed(changes)
    alone = train(run, load(run))
    together = run_replicas(train_replica, 2, run.changed(SHARED))
    for history, _ in together:  # every replica knows the losses and errors of all
        for name, values in alone.history.items():
            if name != "seconds":
                assert history[name] == pytest.approx(values, rel=1e-6), name


def test_replicas_of_their_own_statistics_keep_the_same_weights():
    """The default, as on the paper's GPUs: each normalizes its part, gradients are averaged."""
    run = DBN.changed({"method": {"name": "bn"}, "replicas": 2})
    (first, weights), (second, others) = run_replicas(train_replica, 2, run)
    assert first["train_loss"] == second["train_loss"]
    assert_same(weights, others)
    alone = train(run.changed({"replicas": 1}), load(run))
    assert first["train_loss"] != pytest.approx(alone.history["train_loss"], rel=1e-6)


def test_parts_of_a_share_add_up_to_it():
    run = BASE.changed({"precision": "float64", "epochs": 1, "replicas": 2})
    (once, _), _ = run_replicas(train_replica, 2, run)
    (parts, _), _ = run_replicas(train_replica, 2, run.changed({"accumulate": 4}))
    assert parts["train_loss"] == pytest.approx(once["train_loss"], rel=1e-9)


def test_stopped_replicas_go_on_as_if_they_had_not_been(tmp_path):
    """One of two is asked to stop in the second of four epochs: both do, and resume to the bit."""
    run = RUN.changed({"replicas": 2})
    for straight, resumed, last, next_one in run_replicas(
        stop_and_resume_replica, 2, run, tmp_path, 30
    ):
        assert (last, next_one) == (30, 31)
        for history in (straight, resumed):
            history.pop("seconds")
        assert resumed == straight
    ends = [Checkpoint(tmp_path / name).load(run, CPU) for name in ("straight", "stopped")]
    for part in ("model", "optimiser", "replicas"):
        assert_same(*(end[part] for end in ends))


def test_shares_are_a_partition_of_each_batch_and_of_the_test_set():
    data = synthetic_dataset("digits", n=70)
    run = BASE.changed({"batch_size": 10})
    alone = Batches(data, run, CPU)
    shares = [Batches(data, run, CPU, Replicas(rank, 3)) for rank in range(3)]
    for (x, y), *parts in zip(alone.epoch(2), *(s.epoch(2) for s in shares), strict=True):
        assert [len(part) for part, _ in parts] == [4, 3, 3]
        assert torch.equal(torch.cat([part for part, _ in parts]), x)
        assert torch.equal(torch.cat([labels for _, labels in parts]), y)
    parts = [part for share in shares for part in share.test_parts(1005, 100)]
    assert sorted(i for part in parts for i in part) == list(range(1005))


def test_what_replicas_can_not_do_is_refused():
    run = BASE.changed({"replicas": 2})
    with pytest.raises(
        ValueError, match=r"for 2 replicas, and there are 1: start it with torchrun"
    ):
        Trainer(run, load(run), CPU)
    with pytest.raises(ValueError, match="synchronized=True needs several replicas"):
        Trainer(BASE.changed({"synchronized": True}), load(BASE), CPU)
    with pytest.raises(ValueError, match="batch_size=2 leaves nothing to some of 3 replicas"):
        Batches(load(BASE), BASE.changed({"batch_size": 2}), CPU, Replicas(0, 3))
    natural = BASE.changed({"method": {"name": "nnn"}, "replicas": 2})
    with pytest.raises(
        ValueError, match=r"method 'nnn' changes weights by what it sees of a batch"
    ):
        Trainer(natural, load(BASE), CPU, Replicas(0, 2))


# --- torchrun -----------------------------------------------------------------------------------

SETTINGS = (
    *("--dataset", "digits", "--model", "mlp", "--method", "dbn", "--lr", "0.1"),
    *("--momentum", "0.9", "--epochs", "4", "--batch-size", "64", "--checkpoint-every", "0"),
    *("--set", "model.hidden=[32,32]", "--set", "method.group_size=8", "--set", "seed=3"),
    *("--threads", "1", "--device", "cpu"),
)
RUN = Run(
    {"name": "digits"},
    {"name": "mlp", "hidden": [32, 32]},
    {"name": "dbn", "group_size": 8},
    {"name": "sgd", "lr": 0.1, "momentum": 0.9},
    epochs=4,
    batch_size=64,
    seed=3,
)


def command(replicas, out, *more):
    start = [sys.executable]
    if replicas > 1:
        start += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={replicas}"]
    return [*start, "-m", "whitenorm.lab", "train", *SETTINGS, "--out", str(out), *more]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def recorded(out, run):
    (record,) = RecordFile.of(out, "train", "single").read().values()
    assert record.id == run.id
    return record, Checkpoint(checkpoint_path(out, run)).load(run, CPU)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_killed_training_ends_as_if_it_had_not_been(tmp_path, replicas):
    """SIGKILL after two of four epochs or more: the same weights, optimiser and record."""
    run = RUN.changed({"replicas": replicas})
    subprocess.run(command(replicas, tmp_path / "straight"), env=environment(), check=True)
    path = checkpoint_path(tmp_path / "killed", run)
    process = subprocess.Popen(
        command(replicas, tmp_path / "killed"), env=environment(), start_new_session=True
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if path.exists() and Checkpoint(path).load(run, CPU)["iteration"] >= 44:
            break
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not RecordFile.of(tmp_path / "killed", "train", "single").read()
    done = Checkpoint(path).load(run, CPU)["iteration"]
    assert 44 <= done < 88
    subprocess.run(
        command(replicas, tmp_path / "killed", "--resume"), env=environment(), check=True
    )
    (straight, expected), (resumed, state) = (
        recorded(tmp_path / name, run) for name in ("straight", "killed")
    )
    assert without_times(resumed) == without_times(straight)
    for part in ("model", "optimiser", "replicas"):
        assert_same(state[part], expected[part])


FAILING = """
import torch
from torch.distributed.elastic.multiprocessing.errors import record
from whitenorm.lab.training.replicas import joined

@record
def main():
    with joined("cpu") as (replicas, _):
        if not replicas.main:
            raise RuntimeError("the second replica has had enough")
        replicas.add(torch.zeros(1))  # waits for the other

main()
"""


def test_a_replicas_failure_ends_the_job_with_its_error(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(FAILING)
    begun = time.monotonic()
    done = subprocess.run(
        [*command(2, tmp_path)[:5], script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert "the second replica has had enough" in done.stderr
    assert time.monotonic() - begun < 90


def test_an_error_of_a_training_is_said_once_and_ends_it(tmp_path):
    done = subprocess.run(
        command(2, tmp_path, "--set", "batch_size=5000"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert "batch_size=5000 is more than the 1437 training examples of digits" in done.stderr


def test_the_events_of_tensorboard_are_the_points_of_the_record(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    done = CliRunner().invoke(app, ["train", *SETTINGS, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    record, _ = recorded(tmp_path, RUN)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard" / RUN.id))
    events.Reload()
    for tag, column in (("train/loss", "train_loss"), ("test/error", "test_error")):
        scalars = events.Scalars(tag)
        assert [scalar.step for scalar in scalars] == record.history["iteration"]
        assert [scalar.value for scalar in scalars] == pytest.approx(record.history[column])
