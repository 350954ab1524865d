r"""Replicas of one training: the processes that torchrun started, or this process alone.

Plain torch.distributed. A training needs sums, broadcasts and gathering of it; data and random
numbers are shared out by this code, so that a training can be resumed exactly.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["Replicas", "joined", "number_of_replicas", "replicas_on_this_machine"]


@dataclass(frozen=True)
class Replicas:
    """The processes that train one model together, and which of them this is.

    Every method is to be called by all of them, in the same order. With one replica each does
    nothing.
    """

    rank: int = 0  # of this process
    count: int = 1

    @property
    def main(self) -> bool:
        """Whether this is the one that writes records, checkpoints and to the terminal."""
        return self.rank == 0

    def share(self, examples: Tensor) -> Tensor:
        """This replica's part, a contiguous one."""
        return examples.tensor_split(self.count)[self.rank]

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over all replicas, in place."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def told(self, value: Any) -> Any:
        """What the main replica has, whatever the others give."""
        if self.count == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def gathered(self, value: Any) -> list[Any]:
        """What each has, by rank."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def wrapped(self, model: nn.Module) -> nn.Module:
        """The model as it is to be called in training: gradients are averaged over replicas.

        Running statistics are those of the main replica, as where several GPUs of one process
        share a model; each replica normalises with its own batch unless its layers are
        synchronized.
        """
        if self.count == 1:
            return model
        device = next(model.parameters()).device
        return DistributedDataParallel(
            model, device_ids=[device.index] if device.type == "cuda" else None
        )

    def share_buffers(self, model: nn.Module) -> None:
        """Gives all replicas the main one's running statistics."""
        if self.count > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)


def number_of_replicas() -> int:
    """How many torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def replicas_on_this_machine() -> int:
    """How many of them share this machine's cores."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@contextmanager
def joined(device: str) -> Iterator[tuple[Replicas, str]]:
    """Joins the replicas that torchrun started; gives them, and the device of this one."""
    count = number_of_replicas()
    if count == 1:
        yield Replicas(), device
        return
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if torch.device(device).type == "cuda":
        device = f"cuda:{local}"
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    yield Replicas(rank, count), device
    # Not after an error: then torchrun ends the others, which may be waiting for this one.
    dist.barrier()
    dist.destroy_process_group()
