"""Checkpoints: whole, of this run, and data alone."""

import errno
import os

import pytest
import torch
from tiny_study import BASE

from whitenorm.lab.data.for_run import load
from whitenorm.lab.training.checkpoints import Checkpoint, CheckpointError
from whitenorm.lab.training.trainer import Trainer, train

CPU = torch.device("cpu")
DBN = BASE.changed({"method": {"name": "dbn", "group_size": 8}})


def saved(path):
    checkpoint = Checkpoint(path)
    checkpoint.save(BASE, Trainer(BASE, load(BASE), CPU).state_dict())
    return checkpoint


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    saved(tmp_path / "c.pt")
    with pytest.raises(
        CheckpointError, match=r"c.pt is of another run: its method is .*plain.*, not .*dbn"
    ):
        train(DBN, load(DBN), checkpoint=Checkpoint(tmp_path / "c.pt"))


def test_a_broken_checkpoint_is_refused(tmp_path):
    checkpoint = saved(tmp_path / "c.pt")
    whole = checkpoint.path.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"not a checkpoint"):
        checkpoint.path.write_bytes(broken)
        with pytest.raises(CheckpointError, match=r"c.pt isn't a whole checkpoint"):
            checkpoint.load(BASE, CPU)


def test_a_checkpoint_is_data_not_code(tmp_path):
    """A pickle that would run something when loaded is refused."""

    class Malice:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "pwned"),))

    torch.save({"format": 1, "run": BASE.settings(), "model": Malice()}, tmp_path / "c.pt")
    with pytest.raises(CheckpointError):
        Checkpoint(tmp_path / "c.pt").load(BASE, CPU)
    assert not (tmp_path / "pwned").exists()


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    checkpoint = saved(tmp_path / "c.pt")
    before = checkpoint.path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("whitenorm.lab.training.checkpoints.os.fsync", full)
    with pytest.raises(CheckpointError, match=r"No space left on device; the checkpoint before"):
        checkpoint.save(BASE, {"iteration": 99})
    assert checkpoint.path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [checkpoint.path]
