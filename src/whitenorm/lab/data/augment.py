r"""Augmentation of a whole batch at once, on its device; every draw comes from a generator."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
PADDING = 4  # pixels on each side


def random_flip(batch: Tensor, generator: torch.Generator) -> Tensor:
    """Mirrors each picture of (N, C, H, W), or not, at even odds."""
    flipped = torch.rand(len(batch), generator=generator, device=generator.device) < 0.5
    return torch.where(flipped.to(batch.device).view(-1, 1, 1, 1), batch.flip(3), batch)


def random_crop(batch: Tensor, generator: torch.Generator) -> Tensor:
    """Pads each picture of (N, C, H, W) by reflection and cuts its size out at a random place."""
    n, _, height, width = batch.shape
    top, left = (
        torch.randint(2 * PADDING + 1, (n,), generator=generator, device=generator.device)
        for _ in range(2)
    )
    windows = F.pad(batch, [PADDING] * 4, mode="reflect").unfold(2, height, 1).unfold(3, width, 1)
    rows = torch.arange(n, device=batch.device)
    return windows[rows, :, top.to(batch.device), left.to(batch.device)]


AUGMENTATIONS: dict[str, Augmentation] = {
    "flip": random_flip,
    "crop": random_crop,
    "crop+flip": lambda batch, draws: random_flip(random_crop(batch, draws), draws),
}
