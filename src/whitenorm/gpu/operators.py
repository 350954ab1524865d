r"""The Triton path as operators of torch, which ``torch.compile`` takes as they are.

``whitenorm::whiten`` is the forward pass and knows its derivative, ``whitenorm::whiten_backward``;
``whitenorm::update_running`` moves the running statistics. All are in one process and ZCA.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whitenorm.gpu import gate
from whitenorm.layout import is_channels_last, new_output
from whitenorm.precision import work_dtype

__all__ = ["update_running", "whiten", "whiten_backward"]


def _count(x: Tensor) -> float:
    return x.numel() / x.shape[1]


@torch.library.custom_op("whitenorm::whiten", mutates_args=())
def whiten(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    group_size: int,
    shrinkage: float,
    estimate: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """y, the mean (C,), the central moment and W [G, k, k], and what the derivative needs.

    That is the norm of S and the share that shrinkage kept, whether each group is finite, and the
    shift of the passes. ``shrinkage`` is the least that an ``estimate`` may give.
    """
    from whitenorm.gpu import launch  # which needs Triton

    mean, central = launch.moments(x, group_size)
    options = _count(x), eps, shrinkage, estimate, work_dtype(x)
    found = launch.whitening(mean, central, weight, bias, *options)
    y = launch.apply(x, found.shift, found.P, found.constant)
    return y, mean, central, found.W, found.norm, found.kept, found.finite, found.shift


@whiten.register_fake
def _(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    group_size: int,
    shrinkage: float,
    estimate: bool,
) -> tuple[Tensor, ...]:
    channels = x.shape[1]
    size = min(group_size, channels)
    groups = -(-channels // size)
    return (
        new_output(x, is_channels_last(x)),
        x.new_empty(channels, dtype=torch.float64),
        x.new_empty(groups, size, size, dtype=torch.float64),
        x.new_empty(groups, size, size, dtype=torch.float64),
        x.new_empty(groups, dtype=torch.float64),
        x.new_empty(groups, dtype=torch.float64),
        x.new_empty(groups, dtype=torch.int32),
        x.new_empty(channels, dtype=work_dtype(x)),
    )


@torch.library.custom_op("whitenorm::whiten_backward", mutates_args=())
def whiten_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    W: Tensor,
    norm: Tensor,
    kept: Tensor,
    shift: Tensor,
    eps: float,
    group_size: int,
    of_input: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input, weight and bias; an empty tensor for one that isn't there or wanted."""
    from whitenorm.gpu import launch

    total, outer = launch.sums(x, g, shift, group_size)
    dweight, dbias, P, Q, constant = launch.derivative(
        total, outer, mean, W, norm, kept, shift, weight, bias, _count(x), eps
    )
    dx = launch.apply(x, shift, Q, constant, g, P) if of_input else x.new_empty(0)
    return (
        dx,
        x.new_empty(0) if dweight is None else dweight,
        x.new_empty(0) if dbias is None else dbias,
    )


@whiten_backward.register_fake
def _(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    W: Tensor,
    norm: Tensor,
    kept: Tensor,
    shift: Tensor,
    eps: float,
    group_size: int,
    of_input: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        new_output(x, is_channels_last(x)) if of_input else x.new_empty(0),
        x.new_empty(0) if weight is None else torch.empty_like(weight),
        x.new_empty(0) if bias is None else torch.empty_like(bias),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, ctx.eps, ctx.group_size, *ctx.shrinkage = inputs
    _, mean, _, W, norm, kept, _, shift = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, bias, mean, W, norm, kept, shift)


def _backward(ctx: Any, g: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if g is None:
        return (None,) * 7
    x, weight, bias, *statistics = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:3]
    grads: tuple[Tensor | None, ...] | None = None
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        grads = gate.attempt(
            whiten_backward, g, x, weight, bias, *statistics, ctx.eps, ctx.group_size, wanted[0]
        )
    if grads is None:  # gradients of gradients, or an error that has been warned of
        options = ctx.eps, ctx.group_size, *ctx.shrinkage
        grads = gate.differentiable_backward(g, x, weight, bias, wanted, *options)
    pairs = zip(grads, wanted, strict=True)
    return *(grad if want else None for grad, want in pairs), None, None, None, None


whiten.register_autograd(_backward, setup_context=_setup_context)


@torch.library.custom_op(
    "whitenorm::update_running", mutates_args=("running_mean", "running_matrix", "tracked")
)
def update_running(
    running_mean: Tensor,
    running_matrix: Tensor | None,
    tracked: Tensor | None,
    mean: Tensor,
    values: Tensor,
    finite: Tensor,
    divisor: float,
    momentum: float | None,
) -> None:
    """Moves the running statistics towards mean and values / divisor, if all groups are finite."""
    from whitenorm.gpu import launch

    launch.update_running(
        running_mean, running_matrix, tracked, mean, values, finite, divisor, momentum
    )


@update_running.register_fake
def _(
    running_mean: Tensor,
    running_matrix: Tensor | None,
    tracked: Tensor | None,
    mean: Tensor,
    values: Tensor,
    finite: Tensor,
    divisor: float,
    momentum: float | None,
) -> None:
    return None
