"""What a run uses of a data set: subsets, a held-out part, pictures on disk, a stand-in."""

import numpy as np
import pytest
import torch
from PIL import Image

from whitenorm.lab.data.datasets import Dataset, load_dataset
from whitenorm.lab.data.for_run import load, missing, synthesize
from whitenorm.lab.data.images import Pictures
from whitenorm.lab.records.run import Run

MODEL, METHOD = {"name": "mlp"}, {"name": "plain"}
NONE = Run({"name": "none"}, MODEL, METHOD, epochs=1)
DIGITS = Run({"name": "digits"}, MODEL, METHOD, epochs=1)
STREAMED = Run(
    {"name": "tiny-imagenet-20", "stream": True, "size": 8}, MODEL, METHOD, epochs=1, seed=3
)


@pytest.fixture
def tree(tmp_path):
    """Two classes of a picture each, where tiny-imagenet-20 is looked for."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), np.uint8)
    for split in ("train", "val"):
        for name in ("a", "b"):
            folder = tmp_path / "tiny-imagenet-20" / split / name
            folder.mkdir(parents=True)
            Image.fromarray(pixels).save(folder / "1.png")
    return tmp_path


def test_a_run_without_data_gets_none():
    assert load(NONE) is None
    assert synthesize(NONE, 4) is None


def test_a_subset_is_the_same_random_part_each_time():
    whole = load(DIGITS)
    part = load(DIGITS.changed({"subset": {"train": 64, "test": 16}, "seed": 1}))
    again = load(DIGITS.changed({"subset": {"train": 64}}))
    assert len(part.train_x) == len(part.train_y) == 64
    assert len(part.test_x) == len(part.test_y) == 16
    assert torch.equal(part.train_x, again.train_x)
    assert len(again.test_x) == len(whole.test_x)
    assert not torch.equal(part.train_x, whole.train_x[:64])


def test_the_held_out_part_takes_the_place_of_the_test_set():
    held_out = load(DIGITS.changed({"validation": 100}))
    whole = load_dataset("digits")
    assert len(held_out.test_x) == 100
    assert len(held_out.train_x) == len(whole.train_x) - 100
    assert torch.equal(held_out.test_y, whole.validation(100, seed=0).test_y)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subset": {"train": 5000}}, "digits has 1437 train examples, 5000 were asked for"),
        ({"subset": {"valid": 5}}, "subset must be one of 'train', 'test', got 'valid'"),
        ({"validation": 1437}, "n must be from 1 to 1436"),
        ({"dataset.name": "svhn"}, "unknown data set 'svhn'"),
    ],
)
def test_what_cannot_be_had_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        load(DIGITS.changed(changes))


def test_streamed_pictures_stay_on_disk_and_take_the_seed_of_the_run(tree):
    data = load(STREAMED, tree)
    assert isinstance(data, Pictures)
    assert data.input_shape == (3, 8, 8)
    assert data.num_classes == 2
    assert data.train.train
    assert data.train.seed == 3
    assert not data.test.train


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subset": {"train": 1}}, "neither subset nor validation"),
        ({"validation": 1}, "neither subset nor validation"),
        ({"dataset.augment": "flip"}, "has no option 'augment'; it has size, colour"),
    ],
)
def test_what_a_streamed_data_set_cannot_do_is_refused(tree, changes, message):
    with pytest.raises(ValueError, match=message):
        load(STREAMED.changed(changes), tree)


@pytest.mark.parametrize("run", [DIGITS, STREAMED, STREAMED.changed({"dataset.colour": True})])
def test_a_stand_in_has_the_shape_that_the_run_asks_for(run):
    made = synthesize(run, 6)
    assert isinstance(made, Dataset)
    assert made.train_x.shape[0] == 6
    assert made.input_shape[1:] == (8, 8)


def test_missing_data_is_named_with_what_to_do(tree):
    found = missing(["none", "digits", "mnist", "pie", "tiny-imagenet-20"], tree)
    assert list(found) == ["mnist", "pie"]
    assert "MNIST is missing at" in found["mnist"]
    assert "whitenorm data --fetch mnist" in found["mnist"]
    assert "--fetch" not in found["pie"]
    with pytest.raises(ValueError, match="unknown data set 'svhn'; there are digits"):
        missing(["svhn"])
