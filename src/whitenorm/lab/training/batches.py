r"""Batches in an order that the seed and the position decide, from memory or from disk.

An epoch is a new permutation of the training set, cut into batches of one size. The examples that
are left over at its end are skipped, others in each epoch: the statistics of a small batch would
be poor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from whitenorm.lab.data.datasets import Dataset
from whitenorm.lab.data.images import ImageFolder, Pictures
from whitenorm.lab.randomness import generator
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.replicas import Replicas

__all__ = ["FolderBatches", "TensorBatches", "make_batches"]

ALONE = Replicas()


class _Batches:
    """What both kinds share: how many batches an epoch has, and which examples are in each."""

    def __init__(
        self, name: str, examples: int, run: Run, device: torch.device, replicas: Replicas
    ) -> None:
        self.examples = examples
        self.device = device
        self.replicas = replicas
        self.seed = run.seed
        self.batch_size = run.batch_size or examples
        if self.batch_size > examples:
            raise ValueError(
                f"batch_size={run.batch_size} is more than the {examples} training examples of "
                f"{name}; use a smaller one, or None for all at once"
            )
        if self.batch_size < replicas.count:
            raise ValueError(
                f"batch_size={self.batch_size} leaves nothing to some of {replicas.count} replicas"
            )
        self.iterations_per_epoch = examples // self.batch_size
        self.full = self.batch_size == examples

    def order(self, epoch: int, start: int) -> list[Tensor]:
        """This replica's examples of each batch of an epoch, from position ``start`` on."""
        order = torch.randperm(self.examples, generator=generator(self.seed, "order", epoch))
        batches = order[: self.iterations_per_epoch * self.batch_size].split(self.batch_size)
        return [self.replicas.share(batch) for batch in batches[start:]]

    def test_parts(self, examples: int, size: int) -> list[range]:
        """This replica's parts of a test set; together the replicas have all of it."""
        parts = [range(i, min(i + size, examples)) for i in range(0, examples, size)]
        return parts[self.replicas.rank :: self.replicas.count]


class TensorBatches(_Batches):
    """Training and test batches of a data set that is held as tensors."""

    def __init__(
        self, dataset: Dataset, run: Run, device: torch.device, replicas: Replicas = ALONE
    ) -> None:
        super().__init__(dataset.name, len(dataset.train_x), run, device, replicas)
        self.dataset = dataset

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, from the one at position ``start``."""
        data = self.dataset
        # The order within a batch doesn't matter: the whole set is one without being copied.
        whole = self.full and self.replicas.count == 1
        orders: list[Any] = [slice(None)][start:] if whole else self.order(epoch, start)
        others = [self.replicas.rank] if self.replicas.rank else []
        for position, chosen in enumerate(orders, start):
            if isinstance(chosen, Tensor):
                chosen = chosen.to(data.train_x.device)
            x, y = data.train_x[chosen].to(self.device), data.train_y[chosen].to(self.device)
            if data.augment is not None:
                x = data.augment(x, generator(self.seed, "augmentation", epoch, position, *others))
            yield x, y

    def test(self, size: int = 1000) -> Iterator[tuple[Tensor, Tensor]]:
        """This replica's parts of the test set, in order."""
        x, y = self.dataset.test_x, self.dataset.test_y
        for indices in self.test_parts(len(x), size):
            part = slice(indices.start, indices.stop)
            yield x[part].to(self.device), y[part].to(self.device)


class FolderBatches(_Batches):
    """Training and test batches of pictures on disk, which worker processes read and crop."""

    def __init__(
        self, pictures: Pictures, run: Run, device: torch.device, replicas: Replicas = ALONE
    ) -> None:
        super().__init__(pictures.name, len(pictures.train), run, device, replicas)
        self.pictures = pictures

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, from the one at position ``start``."""
        self.pictures.train.set_epoch(epoch)
        batches = [batch.tolist() for batch in self.order(epoch, start)]
        return self._load(self.pictures.train, batches)

    def test(self, size: int = 100) -> Iterator[tuple[Tensor, Tensor]]:
        """This replica's parts of the test set, in order."""
        return self._load(
            self.pictures.test,
            [list(part) for part in self.test_parts(len(self.pictures.test), size)],
        )

    def _load(
        self, dataset: ImageFolder, batches: list[list[int]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        loader: Any = torch.utils.data.DataLoader(
            dataset,
            batch_sampler=batches,
            num_workers=self.pictures.workers,
            pin_memory=self.device.type == "cuda",
            # Without it the loader would draw from the random numbers of dropout.
            generator=torch.Generator().manual_seed(0),
        )
        for x, y in loader:
            yield x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)


def make_batches(
    dataset: Dataset | Pictures, run: Run, device: torch.device, replicas: Replicas = ALONE
) -> TensorBatches | FolderBatches:
    """The batches of a data set, wherever it is held."""
    if isinstance(dataset, Pictures):
        return FolderBatches(dataset, run, device, replicas)
    return TensorBatches(dataset.to(device), run, device, replicas)
