"""What each replica does in the tests of distributed training."""

import pytest
import torch

from whitenorm.lab.data.for_run import load
from whitenorm.lab.training.checkpoints import Checkpoint
from whitenorm.lab.training.replicas import Replicas
from whitenorm.lab.training.trainer import Interrupted, Trainer, train


def train_replica(rank, run):
    """The curve and the weights that a replica of a training ends with."""
    trainer = Trainer(run, load(run), torch.device("cpu"), Replicas(rank, run.replicas))
    for _ in trainer.iterations():
        pass
    return trainer.history, trainer.model.state_dict()


def stop_and_resume_replica(rank, run, path, updates):
    """The curves of a replica that trains straight, and of one that is stopped and goes on.

    The last replica alone is asked to stop; the states that both end with are in files.
    """
    replicas = Replicas(rank, run.replicas)
    seen = []

    def go(name, stop=None):
        checkpoint = Checkpoint(path / name, final=True)
        return train(
            run,
            load(run),
            checkpoint=checkpoint,
            watch=lambda trainer: seen.append(trainer.iteration),
            stop=stop,
            replicas=replicas,
        )

    straight = go("straight")
    seen.clear()
    with pytest.raises(Interrupted):
        go("stopped", lambda: rank == run.replicas - 1 and len(seen) == updates)
    stopped_at = seen[-1]
    return straight.history, go("stopped").history, stopped_at, seen[stopped_at]
