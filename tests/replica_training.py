"""What each replica does in the tests of distributed training."""

import torch

from whitenorm.lab.data.for_run import load
from whitenorm.lab.training.replicas import Replicas
from whitenorm.lab.training.trainer import Trainer


def train_replica(rank, run):
    """The curve and the weights that a replica of a training ends with."""
    trainer = Trainer(run, load(run), torch.device("cpu"), Replicas(rank, run.replicas))
    for _ in trainer.iterations():
        pass
    return trainer.history, trainer.model.state_dict()
