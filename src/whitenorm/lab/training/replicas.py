r"""Replicas of one training: the processes that torchrun started, or this process alone.

Plain torch.distributed. A training needs sums, broadcasts and gathering of it; data and random
numbers are shared out by this code, so that a training can be resumed exactly.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Replicas:
    """The processes that train one model together, and which of them this is.

    All of them call each method, in the same order. With one replica there is nothing to do.
    """

    rank: int = 0  # of this process
    count: int = 1

    @property
    def main(self) -> bool:
        """Whether this is the one that writes records, checkpoints and to the terminal."""
        return self.rank == 0

    @property
    def stream(self) -> tuple[int, ...]:
        """What distinguishes this replica's random numbers from those of the main one."""
        return (self.rank,) if self.rank else ()

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over all replicas, in place."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def told(self, value: Any) -> Any:
        """What the main replica has, whatever the others give."""
        values = [value]
        if self.count > 1:
            dist.broadcast_object_list(values)
        return values[0]

    def gathered(self, value: Any) -> list[Any]:
        """What each has, by rank."""
        values = [value] * self.count
        if self.count > 1:
            dist.all_gather_object(values, value)
        return values

    def wrapped(self, model: nn.Module) -> nn.Module:
        """The model as it is to be called in training: gradients are averaged over replicas.

        Running statistics are those of the main replica. Each replica normalizes with its own
        part of a batch unless its layers are synchronized.
        """
        if self.count == 1:
            return model
        device = next(model.parameters()).device
        ids = [device.index] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids)

    def share_buffers(self, model: nn.Module) -> None:
        """Gives all replicas the main one's running statistics."""
        if self.count > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)


ALONE = Replicas()


def number_of_replicas() -> int:
    """How many torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined(device: str) -> Iterator[tuple[Replicas, str]]:
    """Joins the replicas that torchrun started; gives them, and the device of this one."""
    count = number_of_replicas()
    if count == 1:
        yield ALONE, device
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
