r"""Pictures that stay on disk and are cropped by the loader's worker processes.

They lie as ImageNet's do: ``{train,val}/<class>/*.JPEG``. Every random crop has its own generator,
seeded by (seed, epoch, index), so it doesn't depend on the number of workers and replicas, and is
the same after a restart.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from whitenorm.lab.data.readers import Arrays
from whitenorm.lab.data.sources import DataError, checked_file, folder_of
from whitenorm.lab.randomness import generator

EXTENSIONS = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff")

# Of ImageNet's training set, from fb.resnet.torch: mean and deviation of each channel, and the
# principal directions of colour, each times its deviation.
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
COLOURS = torch.tensor(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
) * torch.tensor([0.2175, 0.0188, 0.0045])
GREY = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)


@dataclass(eq=False, repr=False)
class ImageFolder(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """The pictures of one split and their classes, read, cropped and normalized one by one.

    For training: a random part (8 to 100% of the area, sides 3:4 to 4:3) resized to ``size`` and
    mirrored at even odds; with ``colour`` also fb.resnet.torch's jitter of brightness, contrast,
    saturation (each up to 40%) and lighting. For evaluation: the shorter side resized to
    ``size`` * 256 / 224, and the centre of that. A greyscale picture becomes RGB.
    """

    classes: list[str]
    samples: list[tuple[Path, int]]  # the path and the class of each picture
    size: int  # pixels a side
    train: bool
    seed: int  # of the random crops
    colour: bool
    # In shared memory, so that worker processes which are kept see the epoch change.
    _epoch: Tensor = field(
        default_factory=lambda: torch.zeros((), dtype=torch.long).share_memory_()
    )

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one picture."""
        return (3, self.size, self.size)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the random crops of an epoch; call it before iterating over a loader."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.samples[index]
        picture = read_picture(path)
        if self.train:
            draws = generator(self.seed, "crop", int(self._epoch), index)
            tensor = _random_part(picture, self.size, self.colour, draws)
        else:
            tensor = _tensor(_centre(picture, self.size, shorter=round(self.size * 256 / 224)))
        return (tensor - MEAN) / DEVIATION, label


@dataclass(frozen=True)
class Pictures:
    """A data set that stays on disk."""

    name: str
    train: ImageFolder
    test: ImageFolder
    workers: int = 2  # processes that read pictures

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return self.train.num_classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one picture."""
        return self.train.input_shape


def load_imagefolder(
    root: Path | str,
    split: str,
    size: int = 224,
    train: bool = False,
    *,
    seed: int = 0,
    colour: bool = False,
) -> ImageFolder:
    """One split ("train", "val") of the pictures below ``root``; see :class:`ImageFolder`.

    Classes are numbered by the names of the folders in ``train``, whichever split is read.
    """
    root = Path(root)
    folder = root / split
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such folder; an ImageFolder tree has {{train,val}}/<class>/ in it"
        )
    found = _class_folders(folder)
    classes = _class_folders(root / "train") if (root / "train").is_dir() else found
    if strange := sorted(set(found) - set(classes)):
        raise DataError(f"{folder / strange[0]}: the training set has no class {strange[0]!r}")
    number = {name: index for index, name in enumerate(classes)}
    samples = [
        (folder / name / picture, number[name])
        for name in found
        for picture in _names(
            folder / name,
            lambda entry: entry.name.lower().endswith(EXTENSIONS),
            f"the class folder holds no picture ({', '.join(EXTENSIONS)})",
        )
    ]
    return ImageFolder(classes, samples, size, train, seed, colour)


def _class_folders(folder: Path) -> list[str]:
    absent = "holds no class folders; expected <class>/<picture>.JPEG in it"
    return _names(folder, os.DirEntry.is_dir, absent)


def _names(folder: Path, wanted: Callable[[os.DirEntry[str]], bool], absent: str) -> list[str]:
    """The names of the wanted entries of a folder, in order; an error if there are none."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if wanted(entry))
    except OSError as error:
        raise DataError(f"{folder}: the folder cannot be read: {error.strerror}") from error
    if not names:
        raise DataError(f"{folder}: {absent}")
    return names


def read_picture(path: Path) -> Image.Image:
    """A picture, decoded in full, as RGB."""
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except Exception as error:  # Pillow raises many kinds of error for a broken file
        raise DataError(f"{path}: not a readable picture: {error}") from error


def read_imagefolder(
    root: Path | str | None, name: str, side: int, limit: int = 100_000
) -> tuple[Arrays, Arrays]:
    """The centre of each picture as uint8 (n, 3, side, side), and its class, of both splits."""
    parts: list[Arrays] = []
    for split in ("train", "val"):
        folder = checked_file(name, split, root)
        samples = load_imagefolder(folder_of(name, root), split).samples
        if len(samples) > limit:
            raise DataError(
                f"{folder}: {len(samples)} pictures are too many to hold in memory (at most "
                f"{limit}); leave them on disk: dataset.stream=true, or load_imagefolder"
            )
        x = np.empty((len(samples), 3, side, side), np.uint8)
        for row, (path, _) in zip(x, samples, strict=True):
            row[:] = _pixels(_centre(read_picture(path), side, shorter=side))
        parts.append((x, np.array([label for _, label in samples])))
    return parts[0], parts[1]


# --- crops --------------------------------------------------------------------------------------


def _pixels(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture).transpose(2, 0, 1)


def _tensor(picture: Image.Image) -> Tensor:
    return torch.from_numpy(_pixels(picture).astype(np.float32)).div_(255)


def _centre(picture: Image.Image, size: int, shorter: int) -> Image.Image:
    scale = shorter / min(picture.size)
    width, height = (max(shorter, round(side * scale)) for side in picture.size)
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    return picture.crop((left, top, left + size, top + size))


def _random_part(picture: Image.Image, size: int, colour: bool, draws: torch.Generator) -> Tensor:
    left, top, width, height = _random_box(*picture.size, draws)
    corners = (left, top, left + width, top + height)
    tensor = _tensor(picture.resize((size, size), Image.Resampling.BILINEAR, corners))
    if colour:
        tensor = _jitter(tensor, draws)
    return tensor.flip(2) if _uniform(draws) < 0.5 else tensor


class _Box(NamedTuple):
    left: int
    top: int
    width: int
    height: int


def _random_box(width: int, height: int, draws: torch.Generator) -> _Box:
    """A random part of a picture; if ten tries don't fit, the largest part in its centre."""
    for _ in range(10):
        area = width * height * _uniform(draws, 0.08, 1.0)
        ratio = math.exp(_uniform(draws, math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left = int(_uniform(draws, 0, width - w + 1))
            return _Box(left, int(_uniform(draws, 0, height - h + 1)), w, h)
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return _Box((width - w) // 2, (height - h) // 2, w, h)


def _uniform(draws: torch.Generator, low: float = 0.0, high: float = 1.0) -> float:
    return low + (high - low) * float(torch.rand((), generator=draws, dtype=torch.float64))


def _jitter(tensor: Tensor, draws: torch.Generator) -> Tensor:
    for kind in torch.randperm(3, generator=draws).tolist():
        grey = (tensor * GREY).sum(0, keepdim=True)
        # The picture without brightness, without contrast, or without saturation.
        target = (torch.zeros_like(grey), grey.mean().expand_as(grey), grey)[kind]
        weight = _uniform(draws, 0.6, 1.4)
        tensor = weight * tensor + (1 - weight) * target
    alpha = 0.1 * torch.randn(3, generator=draws)
    return tensor + (COLOURS @ alpha).view(3, 1, 1)
