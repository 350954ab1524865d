r"""The data sets of the paper, each a row of ``DATASETS``, as tensors with its preprocessing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from whitenorm.lab.data.augment import AUGMENTATIONS, Augmentation
from whitenorm.lab.data.images import read_imagefolder
from whitenorm.lab.data.readers import (
    Arrays,
    read_cifar,
    read_digits,
    read_faces,
    read_idx,
    read_photographs,
)
from whitenorm.lab.lookup import check_options, choose, look_up


@dataclass(frozen=True)
class Dataset:
    """A data set in memory: preprocessed float32 pictures (n, C, H, W) and int64 classes (n,)."""

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    num_classes: int
    augment: Augmentation | None = None  # for batches of training pictures

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one picture."""
        return tuple(self.train_x.shape[1:])

    def validation(self, n: int, seed: int) -> Dataset:
        """The same with n random training examples held out, in place of the test set."""
        x, y = self.train_x, self.train_y
        if not 0 < n < len(x):
            raise ValueError(
                f"n must be from 1 to {len(x) - 1} (there are {len(x)} training examples), got {n}"
            )
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)
        held, kept = order[:n], order[n:].sort().values
        return replace(self, train_x=x[kept], train_y=y[kept], test_x=x[held], test_y=y[held])

    def to(self, device: torch.device | str) -> Dataset:
        """The same with its tensors on a device."""
        names = ("train_x", "train_y", "test_x", "test_y")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


_COMMON = ("size", "preprocess", "augment")  # options that every data set has


@dataclass(frozen=True)
class Row:
    """A row of ``DATASETS``.

    ``read(root, **options)`` gives (pictures, labels) for training and for testing. ``options``
    are those of every data set (``size``, ``preprocess``, ``augment``) and those of ``read``, with
    their defaults.
    """

    read: Callable[..., tuple[Arrays, Arrays]]
    shape: tuple[int, int, int]  # of a picture as read
    num_classes: int
    options: Mapping[str, Any]
    levels: int = 255  # the largest grey level


def load_dataset(name: str, root: Path | str | None = None, **options: Any) -> Dataset:
    """Reads a data set below ``root`` or else $WHITENORM_DATA, and preprocesses it.

    Every data set has the options ``size``, pixels a side to resize to; ``preprocess``, a key in
    ``PREPROCESSING``; ``augment``, a key in ``AUGMENTATIONS``, or None.
    """
    return _prepare(name, options, lambda row, special: row.read(root, **special))


def read_files(name: str, root: Path | str | None = None) -> None:
    """Reads the files of a data set, for the errors if that can't be done."""
    row = look_up(DATASETS, "data set", name)
    row.read(root, **{key: v for key, v in row.options.items() if key not in _COMMON})


def synthetic_dataset(name: str, n: int = 64, seed: int = 0, **options: Any) -> Dataset:
    """Noise around a pattern for each class, n pictures to train on and n to test on.

    Shapes, classes, preprocessing and augmentation are those of the data set of that name.
    """

    def draw(row: Row, _: Mapping[str, Any]) -> Iterator[Arrays]:
        generator = torch.Generator().manual_seed(seed)
        patterns = torch.rand(row.num_classes, row.shape[0], 4, 4, generator=generator)
        for _part in ("train", "test"):
            y = torch.randint(row.num_classes, (n,), generator=generator)
            noise = torch.rand(n, *row.shape, generator=generator)
            x = (F.interpolate(patterns[y], row.shape[1:]) + noise) / 2
            yield (x * row.levels).round().to(torch.uint8).numpy(), y.numpy()

    return _prepare(name, options, draw)


def _prepare(
    name: str,
    options: Mapping[str, Any],
    read: Callable[[Row, Mapping[str, Any]], Iterable[Arrays]],
) -> Dataset:
    """``read(row, options of this data set alone)`` with the options that every data set has."""
    row = look_up(DATASETS, "data set", name)
    check_options("data set", name, options, row.options)
    special = {**row.options, **options}
    size, preprocess, augment = (special.pop(key) for key in _COMMON)
    choose("preprocess", preprocess, PREPROCESSING)
    choose("augment", augment, [None, *AUGMENTATIONS])
    x, y = [], []
    for pictures, labels in read(row, special):
        tensor = torch.from_numpy(pictures.astype(np.float32)).div_(row.levels)
        if tuple(tensor.shape[2:]) != (size, size):
            tensor = F.interpolate(tensor, (size, size), mode="bilinear", antialias=True)
        x.append(tensor)
        y.append(torch.from_numpy(labels.astype(np.int64)))
    PREPROCESSING[preprocess](*x)
    augmentation = None if augment is None else AUGMENTATIONS[augment]
    return Dataset(name, x[0], y[0], x[1], y[1], row.num_classes, augmentation)


# --- preprocessing: in place, of pictures from 0 to 1, by statistics of the training set --------


def _standardize(train: Tensor, test: Tensor, dims: tuple[int, ...], scale: bool) -> None:
    variance, mean = torch.var_mean(train, dims, correction=0, keepdim=True)
    # The deviation of a pixel that never changes is 0. Half a grey level divides safely.
    deviation = variance.sqrt().clamp(min=0.5 / 255)
    for part in (train, test):
        part.sub_(mean)
        if scale:
            part.div_(deviation)


def _subtract_mean(train: Tensor, test: Tensor) -> None:
    mean = train.mean(dtype=torch.float64)
    train.sub_(mean)
    test.sub_(mean)


PREPROCESSING: dict[str, Callable[[Tensor, Tensor], None]] = {
    "none": lambda train, test: None,
    "scalar": _subtract_mean,
    "pixel": partial(_standardize, dims=(0,), scale=False),
    "pixel-std": partial(_standardize, dims=(0,), scale=True),
    "channel": partial(_standardize, dims=(0, 2, 3), scale=True),
}


# --- the table ----------------------------------------------------------------------------------


def _options(size: int, preprocess: str, **special: Any) -> dict[str, Any]:
    return {"size": size, "preprocess": preprocess, "augment": None, **special}


def _cifar(name: str, classes: int, label_bytes: int) -> Row:
    read = partial(read_cifar, name=name, classes=classes, label_bytes=label_bytes)
    return Row(read, (3, 32, 32), classes, _options(32, "channel"))


def _faces(name: str, classes: int, test_per_class: int) -> Row:
    read = partial(read_faces, name=name, classes=classes)
    options = _options(32, "pixel", test_per_class=test_per_class)
    return Row(read, (1, 32, 32), classes, options)


def _imagefolder(name: str, classes: int, size: int) -> Row:
    read = partial(read_imagefolder, name=name, side=size)
    return Row(read, (3, size, size), classes, _options(size, "channel"))


DATASETS: dict[str, Row] = {
    "digits": Row(read_digits, (1, 8, 8), 10, _options(8, "scalar"), levels=16),
    # Patches keep their own brightness: only the mean of all is subtracted.
    "photographs": Row(read_photographs, (1, 12, 12), 2, _options(12, "scalar")),
    "mnist": Row(partial(read_idx, name="mnist"), (1, 28, 28), 10, _options(32, "scalar")),
    "cifar10": _cifar("cifar10", classes=10, label_bytes=1),
    "cifar100": _cifar("cifar100", classes=100, label_bytes=2),  # a coarse label comes first
    # The authors' Yale-B script trained on 2,034 faces: ten of each person are held out.
    "yaleb": _faces("yaleb", classes=38, test_per_class=10),
    "pie": _faces("pie", classes=68, test_per_class=20),
    "tiny-imagenet-20": _imagefolder("tiny-imagenet-20", classes=20, size=64),
    "imagenet": _imagefolder("imagenet", classes=1000, size=224),
}
