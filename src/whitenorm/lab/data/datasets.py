r"""The data sets of the paper, held as tensors with its preprocessing: a row of ``DATASETS`` each.

What lies on disk is in ``sources.py``, its formats in ``formats.py``, pictures that stay on disk
in ``images.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from whitenorm.lab.data.augment import AUGMENTATIONS, Augmentation
from whitenorm.lab.data.images import load_imagefolder, read_imagefolder
from whitenorm.lab.data.readers import Arrays, read_cifar, read_faces, read_idx
from whitenorm.lab.data.sources import SOURCES, DataError, Source, Status, fetch, status

__all__ = [
    "DATASETS",
    "PREPROCESSING",
    "SOURCES",
    "DataError",
    "Dataset",
    "Source",
    "Status",
    "fetch",
    "load_dataset",
    "load_imagefolder",
    "status",
    "synthetic_dataset",
]


@dataclass(frozen=True)
class Dataset:
    """A data set in memory.

    Args:
        name: Key in ``DATASETS``.
        train_x: Preprocessed pictures (n, C, H, W), float32.
        train_y: Their classes, int64.
        test_x: As ``train_x``, for testing.
        test_y: As ``train_y``, for testing.
        num_classes: How many classes there are.
        augment: ``augment(batch, generator)`` for a batch of training pictures, or None.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    num_classes: int
    augment: Augmentation | None = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one picture."""
        return tuple(self.train_x.shape[1:])

    def validation(self, n: int, seed: int) -> Dataset:
        """The same with n random training examples held out, in place of the test set."""
        if not 0 < n < len(self.train_x):
            raise ValueError(
                f"n must be from 1 to {len(self.train_x) - 1} (there are {len(self.train_x)} "
                f"training examples), got {n}"
            )
        order = torch.randperm(len(self.train_x), generator=torch.Generator().manual_seed(seed))
        held, kept = (
            part.to(self.train_x.device) for part in (order[:n], order[n:].sort().values)
        )
        x, y = self.train_x, self.train_y
        return replace(self, train_x=x[kept], train_y=y[kept], test_x=x[held], test_y=y[held])

    def to(self, device: torch.device | str) -> Dataset:
        """The same with its tensors on a device."""
        names = ("train_x", "train_y", "test_x", "test_y")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


@dataclass(frozen=True)
class Row:
    """A row of ``DATASETS``.

    Args:
        read: ``read(root, **options)`` gives (pictures, labels) for training and for testing.
        shape: Of a picture as read.
        num_classes: How many classes there are.
        options: ``size`` to resize to, ``preprocess``, ``augment``, and what ``read`` takes more.
        levels: The largest grey level.
    """

    read: Callable[..., tuple[Arrays, Arrays]]
    shape: tuple[int, int, int]
    num_classes: int
    options: Mapping[str, Any]
    levels: int = 255


def load_dataset(name: str, root: Path | str | None = None, **options: Any) -> Dataset:
    """Reads a data set and preprocesses it.

    Args:
        name: Key in ``DATASETS``.
        root: The data folder; $WHITENORM_DATA by default.
        options: Besides those of its row, for each: ``size``, pixels a side to resize to;
            ``preprocess``, a key in ``PREPROCESSING``; ``augment``, a key in
            ``whitenorm.lab.data.augment.AUGMENTATIONS``, or None.
    """
    row, options = _row(name, options)
    extra = {key: value for key, value in options.items() if key not in _COMMON}
    return _prepare(name, row, *row.read(root, **extra), **{key: options[key] for key in _COMMON})


def synthetic_dataset(name: str, n: int = 64, seed: int = 0, **options: Any) -> Dataset:
    """Noise around a pattern for each class, n pictures to train on and n to test on.

    Shapes, classes, preprocessing and augmentation are those of the data set of that name.
    """
    row, options = _row(name, options)
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.rand(row.num_classes, row.shape[0], 4, 4, generator=generator)

    def draw() -> Arrays:
        y = torch.randint(row.num_classes, (n,), generator=generator)
        noise = torch.rand(n, *row.shape, generator=generator)
        x = (F.interpolate(patterns[y], row.shape[1:]) + noise) / 2
        return (x * row.levels).round().to(torch.uint8).numpy(), y.numpy()

    return _prepare(name, row, draw(), draw(), **{key: options[key] for key in _COMMON})


_COMMON = ("size", "preprocess", "augment")


def _row(name: str, options: Mapping[str, Any]) -> tuple[Row, dict[str, Any]]:
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}; there are {', '.join(DATASETS)}")
    row = DATASETS[name]
    if unknown := sorted(set(options) - set(row.options)):
        raise ValueError(
            f"data set {name!r} has no option {', '.join(map(repr, unknown))}; "
            f"it has {', '.join(row.options)}"
        )
    options = {**row.options, **options}
    for key, choices in (("preprocess", [*PREPROCESSING]), ("augment", [None, *AUGMENTATIONS])):
        if options[key] not in choices:
            known = ", ".join(map(repr, choices))
            raise ValueError(f"{key} must be one of {known}, got {options[key]!r}")
    return row, options


def _prepare(
    name: str,
    row: Row,
    train: Arrays,
    test: Arrays,
    size: int,
    preprocess: str,
    augment: str | None,
) -> Dataset:
    pictures = []
    for x, _ in (train, test):
        tensor = torch.from_numpy(x.astype(np.float32)).div_(row.levels)
        if tuple(tensor.shape[2:]) != (size, size):
            tensor = F.interpolate(tensor, (size, size), mode="bilinear", antialias=True)
        pictures.append(tensor)
    PREPROCESSING[preprocess](*pictures)
    labels = [torch.from_numpy(y.astype(np.int64)) for _, y in (train, test)]
    return Dataset(
        name,
        pictures[0],
        labels[0],
        pictures[1],
        labels[1],
        row.num_classes,
        AUGMENTATIONS[augment] if augment is not None else None,
    )


# --- preprocessing: in place, of pictures from 0 to 1, by statistics of the training set --------


def _standardise(train: Tensor, test: Tensor, dims: tuple[int, ...], scale: bool) -> None:
    variance, mean = torch.var_mean(train, dims, correction=0, keepdim=True)
    # A pixel that never changes has no deviation to divide by; half a grey level is below any.
    deviation = variance.sqrt().clamp(min=0.5 / 255)
    for part in (train, test):
        part.sub_(mean)
        if scale:
            part.div_(deviation)


def _scalar(train: Tensor, test: Tensor) -> None:
    mean = train.mean(dtype=torch.float64)
    for part in (train, test):
        part.sub_(mean)


PREPROCESSING: dict[str, Callable[[Tensor, Tensor], None]] = {
    "none": lambda train, test: None,
    "scalar": _scalar,
    "pixel": partial(_standardise, dims=(0,), scale=False),
    "pixel-std": partial(_standardise, dims=(0,), scale=True),
    "channel": partial(_standardise, dims=(0, 2, 3), scale=True),
}


# --- reading ------------------------------------------------------------------------------------


def _held_out(x: np.ndarray, y: np.ndarray, chosen: np.ndarray) -> tuple[Arrays, Arrays]:
    kept = np.setdiff1d(np.arange(len(y)), chosen)
    return (x[kept], y[kept]), (x[chosen], y[chosen])


def _read_digits(root: Path | str | None) -> tuple[Arrays, Arrays]:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    x = digits.images.astype(np.uint8)[:, None]
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:360]
    return _held_out(x, digits.target, np.sort(chosen.numpy()))


def _read_mnist(root: Path | str | None) -> tuple[Arrays, Arrays]:
    train, test = (
        read_idx("mnist", f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz", root)
        for part in ("train", "t10k")
    )
    return train, test


def _read_cifar(
    root: Path | str | None, name: str, train: list[str], test: str, label_bytes: int, classes: int
) -> tuple[Arrays, Arrays]:
    read = partial(read_cifar, name, root=root, label_bytes=label_bytes, classes=classes)
    return read(train), read([test])


def _read_faces(
    root: Path | str | None, name: str, file: str, classes: int, test_per_class: int
) -> tuple[Arrays, Arrays]:
    """The files have no split of their own: as many random faces of each person are held out."""
    x, y = read_faces(name, file, root, classes=classes)
    generator, chosen = torch.Generator().manual_seed(0), []
    for person in range(classes):
        own = np.flatnonzero(y == person)
        if not 0 < test_per_class < len(own):
            raise ValueError(
                f"test_per_class must be from 1 to {len(own) - 1} (person {person + 1} has "
                f"{len(own)} faces), got {test_per_class}"
            )
        chosen.append(own[torch.randperm(len(own), generator=generator)[:test_per_class].numpy()])
    return _held_out(x, y, np.sort(np.concatenate(chosen)))


_COLOUR = {"size": 32, "preprocess": "channel", "augment": None}
_DIGIT = {"size": 32, "preprocess": "scalar", "augment": None}
_FACE = {"size": 32, "preprocess": "pixel", "augment": None}
_CIFAR10 = partial(
    _read_cifar,
    name="cifar10",
    train=[f"data_batch_{i}.bin" for i in range(1, 6)],
    test="test_batch.bin",
    label_bytes=1,
    classes=10,
)
_CIFAR100 = partial(  # a coarse label comes before the fine one
    _read_cifar, name="cifar100", train=["train.bin"], test="test.bin", label_bytes=2, classes=100
)

DATASETS: dict[str, Row] = {
    "digits": Row(_read_digits, (1, 8, 8), 10, {**_DIGIT, "size": 8}, levels=16),
    "mnist": Row(_read_mnist, (1, 28, 28), 10, _DIGIT),
    "cifar10": Row(_CIFAR10, (3, 32, 32), 10, _COLOUR),
    "cifar100": Row(_CIFAR100, (3, 32, 32), 100, _COLOUR),
    # The authors' Yale-B script trained on 2,034 faces: ten of each person are held out.
    "yaleb": Row(
        partial(_read_faces, name="yaleb", file="YaleB_32x32.mat", classes=38),
        (1, 32, 32),
        38,
        {**_FACE, "test_per_class": 10},
    ),
    "pie": Row(
        partial(_read_faces, name="pie", file="PIE_32x32_from_jpeg.mat", classes=68),
        (1, 32, 32),
        68,
        {**_FACE, "test_per_class": 20},
    ),
    "tiny-imagenet-20": Row(
        partial(read_imagefolder, name="tiny-imagenet-20", side=64),
        (3, 64, 64),
        20,
        {**_COLOUR, "size": 64},
    ),
    "imagenet": Row(
        partial(read_imagefolder, name="imagenet", side=224),
        (3, 224, 224),
        1000,
        {**_COLOUR, "size": 224},
    ),
}
