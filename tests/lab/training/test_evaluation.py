"""Precision, and what is counted on the test set."""

import pytest
import torch
from tiny_study import BASE

from whitenorm.lab.data.datasets import synthetic_dataset
from whitenorm.lab.data.for_run import load, synthesize
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.trainer import Trainer, train

DBN = BASE.changed({"method": {"name": "dbn", "group_size": 8}})


@pytest.mark.parametrize("precision", ["float64", "bf16"])
def test_precisions_differ_by_their_rounding(precision):
    run = DBN.changed({"epochs": 1})
    usual = train(run, load(run)).final["train_loss"]
    other = train(run.changed({"precision": precision}), load(run)).final["train_loss"]
    tolerance = {"float64": 1e-4, "bf16": 0.05}[precision]
    assert 0 < abs(other - usual) < tolerance * usual


def test_top_5_errors_count_the_five_best():
    run = BASE.changed({"dataset": {"name": "yaleb"}, "subset": {}, "epochs": 1, "batch_size": 8})
    final = train(run, synthesize(run, 64)).final
    assert 0 < final["test_top5_error"] < final["test_error"] <= 100


def test_channels_last_changes_nothing_but_the_layout():
    run = Run(
        {"name": "cifar10"},
        {"name": "resnet", "depth": 8, "placement": "all"},
        {"name": "dbn"},
        batch_size=8,
        epochs=1,
        precision="float64",
    )
    data = synthetic_dataset("cifar10", n=16)
    usual, last = (train(run.changed({"channels_last": flag}), data) for flag in (False, True))
    assert last.history["train_loss"] == pytest.approx(usual.history["train_loss"], rel=1e-9)
    trainer = Trainer(run.changed({"channels_last": True}), data, torch.device("cpu"))
    convolutions = [m for m in trainer.model.modules() if isinstance(m, torch.nn.Conv2d)]
    kernels = [m.weight for m in convolutions if m.kernel_size != (1, 1) and m.in_channels > 1]
    assert kernels
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in kernels)
