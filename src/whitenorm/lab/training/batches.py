r"""Batches in an order that the seed and the position decide, from memory or from disk.

An epoch is a new permutation of the training set, cut into batches of one size. The examples that
are left over at its end are skipped, others in each epoch: the statistics of a small batch would
be poor.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from whitenorm.lab.data.datasets import Dataset
from whitenorm.lab.data.images import ImageFolder, Pictures
from whitenorm.lab.randomness import generator
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.replicas import ALONE, Replicas


class Batches:
    """The training and test batches of a run, or of one of its replicas, on its device."""

    def __init__(
        self,
        dataset: Dataset | Pictures,
        run: Run,
        device: torch.device,
        replicas: Replicas = ALONE,
    ) -> None:
        self.dataset = dataset.to(device) if isinstance(dataset, Dataset) else dataset
        self.device = device
        self.replicas = replicas
        self.seed = run.seed
        self.examples = len(dataset.train_x if isinstance(dataset, Dataset) else dataset.train)
        self.batch_size = run.batch_size or self.examples
        if self.batch_size > self.examples:
            raise ValueError(
                f"batch_size={run.batch_size} is more than the {self.examples} training examples "
                f"of {dataset.name}; use a smaller one, or None for all at once"
            )
        if self.batch_size < replicas.count:
            raise ValueError(
                f"batch_size={self.batch_size} leaves nothing to some of {replicas.count} replicas"
            )
        self.iterations_per_epoch = self.examples // self.batch_size
        self.full = self.batch_size == self.examples

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """This replica's part of each batch of an epoch, from the one at position ``start``."""
        data = self.dataset
        if isinstance(data, Pictures):
            data.train.set_epoch(epoch)
            batches = [batch.tolist() for batch in self._order(epoch, start)]
            yield from self._read(data.train, batches)
            return
        # The order within a batch doesn't matter: the whole set is one without being copied.
        whole = self.full and self.replicas.count == 1
        order: list[Any] = [slice(None)] if whole else self._order(epoch, start)
        for position, chosen in enumerate(order, start):
            chosen = chosen if whole else chosen.to(data.train_x.device)
            x, y = data.train_x[chosen], data.train_y[chosen]
            if data.augment is not None:
                place = (epoch, position, *self.replicas.stream)
                x = data.augment(x, generator(self.seed, "augmentation", *place))
            yield x, y

    def test(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This replica's parts of the test set, in order."""
        data = self.dataset
        if isinstance(data, Pictures):
            yield from self._read(data.test, list(map(list, self.test_parts(len(data.test), 100))))
        else:
            for part in self.test_parts(len(data.test_x), 1000):
                yield data.test_x[part.start : part.stop], data.test_y[part.start : part.stop]

    def test_parts(self, examples: int, size: int) -> list[range]:
        """This replica's parts of a test set; together the replicas have all of it."""
        parts = [range(i, min(i + size, examples)) for i in range(0, examples, size)]
        return parts[self.replicas.rank :: self.replicas.count]

    def _order(self, epoch: int, start: int) -> list[Tensor]:
        order = torch.randperm(self.examples, generator=generator(self.seed, "order", epoch))
        batches = order[: self.iterations_per_epoch * self.batch_size].split(self.batch_size)
        count, rank = self.replicas.count, self.replicas.rank
        return [batch.tensor_split(count)[rank] for batch in batches[start:]]

    def _read(
        self, pictures: ImageFolder, batches: list[list[int]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of pictures on disk, which worker processes read and crop."""
        assert isinstance(self.dataset, Pictures)
        loader: Any = torch.utils.data.DataLoader(
            pictures,
            batch_sampler=batches,
            num_workers=self.dataset.workers,
            pin_memory=self.device.type == "cuda",
            # Without it the loader would draw from the random numbers of dropout.
            generator=torch.Generator().manual_seed(0),
        )
        for x, y in loader:
            yield x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
