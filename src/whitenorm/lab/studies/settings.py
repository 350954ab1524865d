r"""Settings that several studies share."""

from collections.abc import Sequence

from whitenorm.lab.records.run import Run, Settings
from whitenorm.lab.studies.study import View

PLAIN: Settings = {"name": "plain"}
BN: Settings = {"name": "bn"}
LOSSES = (1.5, 1.0, 0.7, 0.5)  # goals of convolutional networks, which pictures are shifted for
SUBSET = {"train": 4000, "test": 2000}
CONDITION = "fisher.at_90_percent"
CONDITIONING = View(
    "conditioning",
    "Conditioning of the last layer's Fisher matrix",
    x="iteration",
    y=(CONDITION,),
    log="y",
)
ERRORS = View("errors", "Error in training and testing", y=("train_error", "test_error"))


def mlp(hidden: Sequence[int]) -> Settings:
    """A perceptron with these hidden layers."""
    return {"name": "mlp", "hidden": hidden}


def authors_mlp(hidden: Sequence[int]) -> Settings:
    """The same, initialized as in the authors' scripts."""
    return {**mlp(hidden), "initialization": "uniform"}


def dbn(group_size: int | None, affine: bool = True) -> Settings:
    """DBN with groups of a size, with or without scale and shift."""
    return {"name": "dbn", "group_size": group_size, "affine": affine}


def sgd(lr: float, weight_decay: float) -> Settings:
    """SGD with a momentum of 0.9."""
    return {"name": "sgd", "lr": lr, "momentum": 0.9, "weight_decay": weight_decay}


def steps(at: Sequence[int], factor: float) -> Settings:
    """The learning rate times ``factor`` at each of these epochs."""
    return {"name": "steps", "at": at, "factor": factor}


def cifar_run(model: Settings, optimiser: Settings, schedule: Settings, epochs: int) -> Run:
    """A network with BN on CIFAR-10, with shifted and flipped pictures in batches of 128."""
    dataset = {"name": "cifar10", "preprocess": "channel", "augment": "crop+flip"}
    return Run(dataset, model, BN, optimiser, schedule, batch_size=128, epochs=epochs)


def shrunk(epochs: int, subset: Settings, schedule: Settings) -> Settings:
    """The changes to a run for a short training on some of the pictures, at 16x16."""
    return {"dataset.size": 16, "epochs": epochs, "subset": subset, "schedule": schedule}
