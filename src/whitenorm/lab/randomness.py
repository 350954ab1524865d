r"""Random streams, each a function of the run's seed, its purpose and the position.

Each draw has its own stream, so the order and augmentation of the thousandth batch don't depend on
the batches before it, and a resumed run needs no saved state for them.
"""

import hashlib

import torch


def derive(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose: ``derive(0, "order", epoch)``."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *purpose))
