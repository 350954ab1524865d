r"""A first convolution that whitens the patches of pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from whitenorm.fitted import fit_whitening, inputs_of

__all__ = ["whiten_convolution_"]

_Convolution = TypeVar("_Convolution", nn.Conv1d, nn.Conv2d, nn.Conv3d)

# Elements of patches that are held at a time; in float64 that is 128 MB.
_HELD = 2**24


@torch.no_grad()
def whiten_convolution_(
    conv: _Convolution,
    pictures: Tensor | Iterable[Any],
    *,
    eps: float = 5e-4,
    device: torch.device | str | None = None,
) -> _Convolution:
    r"""Sets the weights of a first convolution so that its outputs are whitened patches.

    Output :math:`i` is the patch's :math:`i`-th principal component,
    :math:`(\lambda_i + \epsilon)^{-1/2} d_i^\top (x - \mu)`. Beyond as many outputs as a patch has
    values, these follow again with the opposite sign, so that nothing is lost in an activation
    that drops one sign. That is how the fastest recipes for CIFAR-10 begin, with twice as many
    outputs as values of a patch and the weights frozen: ``conv.weight.requires_grad_(False)``.

    The patches are those that the convolution sees, with its stride and dilation, but for those
    that reach into its padding. With a bias, the outputs have mean zero; without one, their
    covariance is the same.

    Args:
        conv: Modified in place; it may have at most twice as many outputs as a patch has values.
        pictures: A tensor of shape (N, C, H, W) as the network is given it, or batches of such,
            also as tuples or lists that start with one. Some thousand are enough.
        eps: Added to the variances. On normalized pictures, 5e-4 (cifar10-airbench) and 1e-2
            (hlb-CIFAR10) have been used: less of it amplifies noise of the smallest components.
        device: To move the pictures to, if given.

    Returns:
        The convolution.

    Example:
        >>> conv = whiten_convolution_(nn.Conv2d(3, 24, 2), torch.rand(50, 3, 16, 16))
        >>> torch.equal(conv.weight[:12], -conv.weight[12:])
        True
    """
    if not isinstance(conv, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        raise TypeError(f"expected a Conv1d, Conv2d or Conv3d, got {type(conv).__name__}")
    if conv.groups != 1:
        raise ValueError(
            f"a convolution in groups sees no whole patches: expected groups=1, got {conv.groups}"
        )
    values, outputs = conv.weight[0].numel(), conv.weight.shape[0]
    if outputs > 2 * values:
        raise ValueError(
            f"patches of {values} values have {values} components, with both signs "
            f"{2 * values}; got a convolution of {outputs} outputs: use {2 * values} or fewer, or "
            "a larger kernel"
        )
    components = fit_whitening(
        _patches(conv, inputs_of(pictures, device)),
        whitening="pca",
        eps=eps,
        components=min(outputs, values),
    ).as_linear()
    for parameter, value in ((conv.weight, components.weight), (conv.bias, components.bias)):
        if parameter is not None:
            parameter.copy_(torch.cat([value, -value])[:outputs].view_as(parameter))
    return conv


def _patches(
    conv: nn.Conv1d | nn.Conv2d | nn.Conv3d, inputs: Iterator[Tensor]
) -> Iterator[Tensor]:
    """Patches as (N, values, positions), of so many pictures at a time as memory allows."""
    spans = [d * (k - 1) + 1 for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
    for x in inputs:
        channels, *sizes = x.shape[1:] if x.dim() > 1 else (0,)
        if channels != conv.in_channels or len(sizes) != len(spans):
            names = ", ".join("DHW"[-len(spans) :])
            raise ValueError(
                f"expected pictures of shape (N, {conv.in_channels}, {names}) for "
                f"{type(conv).__name__}, got shape {tuple(x.shape)}"
            )
        if any(size < span for size, span in zip(sizes, spans, strict=True)):
            raise ValueError(
                f"pictures of {tuple(sizes)} pixels are smaller than the convolution's patches of "
                f"{tuple(spans)}; give larger pictures (padding doesn't count)"
            )
        elements = conv.weight[0].numel() * prod(sizes)
        for some in x.split(max(_HELD // elements, 1)):
            for i, (span, step) in enumerate(zip(spans, conv.stride, strict=True)):
                some = some.unfold(2 + i, span, step)[..., :: conv.dilation[i]]
            positions = tuple(range(2, 2 + len(spans)))
            pixels = tuple(range(2 + len(spans), some.dim()))
            patches = some.permute(0, 1, *pixels, *positions)
            yield patches.flatten(1, 1 + len(spans)).flatten(2)
