"""Augmentation: what is drawn, and from which generator."""

import pytest
import torch

from whitenorm.lab.data.augment import AUGMENTATIONS, random_crop, random_flip


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_flip_mirrors_about_half_of_the_pictures():
    batch = torch.randn(400, 2, 3, 5)
    out = random_flip(batch, generator())
    same = (out == batch).flatten(1).all(1)
    mirrored = (out == batch.flip(3)).flatten(1).all(1)
    assert (same ^ mirrored).all()
    assert 150 < same.sum() < 250


def test_crop_is_a_window_of_the_reflected_picture_chosen_for_each_one():
    batch = torch.randn(300, 3, 8, 7)
    out = random_crop(batch, generator())
    padded = torch.nn.functional.pad(batch, [4] * 4, mode="reflect")
    places = set()
    for picture, original in zip(out, padded, strict=True):
        found = [
            (i, j)
            for i in range(9)
            for j in range(9)
            if torch.equal(picture, original[:, i : i + 8, j : j + 7])
        ]
        assert found
        places.add(found[0])
    assert len(places) > 70  # of 81


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentation_is_a_function_of_the_generator(name):
    batch = torch.randn(64, 3, 8, 8)
    kept = batch.clone()
    augment = AUGMENTATIONS[name]
    torch.manual_seed(5)
    first = augment(batch, generator(1))
    torch.manual_seed(6)
    assert torch.equal(first, augment(batch, generator(1)))
    assert not torch.equal(first, augment(batch, generator(2)))
    assert first.shape == batch.shape
    assert torch.equal(batch, kept)
