"""Batches: every example at most once, in an order that a restart repeats."""

from dataclasses import replace

import pytest
import torch
from PIL import Image
from tiny_study import BASE

from whitenorm.lab.data.datasets import synthetic_dataset
from whitenorm.lab.data.images import Pictures, load_imagefolder
from whitenorm.lab.training.batches import Batches
from whitenorm.lab.training.trainer import train

CPU = torch.device("cpu")


def test_an_epoch_has_every_example_at_most_once_and_another_order_each_time():
    data = synthetic_dataset("digits", n=70)
    data = replace(data, train_y=torch.arange(70))
    batches = Batches(data, BASE.changed({"batch_size": 16}), CPU)
    first, second = (torch.cat([y for _, y in batches.epoch(epoch)]) for epoch in (0, 1))
    assert batches.iterations_per_epoch == 4
    assert len(first) == len(first.unique()) == 64
    assert not torch.equal(first, second)
    rest = torch.cat([y for _, y in batches.epoch(0, start=3)])
    assert torch.equal(rest, first[48:])


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="batch_size=64 is more than the 32 training examples"):
        Batches(synthetic_dataset("digits", n=32), BASE, CPU)


def test_pictures_are_read_from_disk_in_the_same_order_after_a_restart(tmp_path):
    for part, count in (("train", 7), ("val", 2)):
        for name in "ab":
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                colour = (30 * i, 200 if name == "a" else 0, 90)
                Image.new("RGB", (12, 10), colour).save(tmp_path / part / name / f"{i}.png")
    dataset = Pictures(
        "tree",
        load_imagefolder(tmp_path, "train", 8, train=True, seed=3),
        load_imagefolder(tmp_path, "val", 8),
        workers=0,
    )
    run = BASE.changed({"batch_size": 4, "seed": 3})
    batches = list(Batches(dataset, run, CPU).epoch(1))
    assert [len(x) for x, _ in batches] == [4, 4, 4]
    (x, y), *_ = Batches(dataset, run, CPU).epoch(1, start=2)
    assert torch.equal(x, batches[2][0])
    assert torch.equal(y, batches[2][1])
    outcome = train(run.changed({"epochs": 2, "subset": {}}), dataset)
    assert outcome.status == "finished"
    assert len(outcome.history["test_error"]) == 2
