"""Pictures on disk: the tree, the crops, the workers, and what is wrong with a broken file."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from whitenorm.lab.data import images
from whitenorm.lab.data.images import DEVIATION, MEAN, load_imagefolder, read_imagefolder
from whitenorm.lab.data.sources import SOURCES, DataError, Source

random = np.random.default_rng(0)


def save(path, size=(40, 30), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = random.bytes(size[0] * size[1] * len(mode))
    Image.frombytes(mode, size, pixels).save(path, "JPEG", quality=95)


@pytest.fixture
def tree(tmp_path):
    for split, count in (("train", 3), ("val", 2)):
        for name in ("n02", "n01"):
            for i in range(count):
                save(tmp_path / split / name / f"{name}_{i}.JPEG")
    return tmp_path


def test_classes_are_numbered_by_name_and_pictures_are_in_order(tree):
    (tree / "train" / "n01" / "notes.txt").write_text("no picture")
    split = load_imagefolder(tree, "train", size=24)
    assert split.classes == ["n01", "n02"]
    assert split.num_classes == 2
    assert split.input_shape == (3, 24, 24)
    assert len(split) == 6
    assert [path.name for path, _ in split.samples][:3] == [f"n01_{i}.JPEG" for i in range(3)]
    assert [label for _, label in split.samples] == [0, 0, 0, 1, 1, 1]
    x, y = split[4]
    assert x.shape == (3, 24, 24)
    assert x.dtype == torch.float32
    assert y == 1


def test_validation_uses_the_classes_of_training_even_if_it_lacks_one(tree):
    shutil.rmtree(tree / "val" / "n01")
    split = load_imagefolder(tree, "val")
    assert split.num_classes == 2
    assert {label for _, label in split.samples} == {1}


def test_a_class_that_training_lacks_is_named(tree):
    save(tree / "val" / "n03" / "a.JPEG")
    with pytest.raises(DataError, match=r"val/n03: the training set has no class 'n03'"):
        load_imagefolder(tree, "val")


def test_evaluation_takes_the_centre_of_the_resized_picture(tmp_path):
    save(tmp_path / "train" / "a" / "a.JPEG", size=(100, 80))
    split = load_imagefolder(tmp_path, "train", size=56)
    with Image.open(tmp_path / "train" / "a" / "a.JPEG") as picture:
        resized = picture.convert("RGB").resize((80, 64), Image.Resampling.BILINEAR)
    expected = np.asarray(resized)[4:60, 12:68].transpose(2, 0, 1) / 255
    found = split[0][0] * DEVIATION + MEAN
    torch.testing.assert_close(found, torch.tensor(expected).float(), atol=1e-6, rtol=0)
    assert torch.equal(split[0][0], split[0][0])


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_other_colour_modes_become_rgb(tmp_path, mode):
    save(tmp_path / "train" / "a" / "a.JPEG", mode=mode)
    for train in (False, True):
        x, _ = load_imagefolder(tmp_path, "train", size=16, train=train)[0]
        assert x.shape == (3, 16, 16)
        if mode == "L":
            channels = x * DEVIATION + MEAN
            torch.testing.assert_close(channels[0], channels[2])


def test_random_parts_have_the_published_sizes_and_shapes():
    draws = torch.Generator().manual_seed(0)
    boxes = [images._random_box(64, 48, draws) for _ in range(500)]
    areas = np.array([box.width * box.height / (64 * 48) for box in boxes])
    ratios = np.array([box.width / box.height for box in boxes])
    assert 0.06 < areas.min() < 0.15
    assert areas.max() <= 1
    assert areas.std() > 0.2
    assert ratios.min() > 0.68
    assert ratios.max() < 1.46
    assert all(0 <= box.left <= 64 - box.width for box in boxes)
    assert all(0 <= box.top <= 48 - box.height for box in boxes)
    assert len({(box.left, box.top) for box in boxes}) > 200


def test_a_picture_too_narrow_for_any_part_gives_its_largest_centre():
    box = images._random_box(200, 10, torch.Generator().manual_seed(0))
    assert (box.width, box.height, box.top) == (13, 10, 0)
    assert box.left == 93


def test_crops_depend_on_seed_epoch_and_picture_alone(tree):
    def crops(seed, epoch):
        split = load_imagefolder(tree, "train", 16, True, seed=seed)
        split.set_epoch(epoch)
        torch.manual_seed(seed * 7 + epoch)
        return torch.stack([split[i][0] for i in (2, 0, 1)])

    assert torch.equal(crops(0, 0), crops(0, 0))
    assert not torch.equal(crops(0, 0), crops(0, 1))
    assert not torch.equal(crops(0, 0), crops(1, 0))


@pytest.mark.parametrize("colour", [False, True])
def test_workers_give_what_one_process_gives_and_see_the_epoch_change(tree, colour):
    split = load_imagefolder(tree, "train", 16, True, colour=colour)
    workers = {"num_workers": 2, "persistent_workers": True}
    loader = torch.utils.data.DataLoader(split, batch_size=3, **workers)
    epochs = []
    for epoch in (0, 1):
        split.set_epoch(epoch)
        found = torch.cat([x for x, _ in loader])
        assert torch.equal(found, torch.stack([split[i][0] for i in range(6)]))
        epochs.append(found)
    assert not torch.equal(*epochs)


def test_half_of_the_training_pictures_are_mirrored(tmp_path):
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:, 16:] = 255
    path = tmp_path / "train" / "a" / "a.png"
    path.parent.mkdir(parents=True)
    Image.fromarray(pixels).save(path)
    split = load_imagefolder(tmp_path, "train", 16, True)
    mirrored = 0
    for epoch in range(100):
        split.set_epoch(epoch)
        x = split[0][0].mean((0, 1))
        mirrored += bool(x[:8].sum() > x[8:].sum())
    assert 30 < mirrored < 70


def test_colour_jitter_changes_colours_by_the_published_amounts():
    draws = torch.Generator().manual_seed(0)
    grey = torch.full((3, 4, 4), 0.5)
    out = torch.stack([images._jitter(grey, draws) for _ in range(400)])
    # Only brightness (up to 40%) and lighting (deviation 0.1 x eigenvalues) move an even picture.
    assert 0.25 < out.min() < 0.36
    assert 0.64 < out.max() < 0.75
    assert (out[:, 0] - out[:, 2]).abs().mean() > 1e-3


# --- what can be wrong --------------------------------------------------------------------------


def test_a_corrupt_picture_is_named(tree):
    path = tree / "train" / "n01" / "n01_1.JPEG"
    whole = path.read_bytes()
    split = load_imagefolder(tree, "train", 16)
    for raw in (b"", b"<html></html>", whole[: len(whole) // 2]):
        path.write_bytes(raw)
        with pytest.raises(DataError, match=r"n01/n01_1\.JPEG: not a readable picture"):
            split[1]


def test_a_corrupt_picture_is_named_by_a_worker_too(tree):
    (tree / "train" / "n02" / "n02_0.JPEG").write_bytes(b"broken")
    loader = torch.utils.data.DataLoader(load_imagefolder(tree, "train", 16), num_workers=1)
    with pytest.raises(DataError, match=r"n02/n02_0\.JPEG: not a readable picture"):
        list(loader)


def test_an_unreadable_class_folder_is_named(tree, monkeypatch):
    folder = tree / "train" / "n02"
    scandir = os.scandir

    def denied(path):  # root may read anything, so the refusal is made here
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    message = "train/n02: the folder cannot be read: Permission denied"
    with pytest.raises(DataError, match=message):
        load_imagefolder(tree, "train")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read any folder")
def test_a_class_folder_without_permission_is_named(tree):
    folder = tree / "train" / "n02"
    folder.chmod(0)
    try:
        with pytest.raises(DataError, match=r"train/n02: the folder cannot be read"):
            load_imagefolder(tree, "train")
    finally:
        folder.chmod(0o755)


def test_empty_folders_and_missing_splits_are_named(tree):
    (tree / "train" / "n03").mkdir()
    (tree / "empty").mkdir()
    for split, message in (
        ("train", "train/n03: the class folder holds no picture"),
        ("test", "test: no such folder; an ImageFolder tree has"),
        ("empty", "empty: holds no class folders"),
    ):
        with pytest.raises(DataError, match=message):
            load_imagefolder(tree, split)


# --- in memory ----------------------------------------------------------------------------------


def test_a_small_tree_can_be_held_in_memory_and_a_large_one_is_refused(tree, monkeypatch):
    source = Source("a tree", tree.name, {"train": None, "val": None}, "here")
    monkeypatch.setitem(SOURCES, "tree", source)
    (train_x, train_y), (test_x, test_y) = read_imagefolder(tree.parent, "tree", side=20)
    assert train_x.shape == (6, 3, 20, 20)
    assert train_x.dtype == np.uint8
    assert train_y.tolist() == [0, 0, 0, 1, 1, 1]
    assert test_x.shape == (4, 3, 20, 20)
    assert test_y.tolist() == [0, 0, 1, 1]
    with pytest.raises(DataError, match=r"train: 6 pictures are too many .*load_imagefolder"):
        read_imagefolder(tree.parent, "tree", side=20, limit=5)


def test_the_real_tree_decodes_with_its_greyscale_pictures():
    root = os.environ.get("WHITENORM_DATA")
    if not root or not (Path(root) / "tiny-imagenet-20").is_dir():
        pytest.skip("WHITENORM_DATA has no tiny-imagenet-20")
    split = load_imagefolder(Path(root) / "tiny-imagenet-20", "val", 64)
    assert len(split) == 1000
    assert split.num_classes == 20
    x = torch.stack([split[i][0] for i in range(0, 1000, 20)])
    assert x.mean().abs() < 0.5
    assert 0.7 < x.std() < 1.5
