r"""Settings that several studies of convolutional networks share."""

from __future__ import annotations

from collections.abc import Sequence

from whitenorm.lab.records.run import Settings
from whitenorm.lab.studies.study import View

__all__ = ["BN", "ERRORS", "SUBSET", "dbn", "sgd", "steps"]

BN: Settings = {"name": "bn"}
SUBSET = {"train": 4000, "test": 2000}
ERRORS = View(
    "errors", "Error in training (solid) and testing (dashed)", y=("train_error", "test_error")
)


def dbn(group_size: int, affine: bool = True) -> Settings:
    """DBN with groups of a size, with or without scale and shift."""
    return {"name": "dbn", "group_size": group_size, "affine": affine}


def sgd(lr: float, weight_decay: float, nesterov: bool = False) -> Settings:
    """SGD with a momentum of 0.9."""
    settings = {"name": "sgd", "lr": lr, "momentum": 0.9, "weight_decay": weight_decay}
    return settings | ({"nesterov": True} if nesterov else {})


def steps(at: Sequence[int], factor: float) -> Settings:
    """The learning rate times ``factor`` at each of these epochs."""
    return {"name": "steps", "at": list(at), "factor": factor}
