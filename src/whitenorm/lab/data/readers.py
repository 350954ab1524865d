r"""Readers of the formats that the data sets come in: IDX, CIFAR's records, MATLAB v5 faces.

Each gives (pictures, labels) for training and for testing: uint8 (n, C, H, W) and int64 (n,). If
a file is wrong, a :class:`whitenorm.lab.data.sources.DataError` names it and says what is wrong.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch

from whitenorm.lab.data.sources import SOURCES, checked_file, problem

Arrays = tuple[np.ndarray, np.ndarray]
PATCH, TILE = 12, 48  # pixels a side
LUMA = (0.299, 0.587, 0.114)  # how much red, green and blue count for grey (ITU-R BT.601)


def read_digits(root: Path | str | None) -> tuple[Arrays, Arrays]:
    """The digits inside scikit-learn; 360 random ones are for testing."""
    from sklearn.datasets import load_digits  # here, since it takes a second

    digits = load_digits()
    chosen = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))[:360]
    return _held_out(digits.images.astype(np.uint8)[:, None], digits.target, chosen.numpy())


def read_photographs(root: Path | str | None) -> tuple[Arrays, Arrays]:
    """Grey patches, 12x12, of the two photographs inside scikit-learn; the label says of which.

    Each photograph is cut into tiles of 48x48, of which a random quarter is for testing. Patches
    lie anywhere within a tile: one for testing shares no pixel with any for training.
    """
    from sklearn.datasets import load_sample_images  # here, since it takes a second

    random = torch.Generator().manual_seed(0)
    parts: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    for picture in load_sample_images().images:
        grey = np.rint(picture @ np.array(LUMA)).astype(np.uint8)
        down, across = (side // TILE for side in grey.shape)
        tiles = torch.randperm(down * across, generator=random)
        held = len(tiles) // 4
        for part, own, n in zip(parts, (tiles[held:], tiles[:held]), (1125, 375), strict=True):
            tile = own[torch.randint(len(own), (n,), generator=random)]
            shift = torch.randint(TILE - PATCH + 1, (2, n), generator=random)
            top, left = TILE * torch.stack([tile // across, tile % across]) + shift
            windows = np.lib.stride_tricks.sliding_window_view(grey, (PATCH, PATCH))
            part.append(windows[top.numpy(), left.numpy()][:, None])
    train, test = (
        (np.concatenate(part), np.repeat(np.arange(len(part)), [len(x) for x in part]))
        for part in parts
    )
    return train, test


def _held_out(x: np.ndarray, y: np.ndarray, chosen: np.ndarray) -> tuple[Arrays, Arrays]:
    test = np.sort(chosen)
    train = np.setdiff1d(np.arange(len(y)), test)
    return (x[train], y[train]), (x[test], y[test])


def read_idx(root: Path | str | None, name: str) -> tuple[Arrays, Arrays]:
    """Gzipped IDX files: pictures and labels for training, pictures and labels for testing."""
    x, y, test_x, test_y = (checked_file(name, file, root) for file in SOURCES[name].files)
    return _idx_pair(x, y, name), _idx_pair(test_x, test_y, name)


def _idx_pair(images: Path, labels: Path, name: str) -> Arrays:
    x, y = _idx(images, name, magic=2051), _idx(labels, name, magic=2049)
    if len(x) != len(y):
        raise problem(labels, f"{len(y)} labels for the {len(x)} pictures of {images}", name)
    return x[:, None], y.astype(np.int64)


def _idx(path: Path, name: str, magic: int) -> np.ndarray:
    try:
        with gzip.open(path) as stream:
            raw = stream.read()
    except EOFError as error:
        raise problem(path, "truncated: the gzip stream ends too early", name) from error
    except (OSError, zlib.error) as error:
        raise problem(path, f"not a readable gzip file: {error}", name) from error
    if (found := int.from_bytes(raw[:4], "big")) != magic:
        raise problem(path, f"magic number {found} where IDX has {magic}", name)
    start = 4 + 4 * (magic & 0xFF)  # the low byte of the magic number counts the dimensions
    if len(raw) < start:
        raise problem(path, f"truncated: {len(raw)} bytes, less than its header", name)
    shape = np.frombuffer(raw[4:start], ">u4").tolist()
    if len(raw) - start != math.prod(shape):
        what = f"{len(raw) - start} bytes of data where its header says {math.prod(shape)}"
        raise problem(path, what, name)
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_cifar(
    root: Path | str | None, name: str, *, label_bytes: int, classes: int
) -> tuple[Arrays, Arrays]:
    """CIFAR's binary version; the last of the source's files is for testing."""
    parts = [
        _records(checked_file(name, file, root), name, label_bytes, classes)
        for file in SOURCES[name].files
    ]
    x, y = zip(*parts[:-1], strict=True)
    return (np.concatenate(x), np.concatenate(y)), parts[-1]


def _records(path: Path, name: str, label_bytes: int, classes: int) -> Arrays:
    """A record is a few label bytes, of which the last is the class, and 3x32x32 pixels."""
    raw, size = np.fromfile(path, np.uint8), label_bytes + 3072
    if len(raw) == 0 or len(raw) % size:
        what = f"{len(raw)} bytes, which is no whole number of records of {size} bytes"
        raise problem(path, what, name)
    records = raw.reshape(-1, size)
    y = records[:, label_bytes - 1]
    if y.max() >= classes:
        at = int((y >= classes).argmax())
        what = f"corrupt: record {at} has label {y[at]}, and there are {classes} classes"
        raise problem(path, what, name)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), y.astype(np.int64)


def read_faces(
    root: Path | str | None, name: str, *, classes: int, test_per_class: int
) -> tuple[Arrays, Arrays]:
    """A MATLAB v5 file of faces; as many random ones of each person are for testing."""
    (file,) = SOURCES[name].files
    x, y = _faces(checked_file(name, file, root), name, classes)
    generator, chosen = torch.Generator().manual_seed(0), []
    for person in range(classes):
        own = np.flatnonzero(y == person)
        if not 0 < test_per_class < len(own):
            raise ValueError(
                f"test_per_class must be from 1 to {len(own) - 1} (person {person + 1} has "
                f"{len(own)} faces), got {test_per_class}"
            )
        chosen.append(own[torch.randperm(len(own), generator=generator)[:test_per_class].numpy()])
    return _held_out(x, y, np.concatenate(chosen))


def _faces(path: Path, name: str, classes: int) -> Arrays:
    """``fea``, each row a 32x32 face stored column by column, and ``gnd``, 1 to ``classes``."""
    from scipy.io import loadmat  # here, since most data sets don't need it

    try:
        content = loadmat(path, variable_names=["fea", "gnd"])  # reads arrays; never unpickles
    except NotImplementedError as error:
        raise problem(path, "MATLAB v7.3 (HDF5) where v5 was expected", name) from error
    except Exception as error:  # scipy raises many kinds of error for a broken file
        raise problem(path, f"not a readable MATLAB v5 file: {error}", name) from error
    if absent := [key for key in ("fea", "gnd") if key not in content]:
        raise problem(path, f"holds no variable {' and no '.join(absent)}", name)
    x, y = content["fea"], content["gnd"].ravel()
    if x.ndim != 2 or x.shape[1] != 1024 or len(x) != len(y):
        what = f"fea of shape {x.shape} and gnd of {len(y)}; expected (n, 1024) and n"
        raise problem(path, what, name)
    if x.dtype.kind not in "uif" or not (x.min() >= 0 and x.max() <= 255):
        raise problem(path, f"fea of {x.dtype} isn't grey levels from 0 to 255", name)
    if not np.array_equal(np.unique(y), np.arange(1, classes + 1)):
        raise problem(path, f"labels {np.unique(y)} where 1 to {classes} were expected", name)
    faces = x.astype(np.uint8).reshape(-1, 1, 32, 32).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(faces), y.astype(np.int64) - 1
