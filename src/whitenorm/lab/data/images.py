r"""Pictures that stay on disk: an ImageFolder tree, cropped in the loader's worker processes.

A tree is ``{train,val}/<class>/*.JPEG``, as ImageNet's is laid out. Every random crop has a
generator of its own, seeded by (seed, epoch, index): it is the same whatever the number of workers
or processes, and after a restart.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from whitenorm.lab.data.readers import Arrays
from whitenorm.lab.data.sources import DataError, checked_file, folder_of
from whitenorm.lab.randomness import generator

__all__ = ["EXTENSIONS", "ImageFolder", "Pictures", "load_imagefolder", "read_imagefolder"]

EXTENSIONS = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff")

# Of ImageNet's training set, as fb.resnet.torch has them: mean and deviation of the channels, and
# the principal directions of colour, scaled by their deviations.
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
COLOURS = torch.tensor(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
) * torch.tensor([0.2175, 0.0188, 0.0045])
GREY = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)


def load_imagefolder(
    root: Path | str, split: str, size: int = 224, train: bool = False, **options: int | bool
) -> ImageFolder:
    """One split ("train", "val") of a tree, with crops for training or for evaluation.

    Classes are numbered by the names of the folders in ``train``, whichever split is read.
    """
    root = Path(root)
    if not (root / split).is_dir():
        raise DataError(
            f"{root / split}: no such folder; an ImageFolder tree has {{train,val}}/<class>/ in it"
        )
    classes = _folders(root / "train") if (root / "train").is_dir() else None
    return ImageFolder(root / split, size, train, classes=classes, **options)  # type: ignore[arg-type]


class ImageFolder(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """The pictures of one split and their classes, read, cropped and normalised one by one.

    For training: a random part (8 to 100% of the area, sides 3:4 to 4:3) resized to ``size``, at
    even odds mirrored, and with ``colour`` also fb.resnet.torch's jitter of brightness, contrast,
    saturation (each up to 40%) and lighting. For evaluation: the shorter side to ``size`` * 256 /
    224, and its centre. A greyscale picture becomes RGB.

    Args:
        folder: Holds a folder for each class.
        size: Pixels a side.
        train: Whether to crop for training.
        classes: The names in order; those of the folders, sorted, by default.
        seed: Of the random crops; :meth:`set_epoch` moves on to the next ones.
        colour: Whether to jitter colours too.
    """

    def __init__(
        self,
        folder: Path | str,
        size: int = 224,
        train: bool = False,
        *,
        classes: list[str] | None = None,
        seed: int = 0,
        colour: bool = False,
    ) -> None:
        self.folder, self.size, self.train = Path(folder), size, train
        self.seed, self.colour = seed, colour
        found = _folders(self.folder)
        self.classes = found if classes is None else classes
        if strange := sorted(set(found) - set(self.classes)):
            raise DataError(
                f"{self.folder / strange[0]}: the training set has no class {strange[0]!r}"
            )
        number = {name: index for index, name in enumerate(self.classes)}
        self.samples = [
            (path, number[name]) for name in found for path in _pictures(self.folder / name)
        ]
        # Shared memory, so that worker processes that live on see the epoch change.
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of one picture."""
        return (3, self.size, self.size)

    def set_epoch(self, epoch: int) -> None:
        """Which of the random crops to draw; call it before iterating over a loader."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.samples[index]
        picture = read_picture(path)
        if not self.train:
            return _normalised(_centre(picture, self.size, round(self.size * 256 / 224))), label
        draws = generator(self.seed, "crop", int(self._epoch), index)
        tensor = _random_part(picture, self.size, draws)
        if self.colour:
            tensor = _jitter(tensor, draws)
        if _uniform(draws) < 0.5:
            tensor = tensor.flip(2)
        return _normalised(tensor), label


@dataclass(frozen=True)
class Pictures:
    """A data set that stays on disk.

    Args:
        name: Of the data set.
        train: Crops for training.
        test: Crops for evaluation.
        workers: Processes that read them.
    """

    name: str
    train: ImageFolder
    test: ImageFolder
    workers: int = 2

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return self.train.num_classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one picture."""
        return self.train.input_shape


def read_picture(path: Path) -> Image.Image:
    """A picture, decoded in full, as RGB."""
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except Exception as error:  # Pillow raises whatever a broken stream leads its decoders to
        raise DataError(f"{path}: not a readable picture: {error}") from error


def read_imagefolder(
    root: Path | str | None, name: str, side: int, limit: int = 100_000
) -> tuple[Arrays, Arrays]:
    """Both splits of a tree in memory: the centre of each picture, as uint8 (n, 3, side, side)."""
    parts: list[Arrays] = []
    for split in ("train", "val"):
        checked_file(name, split, root)
        tree = load_imagefolder(folder_of(name, root), split)
        if len(tree) > limit:
            raise DataError(
                f"{tree.folder}: {len(tree)} pictures are too many to hold in memory (at most "
                f"{limit}); read them from disk with load_imagefolder"
            )
        x = np.empty((len(tree), 3, side, side), np.uint8)
        for row, (path, _) in zip(x, tree.samples, strict=True):
            row[:] = _pixels(_crop_centre(read_picture(path), side, side))
        parts.append((x, np.array([label for _, label in tree.samples])))
    return parts[0], parts[1]


# --- the tree -----------------------------------------------------------------------------------


def _listing(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"{folder}: the folder cannot be read: {error.strerror}") from error


def _folders(folder: Path) -> list[str]:
    names = [entry.name for entry in _listing(folder) if entry.is_dir()]
    if not names:
        raise DataError(f"{folder}: holds no class folders; expected <class>/<picture>.JPEG in it")
    return names


def _pictures(folder: Path) -> list[Path]:
    paths = [folder / e.name for e in _listing(folder) if e.name.lower().endswith(EXTENSIONS)]
    if not paths:
        raise DataError(f"{folder}: the class folder holds no picture ({', '.join(EXTENSIONS)})")
    return paths


# --- crops --------------------------------------------------------------------------------------


def _uniform(draws: torch.Generator, low: float = 0.0, high: float = 1.0) -> float:
    return low + (high - low) * float(torch.rand((), generator=draws, dtype=torch.float64))


@dataclass(frozen=True)
class _Box:
    left: int
    top: int
    width: int
    height: int


def _random_box(width: int, height: int, draws: torch.Generator) -> _Box:
    """A random part of a picture; its largest allowed centre if ten tries don't fit into it."""
    for _ in range(10):
        area = width * height * _uniform(draws, 0.08, 1.0)
        ratio = math.exp(_uniform(draws, math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left = int(_uniform(draws, 0, width - w + 1))
            return _Box(left, int(_uniform(draws, 0, height - h + 1)), w, h)
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return _Box((width - w) // 2, (height - h) // 2, w, h)


def _random_part(picture: Image.Image, size: int, draws: torch.Generator) -> Tensor:
    box = _random_box(*picture.size, draws)
    corners = (box.left, box.top, box.left + box.width, box.top + box.height)
    return _tensor(picture.resize((size, size), Image.Resampling.BILINEAR, corners))


def _crop_centre(picture: Image.Image, size: int, shorter: int) -> Image.Image:
    width, height = picture.size
    scale = shorter / min(width, height)
    width, height = (max(shorter, round(side * scale)) for side in (width, height))
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    return picture.crop((left, top, left + size, top + size))


def _centre(picture: Image.Image, size: int, shorter: int) -> Tensor:
    return _tensor(_crop_centre(picture, size, shorter))


def _pixels(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture).transpose(2, 0, 1)


def _tensor(picture: Image.Image) -> Tensor:
    return torch.from_numpy(_pixels(picture).astype(np.float32)).div_(255)


def _normalised(tensor: Tensor) -> Tensor:
    return (tensor - MEAN) / DEVIATION


def _jitter(tensor: Tensor, draws: torch.Generator) -> Tensor:
    for kind in torch.randperm(3, generator=draws).tolist():
        grey = (tensor * GREY).sum(0, keepdim=True)
        # What a picture without brightness, without contrast, without saturation looks like.
        target = (torch.zeros_like(grey), grey.mean().expand_as(grey), grey)[kind]
        weight = _uniform(draws, 0.6, 1.4)
        tensor = weight * tensor + (1 - weight) * target
    alpha = 0.1 * torch.randn(3, generator=draws)
    return tensor + (COLOURS @ alpha).view(3, 1, 1)
