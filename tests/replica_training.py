"""What each replica does in the tests of distributed training."""

import torch

from whitenorm.lab.loading import load
from whitenorm.lab.replicas import Replicas
from whitenorm.lab.training import Trainer


def train_replica(rank, run):
    """The curve and the weights that a replica of a training ends with."""
    trainer = Trainer(run, load(run), torch.device("cpu"), Replicas(rank, run.replicas))
    for _ in trainer.updates():
        pass
    return trainer.history, trainer.model.state_dict()
