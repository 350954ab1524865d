r"""How much the output of a normalization depends on the batch that a sample happens to be in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from whitenorm.diagnostics.isometry import undisturbed
from whitenorm.precision import work_dtype

__all__ = ["normalization_disturbance"]


@torch.no_grad()
def normalization_disturbance(
    normalize: Callable[[Tensor], Tensor],
    activations: Tensor,
    batch_size: int,
    rounds: int = 20,
    generator: torch.Generator | None = None,
) -> float:
    r"""Stochastic normalization disturbance (SND) of a normalization :math:`G`, over all samples.

    .. math::
        \Delta_G = \mathrm{E}_x\, \mathrm{E}_B\,
        \lVert G(x; B) - \mathrm{E}_B\, G(x; B) \rVert_2

    where :math:`B` are random batches of ``batch_size`` samples that contain :math:`x`, and
    :math:`G(x; B)` is the output for :math:`x`. It came with IterNorm (Huang et al., CVPR 2019)
    and compares whitenings in *An Investigation into the Stochasticity of Batch Whitening* (Huang
    et al., CVPR 2020). It is 0 where a sample's output doesn't depend on the others.

    In each round the samples are dealt into batches at random, so that every sample is in one
    batch; both expectations over batches are means over the rounds. Of maps, the examples are
    dealt, and the norm is that of the channels at one position, averaged over the positions.
    The outputs of all rounds are kept in memory at once.

    Args:
        normalize: A layer, or any function of a batch (B, C, ...). A module is taken in the mode
            it is in, with its scale and shift, and left as it was.
        activations: What is normalized, shape (N, C) or (N, C, ...).
        batch_size: Examples of a batch, at most N.
        rounds: How many batches each sample is seen in, at least 2. The fewer, the smaller the
            estimate, by about 1 / (2 rounds) of it.
        generator: Of the random numbers.

    Example:
        >>> from whitenorm import DecorrelatedBatchNorm1d
        >>> x, layer = torch.randn(256, 16), DecorrelatedBatchNorm1d(16)
        >>> small, large = (normalization_disturbance(layer, x, size) for size in (32, 128))
        >>> small > large > 0
        True
    """
    x = activations.detach()
    if x.dim() < 2:
        raise ValueError(f"expected activations (N, C, ...), got shape {tuple(x.shape)}")
    if not 1 <= batch_size <= len(x):
        raise ValueError(
            f"batch_size must be from 1 to the number of examples, {len(x)}, got {batch_size!r}"
        )
    if rounds < 2:
        raise ValueError(f"rounds must be at least 2, got {rounds!r}")
    device = torch.device("cpu") if generator is None else generator.device
    orders = [
        torch.randperm(len(x), generator=generator, device=device).to(x.device)
        for _ in range(rounds)
    ]
    with undisturbed(normalize, x) if isinstance(normalize, nn.Module) else nullcontext():
        outputs = torch.stack([_dealt(normalize, x, order, batch_size) for order in orders])
    outputs = outputs.to(work_dtype(outputs))
    return float(torch.linalg.vector_norm(outputs - outputs.mean(0), dim=2).mean())


def _dealt(
    normalize: Callable[[Tensor], Tensor], x: Tensor, order: Tensor, batch_size: int
) -> Tensor:
    """The output for each sample in the batch that it is dealt into, in the order of x.

    The last batch is filled up with samples that were in the first, whose output isn't used again.
    """
    filled = torch.cat([order, order[: -len(order) % batch_size]])
    output = torch.cat([normalize(x[batch]) for batch in filled.split(batch_size)])[: len(order)]
    return torch.empty_like(output).index_copy_(0, order, output)
