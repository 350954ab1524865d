r"""Singular values of the input-output Jacobian, by which dynamical isometry is judged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from whitenorm.functional import decorrelated_batch_norm
from whitenorm.modules import DecorrelatedBatchNorm
from whitenorm.precision import algebra_dtype

__all__ = ["jacobian_singular_values", "undisturbed"]


def jacobian_singular_values(model: nn.Module, input: Tensor) -> Tensor:
    r"""Singular values of each sample's input-output Jacobian :math:`\partial y_i/\partial x_i`.

    Dynamical isometry (Saxe et al., 2013) is when they all lie near 1. The model is taken in the
    mode it is in. In eval mode a normalization uses its running statistics, and the Jacobian is
    that of inference. In train mode it uses the statistics of the batch ``input``, *held fixed*:
    the Jacobian is that of the affine map which the batch made of the layer. What a sample does to
    the others through the statistics, and to itself (of order 1/N), is left out.

    Args:
        model: Left as it was.
        input: A batch of inputs, shape (N, ...).

    Returns:
        Non-increasing, shape (N, min(elements of an input, elements of an output)); NaN where a
        Jacobian isn't finite.
    """
    x = input.detach().clone().requires_grad_()
    with undisturbed(model, input), torch.enable_grad():
        handles = [
            module.register_forward_hook(_held_statistics)
            for module in model.modules()
            if isinstance(module, _BatchNorm | DecorrelatedBatchNorm)
        ]
        try:
            y = model(x).flatten(1)
        finally:
            for handle in handles:
                handle.remove()
        others = torch.autograd.grad(y[0].sum(), x, retain_graph=True)[0][1:]
        if others.isfinite().all() and others.any():
            raise ValueError(
                "an output depends on other samples of the batch by more than the statistics of "
                "BatchNorm and DecorrelatedBatchNorm layers; call eval() on the layer that does it"
            )
        # Without other samples' influence, one backward pass gives a row of every Jacobian.
        rows = [torch.autograd.grad(out.sum(), x, retain_graph=True)[0] for out in y.unbind(1)]
    jacobian = torch.stack(rows, 1).flatten(2)
    finite = jacobian.isfinite().all(-1).all(-1)  # LAPACK may not return from NaN
    jacobian = torch.where(finite[:, None, None], jacobian, 0).to(algebra_dtype(jacobian))
    return torch.where(finite[:, None], torch.linalg.svdvals(jacobian), torch.nan)


def _held_statistics(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """The layer's output once more, with its batch's statistics as constants."""
    layer: Any = module
    if not layer.training and layer.running_mean is not None:
        return output
    x = args[0]
    with torch.no_grad():
        if isinstance(layer, _BatchNorm):
            variance, mean = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
        else:
            size = min(layer.group_size, layer.num_features)
            mean = x.new_zeros(layer.num_features)
            matrix = x.new_zeros(layer.num_groups, size, size)
            _whiten(layer, x, mean, matrix, training=True)  # momentum 1: they become the batch's
    if isinstance(layer, _BatchNorm):
        scaled: Tensor = nn.functional.batch_norm(
            x, mean, variance, layer.weight, layer.bias, eps=layer.eps
        )
        return scaled
    return _whiten(layer, x, mean, matrix, training=False)


def _whiten(layer: Any, x: Tensor, mean: Tensor, matrix: Tensor, training: bool) -> Tensor:
    return decorrelated_batch_norm(
        x,
        mean,
        matrix,
        layer.weight,
        layer.bias,
        training,
        1.0,
        layer.eps,
        group_size=layer.group_size,
        whitening=layer.whitening,
        running="whitening",
        shrinkage=layer.shrinkage,
        iterations=layer.iterations,
        process_group=None if layer.synchronized is None else layer.synchronized.group(),
    )


@contextmanager
def undisturbed(model: nn.Module, input: Tensor) -> Iterator[None]:
    """Puts buffers and random number generators back to where they were."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = [input.device] if input.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)
