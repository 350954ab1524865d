r"""Statistics over all replicas of a torch.distributed process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
else:  # torch may be built without torch.distributed
    ProcessGroup = Any

__all__ = [
    "ProcessGroup",
    "Synchronized",
    "add_up",
    "combine",
    "of_first",
    "pool",
    "synchronize",
]

_Model = TypeVar("_Model", bound=nn.Module)


def synchronize(model: _Model, process_group: ProcessGroup | None = None) -> _Model:
    """Makes the DBN layers of a model whiten with the statistics of all replicas.

    Forward and backward are then what they would be if the batches of all replicas were one batch
    on one device, whatever their sizes, and the running statistics are the same everywhere. Each
    layer costs one collective forward and one backward; nothing where the group has one replica or
    where torch.distributed isn't initialized. Parameter gradients remain each replica's own, for
    :class:`~torch.nn.parallel.DistributedDataParallel` to average.

    Args:
        model: Modified in place.
        process_group: The replicas; None for all of the default group.

    Returns:
        The model.

    Example:
        >>> from whitenorm import DecorrelatedBatchNorm1d
        >>> synchronize(nn.Sequential(nn.Linear(8, 8), DecorrelatedBatchNorm1d(8)))[1].synchronized
        Synchronized(process_group=None)
    """
    from whitenorm.modules import DecorrelatedBatchNorm  # which needs this module

    layers = [m for m in model.modules() if isinstance(m, DecorrelatedBatchNorm)]
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no DecorrelatedBatchNorm layer to synchronize; put some "
            "in, or call whitenorm.convert_batchnorm(model) first"
        )
    for layer in layers:
        layer.synchronized = Synchronized(process_group)
    return model


class Synchronized:
    """Marks a layer whose statistics are those of all replicas of a process group.

    Args:
        process_group: The replicas; None for all, whenever the default group is initialized.
    """

    def __init__(self, process_group: ProcessGroup | None = None) -> None:
        self.process_group = process_group

    def group(self) -> ProcessGroup | None:
        """The group to communicate over, or None where there is nobody to talk to."""
        if not dist.is_available() or not dist.is_initialized():
            return None
        group = self.process_group if self.process_group is not None else dist.group.WORLD
        return group if dist.get_world_size(group) > 1 else None

    def __repr__(self) -> str:
        return f"Synchronized(process_group={self.process_group})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Synchronized:
        return self  # a copied layer talks to the same replicas

    def __reduce__(self) -> tuple[Any, ...]:
        if self.process_group is not None:
            raise TypeError(
                "a layer synchronized over a process group of its own can't be pickled, since the "
                "group can't: save its state_dict() instead"
            )
        return (Synchronized, ())


def combine(
    count: float, means: list[Tensor], moments: list[Tensor], group: ProcessGroup
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Count, means and second central moments of the batches of all replicas together.

    One collective. Replicas may have batches of different sizes, or empty ones; each computes the
    same result to the last bit.
    """
    packed = _pack([means[0].new_full((1,), count), *means, *moments])
    gathered = [torch.empty_like(packed) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, packed, group=group)
    unpacked = [_unpack(vector, [torch.empty(1), *means, *moments]) for vector in gathered]
    counts, *stacked = (torch.stack(parts) for parts in zip(*unpacked, strict=True))
    pairs = zip(stacked[: len(means)], stacked[len(means) :], strict=True)
    joint = [pool(counts, mean, moment) for mean, moment in pairs]
    total = counts.sum().clamp(min=1)
    return total, [mean for mean, _ in joint], [moment for _, moment in joint]


def pool(counts: Tensor, means: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and second central moment of several sets of samples together.

    Counts [n], means [n, G, k, 1], moments [n, G, k, k].
    """
    counts = counts.view(-1, 1, 1, 1)
    joint = (counts * means).sum(0) / counts.sum().clamp(min=1)
    away = means - joint
    return joint, (moments + counts * away * away.mT).sum(0)


def add_up(tensors: list[Tensor], group: ProcessGroup) -> list[Tensor]:
    """The sum of each tensor over all replicas, in one collective."""
    packed = _pack(tensors)
    dist.all_reduce(packed, group=group)
    return _unpack(packed, tensors)


def of_first(tensor: Tensor, group: ProcessGroup) -> None:
    """Overwrites a tensor with the first replica's."""
    dist.broadcast(tensor, dist.get_global_rank(group, 0), group=group)


def _pack(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten().to(tensors[-1]) for t in tensors])


def _unpack(packed: Tensor, like: list[Tensor]) -> list[Tensor]:
    parts = torch.split(packed, [t.numel() for t in like])
    return [part.view(t.shape) for part, t in zip(parts, like, strict=True)]
