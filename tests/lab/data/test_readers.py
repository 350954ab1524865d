"""Readers on small files in the official formats, and on broken ones."""

import gzip
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datafiles import idx, write_cifar, write_faces, write_mnist

from whitenorm.lab.data import readers
from whitenorm.lab.data.datasets import DATASETS, load_dataset
from whitenorm.lab.data.sources import SOURCES, DataError, File

IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def test_mnist_is_resized_scaled_and_centred_by_one_number(tmp_path):
    made = write_mnist(tmp_path)
    raw = load_dataset("mnist", tmp_path, size=28, preprocess="none")
    assert raw.train_x.dtype == torch.float32
    assert torch.equal(raw.train_x[:, 0], torch.tensor(made["train"][0] / 255).float())
    assert torch.equal(raw.test_y, torch.tensor(made["t10k"][1]))
    loaded = load_dataset("mnist", tmp_path)
    assert loaded.train_x.shape == (12, 1, 32, 32)
    assert loaded.input_shape == (1, 32, 32)
    assert loaded.train_y.dtype == torch.int64
    assert loaded.num_classes == 10
    assert abs(loaded.train_x.mean()) < 1e-6
    # One number for both sets, the training set's:
    resized = load_dataset("mnist", tmp_path, preprocess="none")
    torch.testing.assert_close(loaded.test_x, resized.test_x - resized.train_x.mean())


def test_cifar10_reads_its_records_in_order(tmp_path, monkeypatch):
    made = write_cifar(tmp_path, monkeypatch, "cifar10")
    loaded = load_dataset("cifar10", tmp_path, preprocess="none")
    for i in range(5):
        x, y = made[f"data_batch_{i + 1}.bin"]
        part = slice(4 * i, 4 * i + 4)
        assert torch.equal(loaded.train_x[part], torch.tensor(x).float() / 255)
        assert torch.equal(loaded.train_y[part], torch.tensor(y))
    assert torch.equal(loaded.test_y, torch.tensor(made["test_batch.bin"][1]))


def test_cifar100_takes_the_fine_label_that_follows_the_coarse_one(tmp_path, monkeypatch):
    made = write_cifar(tmp_path, monkeypatch, "cifar100", records=9)
    loaded = load_dataset("cifar100", tmp_path, preprocess="none")
    x, y = made["train.bin"]
    assert torch.equal(loaded.train_y, torch.tensor(y))
    assert torch.equal(loaded.train_x, torch.tensor(x).float() / 255)
    assert loaded.num_classes == 100
    assert len(loaded.test_x) == 9


def test_faces_are_upright_from_0_to_1_and_ten_of_each_person_are_held_out(tmp_path):
    content = write_faces(tmp_path / "yaleb" / "YaleB_32x32.mat")
    raw = load_dataset("yaleb", tmp_path, preprocess="none")
    assert raw.train_x.shape == (76, 1, 32, 32)
    assert torch.equal(raw.test_y.bincount(), torch.full((38,), 10))
    assert torch.equal(raw.train_y.bincount(), torch.full((38,), 2))
    columns = torch.tensor(content["fea"]).view(-1, 32, 32)  # MATLAB stores column by column
    upright = {tuple(face.T.flatten().tolist()) for face in columns}
    loaded = torch.cat([raw.train_x, raw.test_x]).mul(255).round().int().flatten(1).tolist()
    assert {tuple(face) for face in loaded} == upright
    assert load_dataset("yaleb", tmp_path, test_per_class=3).test_x.shape[0] == 114
    with pytest.raises(ValueError, match=r"from 1 to 11 \(person 1 has 12 faces\), got 12"):
        load_dataset("yaleb", tmp_path, test_per_class=12)


# --- broken files -------------------------------------------------------------------------------


def assert_error(root, name, *parts):
    with pytest.raises(DataError) as caught:
        load_dataset(name, root)
    for part in (*parts, SOURCES[name].where):
        assert part in str(caught.value)


def test_held_out_patches_share_no_pixel_with_training_patches(monkeypatch):
    """Each pixel of the photographs is made to say of which tile it is."""
    side = readers.TILE
    rows, columns = np.mgrid[:427, :640] // side
    numbers = (13 * rows + columns)[:, :, None].repeat(3, axis=2).astype(np.uint8)
    pictures = SimpleNamespace(images=[numbers, numbers + 104])
    monkeypatch.setattr("sklearn.datasets.load_sample_images", lambda: pictures)
    (x, y), (test_x, test_y) = readers.read_photographs(None)
    for patches in (x, test_x):
        assert (patches == patches[:, :, :1, :1]).all()  # none crosses the border of a tile
    tiles, held = ({*part[:, 0, 0, 0].tolist()} for part in (x, test_x))
    assert not tiles & held
    assert len(held) == 2 * 26
    assert np.array_equal(x[:, 0, 0, 0] >= 104, y == 1)
    assert np.array_equal(test_x[:, 0, 0, 0] >= 104, test_y == 1)


@pytest.mark.parametrize("name", [name for name in DATASETS if SOURCES[name].folder])
def test_a_missing_file_is_named_with_where_to_get_it(tmp_path, name):
    first = next(iter(SOURCES[name].files))
    assert_error(tmp_path, name, str(tmp_path / SOURCES[name].folder / first), "no such f")


def test_without_a_data_folder_the_error_says_how_to_give_one(monkeypatch):
    monkeypatch.delenv("WHITENORM_DATA", raising=False)
    with pytest.raises(DataError, match=r"--data DIR.*WHITENORM_DATA"):
        load_dataset("mnist")


def test_the_data_folder_may_come_from_the_environment(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    monkeypatch.setenv("WHITENORM_DATA", str(tmp_path))
    assert len(load_dataset("mnist").train_x) == 12


def flip_a_byte(raw):
    middle = len(raw) // 2
    return raw[:middle] + bytes([raw[middle] ^ 0xFF]) + raw[middle + 1 :]


@pytest.mark.parametrize(
    ("file", "broken", "message"),
    [
        (IMAGES, lambda raw: raw[:-500], "truncated: the gzip stream ends too early"),
        ("t10k-images-idx3-ubyte.gz", flip_a_byte, "not a readable gzip file"),
        (IMAGES, lambda raw: b"<html>404 not found</html>", "not a readable gzip file"),
        (
            IMAGES,
            lambda raw: gzip.compress(gzip.decompress(raw)[:-100]),
            "9308 bytes of data where its header says 9408",
        ),
        (
            IMAGES,
            lambda raw: gzip.compress((2051).to_bytes(4, "big") + b"\0\0"),
            "truncated: 6 bytes, less than its header",
        ),
        (LABELS, lambda raw: idx(np.zeros((3, 2, 2))), "magic number 2051 where IDX has 2049"),
        (LABELS, lambda raw: idx(np.zeros(11)), "11 labels for the 12 pictures"),
    ],
)
def test_broken_idx_files_are_named(tmp_path, file, broken, message):
    write_mnist(tmp_path)
    path = tmp_path / "mnist" / file
    path.write_bytes(broken(path.read_bytes()))
    assert_error(tmp_path, "mnist", str(path), message)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_of_another_size(tmp_path, monkeypatch, name):
    write_cifar(tmp_path, monkeypatch, name)
    path = tmp_path / SOURCES[name].folder / next(iter(SOURCES[name].files))
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])  # whole records are missing
    assert_error(tmp_path, name, str(path), f"truncated: {len(raw) // 2} bytes where {len(raw)}")
    path.write_bytes(raw + b"\0")
    assert_error(tmp_path, name, str(path), "not the expected file")


def test_cifar_records_of_another_format(tmp_path, monkeypatch):
    """CIFAR-10's records under CIFAR-100's name: neither the record size nor the labels fit."""
    write_cifar(tmp_path, monkeypatch, "cifar100")
    folder = tmp_path / SOURCES["cifar100"].folder
    any_size = dict.fromkeys(SOURCES["cifar100"].files, File())
    monkeypatch.setitem(SOURCES, "cifar100", replace(SOURCES["cifar100"], files=any_size))
    for raw, message in (
        (bytes(3073 * 4), "12292 bytes, which is no whole number of records of 3074 bytes"),
        (
            bytes(3074) + b"\0\xc8" + bytes(3072),
            "corrupt: record 1 has label 200, and there are 100 classes",
        ),
    ):
        (folder / "train.bin").write_bytes(raw)
        assert_error(tmp_path, "cifar100", message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gnd": None}, "holds no variable gnd"),
        ({"fea": np.zeros((456, 1000))}, "fea of shape (456, 1000) and gnd of 456"),
        ({"gnd": np.ones((455, 1))}, "gnd of 455; expected (n, 1024) and n"),
        ({"gnd": np.ones((456, 1))}, "where 1 to 38 were expected"),
        ({"fea": np.full((456, 1024), 300.0)}, "isn't grey levels from 0 to 255"),
    ],
)
def test_a_mat_file_with_something_else_in_it(tmp_path, changes, message):
    path = tmp_path / "yaleb" / "YaleB_32x32.mat"
    write_faces(path, **changes)
    assert_error(tmp_path, "yaleb", str(path), message)


class Exploit:
    def __reduce__(self):
        return (Path.touch, (Path("was-unpickled"),))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda raw: raw[: len(raw) // 3], "not a readable MATLAB v5 file"),
        (
            lambda raw: b"text that is long enough for a header" * 10,
            "not a readable MATLAB v5 file",
        ),
        (lambda raw: pickle.dumps(Exploit()), "not a readable MATLAB v5 file"),
        (lambda raw: b"", "not a readable MATLAB v5 file"),
        (lambda raw: raw[:128] + b"\xff" * 64 + raw[192:], "not a readable MATLAB v5 file"),
        (
            lambda raw: b"MATLAB 7.3 MAT-file".ljust(116) + bytes(8) + b"\x00\x02IM" + bytes(1000),
            "MATLAB v7.3 (HDF5) where v5 was expected",
        ),
    ],
    ids=["truncated", "text", "pickle", "empty", "flipped", "v7.3"],
)
def test_a_broken_mat_file(tmp_path, monkeypatch, broken, message):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "yaleb" / "YaleB_32x32.mat"
    write_faces(path)
    path.write_bytes(broken(path.read_bytes()))
    assert_error(tmp_path, "yaleb", str(path), message)
    assert not (tmp_path / "was-unpickled").exists()
