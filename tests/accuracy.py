"""How far a result of the layer is from what it should be."""

import torch
from reference import samples

from whitenorm import decorrelated_batch_norm


def forward_backward(x, dy, **options):
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = decorrelated_batch_norm(x, training=True, **options)
    y.backward(dy.to(y.dtype))
    return y.detach(), x.grad


def worst_channel(value, expected):
    """The largest relative error of a channel, so that large channels don't hide small ones."""
    value, expected = samples(value), samples(expected)
    return ((value - expected).norm(dim=1) / expected.norm(dim=1)).max().item()


def compare_with_float64(x, dy, **options):
    single = forward_backward(x, dy, **options)
    double = forward_backward(x.double(), dy.double(), **options)
    return [worst_channel(a, b) for a, b in zip(single, double, strict=True)]
