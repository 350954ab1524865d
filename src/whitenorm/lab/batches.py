r"""Batches in an order that the seed and the position decide, from memory or from disk.

An epoch is a new permutation of the training set, cut into batches of one size: what is left over
at its end is another remainder each time, and the statistics of a ragged batch would be poor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whitenorm.lab.data import Dataset
from whitenorm.lab.images import ImageFolder
from whitenorm.lab.randomness import generator
from whitenorm.lab.runs import Run

__all__ = ["FolderBatches", "Pictures", "TensorBatches", "make_batches"]


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


class _Batches:
    """What both kinds share: how many batches an epoch has, and which examples are in each."""

    def __init__(self, name: str, examples: int, run: Run, device: torch.device) -> None:
        self.examples = examples
        self.device = device
        self.seed = run.seed
        self.batch_size = run.batch_size or examples
        if self.batch_size > examples:
            raise ValueError(
                f"batch_size={run.batch_size} is more than the {examples} training examples of "
                f"{name}; use a smaller one, or None for all at once"
            )
        self.steps_per_epoch = examples // self.batch_size
        self.full = self.batch_size == examples

    def order(self, epoch: int, start: int) -> list[Tensor]:
        """The examples of each batch of an epoch, from the batch at position ``start``."""
        order = torch.randperm(self.examples, generator=generator(self.seed, "order", epoch))
        batches = order[: self.steps_per_epoch * self.batch_size].split(self.batch_size)
        return list(batches[start:])


class TensorBatches(_Batches):
    """Training and test batches of a data set that is held as tensors.

    Args:
        dataset: On that device, best.
        run: Its batch size and seed.
        device: Where the batches are wanted.
    """

    def __init__(self, dataset: Dataset, run: Run, device: torch.device) -> None:
        super().__init__(dataset.name, len(dataset.train_x), run, device)
        self.dataset = dataset

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, from the one at position ``start``."""
        data = self.dataset
        # The order within a batch doesn't matter, so the whole set needs no copy of itself.
        everything = [slice(None)][start:]
        orders: list[Any] = everything if self.full else self.order(epoch, start)
        for step, chosen in enumerate(orders, start):
            if isinstance(chosen, Tensor):
                chosen = chosen.to(data.train_x.device)
            x, y = data.train_x[chosen].to(self.device), data.train_y[chosen].to(self.device)
            if data.augment is not None:
                x = data.augment(x, generator(self.seed, "augmentation", epoch, step))
            yield x, y

    def test(self, size: int = 1000) -> Iterator[tuple[Tensor, Tensor]]:
        """The test set, in order."""
        x, y = self.dataset.test_x, self.dataset.test_y
        for start in range(0, len(x), size):
            part = slice(start, start + size)
            yield x[part].to(self.device), y[part].to(self.device)


class FolderBatches(_Batches):
    """Training and test batches of pictures that worker processes read and crop.

    Args:
        pictures: On disk.
        run: Its batch size and seed.
        device: Where the batches are wanted.
    """

    def __init__(self, pictures: Pictures, run: Run, device: torch.device) -> None:
        super().__init__(pictures.name, len(pictures.train), run, device)
        self.pictures = pictures

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, from the one at position ``start``."""
        self.pictures.train.set_epoch(epoch)
        batches = [batch.tolist() for batch in self.order(epoch, start)]
        return self._load(self.pictures.train, batch_sampler=batches)

    def test(self, size: int = 100) -> Iterator[tuple[Tensor, Tensor]]:
        """The test set, in order."""
        return self._load(self.pictures.test, batch_size=size)

    def _load(self, dataset: ImageFolder, **how: Any) -> Iterator[tuple[Tensor, Tensor]]:
        loader: Any = torch.utils.data.DataLoader(
            dataset,
            num_workers=self.pictures.workers,
            pin_memory=self.device.type == "cuda",
            # Else the loader would draw a seed from the stream that dropout draws from.
            generator=torch.Generator().manual_seed(0),
            **how,
        )
        for x, y in loader:
            yield x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)


def make_batches(
    dataset: Dataset | Pictures, run: Run, device: torch.device
) -> TensorBatches | FolderBatches:
    """The batches of a data set, wherever it is held."""
    if isinstance(dataset, Pictures):
        return FolderBatches(dataset, run, device)
    return TensorBatches(dataset.to(device), run, device)
