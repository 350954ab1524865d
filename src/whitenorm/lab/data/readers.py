r"""Readers of the formats that the data sets come in: IDX, CIFAR's records, MATLAB v5 faces.

Each gives pictures (n, C, H, W) and labels (n,) as uint8 and int64 arrays, or a
:class:`whitenorm.lab.data.sources.DataError` that says what is wrong with which file.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from whitenorm.lab.data.sources import checked_file, problem

__all__ = ["read_cifar", "read_faces", "read_idx"]

Arrays = tuple[np.ndarray, np.ndarray]


def read_idx(name: str, images: str, labels: str, root: Path | str | None) -> Arrays:
    """A pair of gzipped IDX files: pictures (magic number 2051) and labels (2049)."""
    x = _idx(name, images, 2051, root)[:, None]
    y = _idx(name, labels, 2049, root)
    if len(x) != len(y):
        path = checked_file(name, labels, root)
        raise problem(path, f"{len(y)} labels for the {len(x)} pictures of {images}", name)
    return x, y.astype(np.int64)


def _idx(name: str, file: str, magic: int, root: Path | str | None) -> np.ndarray:
    path = checked_file(name, file, root)
    try:
        with gzip.open(path) as stream:
            raw = stream.read()
    except EOFError as error:
        raise problem(path, "truncated: the gzip stream ends too early", name) from error
    except (OSError, zlib.error) as error:
        raise problem(path, f"not a readable gzip file: {error}", name) from error
    dims = magic & 0xFF  # the magic number is 0x08 (unsigned bytes), then the dimensions
    start = 4 * (dims + 1)
    if (found := int.from_bytes(raw[:4], "big")) != magic:
        raise problem(path, f"magic number {found} where IDX has {magic}", name)
    if len(raw) < start:
        raise problem(path, f"truncated: {len(raw)} bytes, less than its header", name)
    shape = np.frombuffer(raw[4:start], ">u4").tolist()
    if len(raw) - start != math.prod(shape):
        what = f"{len(raw) - start} bytes of data where its header says {math.prod(shape)}"
        raise problem(path, what, name)
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_cifar(
    name: str, files: Iterable[str], root: Path | str | None, *, label_bytes: int, classes: int
) -> Arrays:
    """Records of the binary version: label bytes, the last of them the class; 3x32x32 pixels."""
    record = label_bytes + 3072
    pictures, labels = [], []
    for file in files:
        path = checked_file(name, file, root)
        raw = np.fromfile(path, np.uint8)
        if len(raw) == 0 or len(raw) % record:
            what = f"{len(raw)} bytes, which is no whole number of records of {record} bytes"
            raise problem(path, what, name)
        records = raw.reshape(-1, record)
        y = records[:, label_bytes - 1]
        if y.max() >= classes:
            at = int((y >= classes).argmax())
            what = f"corrupt: record {at} has label {y[at]}, and there are {classes} classes"
            raise problem(path, what, name)
        labels.append(y.astype(np.int64))
        pictures.append(records[:, label_bytes:].reshape(-1, 3, 32, 32))
    return np.concatenate(pictures), np.concatenate(labels)


def read_faces(name: str, file: str, root: Path | str | None, *, classes: int) -> Arrays:
    """MATLAB v5: ``fea`` (n x 1024, a column-major 32x32 face a row), ``gnd`` (1..classes)."""
    from scipy.io import loadmat  # type: ignore[import-untyped]  # here, so that other data needs no scipy

    path = checked_file(name, file, root)
    try:
        content = loadmat(path, variable_names=["fea", "gnd"])  # reads arrays; never unpickles
    except NotImplementedError as error:
        raise problem(path, "MATLAB v7.3 (HDF5) where v5 was expected", name) from error
    except Exception as error:  # scipy raises whatever a broken stream leads it to
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
