"""Data sets in memory: preprocessing, splits, synthetic twins, the real data."""

import os

import numpy as np
import pytest
import torch
from datafiles import write_cifar, write_faces

from whitenorm.diagnostics import mean_correlation
from whitenorm.lab.data import datasets as data
from whitenorm.lab.data.augment import AUGMENTATIONS
from whitenorm.lab.data.datasets import DATASETS, Dataset, load_dataset, synthetic_dataset
from whitenorm.lab.data.sources import status

# --- preprocessing ------------------------------------------------------------------------------


def test_faces_lose_the_mean_of_each_pixel(tmp_path):
    write_faces(tmp_path / "yaleb" / "YaleB_32x32.mat")
    raw = load_dataset("yaleb", tmp_path, preprocess="none")
    loaded = load_dataset("yaleb", tmp_path)
    mean = raw.train_x.mean(0)
    assert mean.std() > 0.01
    torch.testing.assert_close(loaded.train_x, raw.train_x - mean)
    torch.testing.assert_close(loaded.test_x, raw.test_x - mean)


def test_digits_need_no_file(monkeypatch):
    monkeypatch.delenv("WHITENORM_DATA", raising=False)
    loaded = load_dataset("digits")
    assert loaded.train_x.shape == (1437, 1, 8, 8)
    assert loaded.test_x.shape == (360, 1, 8, 8)
    assert loaded.train_y.bincount().min() > 100
    again = load_dataset("digits")
    assert torch.equal(loaded.test_x, again.test_x)


def test_patches_of_photographs_need_no_file_and_lose_only_the_mean_of_all(monkeypatch):
    monkeypatch.delenv("WHITENORM_DATA", raising=False)
    loaded = load_dataset("photographs")
    assert loaded.train_x.shape == (2250, 1, 12, 12)
    assert loaded.test_x.shape == (750, 1, 12, 12)
    assert loaded.train_y.bincount().tolist() == [1125, 1125]
    assert loaded.test_y.bincount().tolist() == [375, 375]
    assert loaded.train_x.mean().abs() < 1e-6
    assert loaded.train_x.mean((1, 2, 3)).std() > 0.1  # a patch keeps its brightness
    assert torch.equal(loaded.test_x, load_dataset("photographs").test_x)


def test_pixels_of_photographs_are_correlated_and_those_of_digits_hardly():
    photographs, digits = (
        mean_correlation(load_dataset(name).train_x.flatten(1))
        for name in ("photographs", "digits")
    )
    assert photographs > 0.8
    assert digits < 0.2


@pytest.mark.parametrize(("preprocess", "dims"), [("channel", (0, 2, 3)), ("pixel-std", (0,))])
def test_standardised_pictures_have_mean_0_and_deviation_1(
    tmp_path, monkeypatch, preprocess, dims
):
    write_cifar(tmp_path, monkeypatch, "cifar10")
    loaded = load_dataset("cifar10", tmp_path, preprocess=preprocess)
    assert loaded.train_x.mean(dims).abs().max() < 1e-5
    torch.testing.assert_close(
        loaded.train_x.std(dims, correction=0), torch.ones(loaded.train_x.mean(dims).shape)
    )
    assert loaded.test_x.mean(dims).abs().max() > 1e-3  # by the training set's statistics


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("svhn", {}, "unknown data set 'svhn'; there are digits, photographs, mnist"),
        ("digits", {"crop": True}, "'digits' has no option 'crop'; it has size, preprocess"),
        ("digits", {"augment": "cutout"}, "augment must be one of None, 'flip', .*, got 'cutout'"),
        ("digits", {"preprocess": "zca"}, "preprocess must be one of 'none', .*, got 'zca'"),
    ],
)
def test_unknown_names_and_options_are_listed(name, options, message):
    with pytest.raises(ValueError, match=message):
        load_dataset(name, **options)


# --- the data set -------------------------------------------------------------------------------


def test_validation_holds_out_training_examples_and_forgets_the_test_set():
    x = torch.arange(20.0).view(20, 1, 1, 1)
    whole = Dataset("d", x, x.flatten().long(), x[:3] + 100, torch.zeros(3).long(), 20)
    split = whole.validation(5, seed=3)
    assert len(split.test_x) == 5
    together = torch.cat([split.train_y, split.test_y])
    assert together.sort().values.tolist() == list(range(20))
    assert torch.equal(split.test_x.flatten().long(), split.test_y)
    assert torch.equal(split.test_y, whole.validation(5, seed=3).test_y)
    assert not torch.equal(split.test_y, whole.validation(5, seed=4).test_y)
    with pytest.raises(ValueError, match=r"from 1 to 19 .*, got 20"):
        whole.validation(20, seed=0)


@pytest.mark.parametrize("name", DATASETS)
def test_synthetic_data_has_the_shape_of_the_real_one(name):
    made = synthetic_dataset(name, n=6, seed=1)
    row = DATASETS[name]
    side = row.options["size"]
    assert made.train_x.shape == made.test_x.shape == (6, row.shape[0], side, side)
    assert made.num_classes == row.num_classes
    assert made.train_y.max() < made.num_classes
    assert made.train_x.isfinite().all()
    assert torch.equal(made.train_x, synthetic_dataset(name, n=6, seed=1).train_x)
    assert not torch.equal(made.train_x, synthetic_dataset(name, n=6, seed=2).train_x)


def test_synthetic_data_takes_the_options_of_the_real_one():
    made = synthetic_dataset("cifar10", n=8, size=16, augment="crop+flip", preprocess="pixel")
    assert made.input_shape == (3, 16, 16)
    assert made.augment is AUGMENTATIONS["crop+flip"]
    assert made.train_x.mean(0).abs().max() < 1e-6


def test_adding_a_data_set_takes_a_row(monkeypatch):
    def read(root):
        x, y = np.full((4, 1, 2, 2), 7, np.uint8), np.arange(4)
        return (x, y), (x, y)

    options = {"size": 2, "preprocess": "none", "augment": None}
    monkeypatch.setitem(DATASETS, "sevens", data.Row(read, (1, 2, 2), 4, options, levels=7))
    assert torch.equal(load_dataset("sevens").train_x, torch.ones(4, 1, 2, 2))
    assert synthetic_dataset("sevens", n=2).input_shape == (1, 2, 2)


# --- the real data ------------------------------------------------------------------------------


def real_data(name):
    root = os.environ.get("WHITENORM_DATA")
    if not root:
        pytest.skip("WHITENORM_DATA is not set: no real data to read")
    row = next(row for row in status(root) if row.name == name)
    if row.state != "present":
        pytest.skip(f"{name} is {row.state} in {row.path}")
    return load_dataset(name, root)


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        ("mnist", (60000, 1, 32, 32), 10000),
        ("cifar10", (50000, 3, 32, 32), 10000),
        ("yaleb", (2034, 1, 32, 32), 380),
        ("pie", (10194, 1, 32, 32), 1360),
        ("tiny-imagenet-20", (2000, 3, 64, 64), 1000),
    ],
)
def test_real_data_has_the_published_shape(name, train, test):
    loaded = real_data(name)
    assert loaded.train_x.shape == train
    assert len(loaded.test_x) == test
    assert torch.equal(loaded.train_y.unique(), torch.arange(loaded.num_classes))
    assert torch.equal(loaded.test_y.unique(), torch.arange(loaded.num_classes))
    assert loaded.train_x.mean().abs() < 1e-4
    assert abs(loaded.test_x.mean()) < 0.05


def test_real_faces_are_upright():
    """Eyes and mouth are horizontal, so rows differ more from each other than columns do."""
    root = os.environ.get("WHITENORM_DATA")
    for name in ("yaleb", "pie"):
        real_data(name)
        face = load_dataset(name, root, preprocess="none").train_x.mean(0)[0, 6:-6, 6:-6]
        assert face.mean(1).std() > 1.5 * face.mean(0).std()
        turned = [face, face.flip(1), face.flip(0)]
        _, mirrored, upside_down = torch.corrcoef(torch.stack(turned).flatten(1))[0]
        assert mirrored > upside_down + 0.2
