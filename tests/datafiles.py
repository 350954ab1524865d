"""Small files in the formats that the data sets come in, with random content."""

import gzip
from dataclasses import replace

import numpy as np
import scipy.io

from whitenorm.lab.data.datasets import DATASETS
from whitenorm.lab.data.sources import SOURCES, File

random = np.random.default_rng(0)


def idx(array):
    header = np.array([0x800 + array.ndim, *array.shape], ">u4").tobytes()
    return gzip.compress(header + array.astype(np.uint8).tobytes())


def write_mnist(root, n=12):
    made, folder = {}, root / "mnist"
    folder.mkdir()
    for part in ("train", "t10k"):
        x, y = random.integers(0, 256, (n, 28, 28)), random.integers(0, 10, n)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(x))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(y))
        made[part] = x, y
    return made


def write_cifar(root, monkeypatch, name, records=4):
    """Small files in the binary version, and a table that expects files of that size."""
    source, classes = SOURCES[name], DATASETS[name].num_classes
    folder = root / source.folder
    folder.mkdir(parents=True)
    made = {}
    for file in source.files:
        x = random.integers(0, 256, (records, 3, 32, 32), np.uint8)
        y = random.integers(0, classes, records)
        labels = y[:, None] if name == "cifar10" else np.stack([y // 5, y], 1)
        raw = np.concatenate([labels.astype(np.uint8), x.reshape(records, -1)], 1).tobytes()
        (folder / file).write_bytes(raw)
        made[file] = x, y
    files = {file: File(size=len(raw)) for file in source.files}
    monkeypatch.setitem(SOURCES, name, replace(source, files=files))
    return made


def write_faces(path, people=38, each=12, **changes):
    n = people * each
    content = {
        "fea": random.integers(0, 256, (n, 1024), np.uint8),
        "gnd": np.repeat(np.arange(1, people + 1), each)[:, None].astype(np.uint8),
    } | changes
    path.parent.mkdir(exist_ok=True)
    scipy.io.savemat(path, {key: value for key, value in content.items() if value is not None})
    return content
