r"""Whitening without a batch: each sample by itself, for batches of one or two.

The samples of a batch become the groups of one larger input, so that
:func:`whitenorm.decorrelated_batch_norm` whitens each with its own statistics.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from whitenorm.arguments import check_affine, check_options, warn_user
from whitenorm.functional import decorrelated_batch_norm
from whitenorm.layout import (
    Span,
    is_channels_last,
    joined_channels,
    of_channels,
    of_groups,
    spans_of,
)
from whitenorm.modules import reset_scale_and_shift, scale_and_shift

__all__ = ["GroupWhitening", "InstanceWhitening2d"]


class _Samplewise(nn.Module):
    """What the two layers share: options, parameters, and the whitening of each sample."""

    def __init__(
        self,
        size: int,
        eps: float,
        affine: bool | str,
        whitening: str,
        shrinkage: float | str,
        iterations: int,
    ) -> None:
        super().__init__()
        check_options(eps, size, whitening, "covariance", shrinkage, iterations)
        self.eps = eps
        self.affine = affine
        self.whitening = whitening
        self.shrinkage = shrinkage
        self.iterations = iterations
        self.weight: nn.Parameter | None
        self.bias: nn.Parameter | None
        self._warned = False

    def reset_parameters(self) -> None:
        """Scale 1 or matrix I, shift 0."""
        reset_scale_and_shift(self.weight, self.bias)

    def _options(self) -> dict[str, Any]:
        return {
            "eps": self.eps,
            "whitening": self.whitening,
            "shrinkage": self.shrinkage,
            "iterations": self.iterations,
            "running": "whitening",  # nothing is averaged, and this is at hand
        }

    def _warn_of_few(self, elements: int, size: int, what: str, option: str) -> None:
        """Once, where nothing is shrunk and a sample's covariance is singular."""
        if self._warned or self.shrinkage != 0 or torch.compiler.is_compiling():
            return
        if 0 < elements < size:
            self._warned = True
            warn_user(
                f"a sample of {elements} elements in each of {size} {what} cannot show how they "
                f"vary: their covariance is singular, and eps={self.eps} decides the rest. Use "
                f"shrinkage='auto' or {option} <= {elements}."
            )

    def _option_names(self) -> str:
        text = f"whitening={self.whitening!r}, shrinkage={self.shrinkage!r}"
        return text + (f", iterations={self.iterations}" if self.whitening == "newton" else "")


# One node each of a graph that is traced from a layer or from a model around it.
fx.wrap("_groups_whitened")
fx.wrap("_channels_whitened")


def _groups_whitened(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    """x (N, C, ...) with the groups of each sample whitened, then scaled channel by channel."""
    groups = x.reshape(x.shape[0], num_groups, x.shape[1:].numel() // num_groups)
    y = _each_sample_whitened(groups, num_groups, None, None, options).reshape(x.shape)
    if weight is not None and bias is not None:
        shape = (-1, *[1] * (x.dim() - 2))
        y = torch.addcmul(bias.view(shape), y, weight.view(shape)).to(x.dtype)
    return _laid_out_as(x, y)


def _channels_whitened(
    x: Tensor,
    group_size: int,
    weight: Tensor | None,
    bias: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    """x (N, C, ...) with the channels of each sample whitened in groups, over its positions."""
    return _laid_out_as(x, _each_sample_whitened(x, group_size, weight, bias, options))


def _each_sample_whitened(
    x: Tensor,
    size: int,
    weight: Tensor | None,
    bias: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    """x (N, V, ...), with every ``size`` variables of each sample whitened together."""
    if x.numel() == 0:
        return x.clone()
    samples, parts = x.shape[0], []
    for span in spans_of(x.shape[1], size):
        part = x[:, span.channels]
        y = decorrelated_batch_norm(
            part.reshape(1, samples * part.shape[1], x.shape[2:].numel()),
            weight=_for_each_sample(weight, span, samples),
            bias=_for_each_sample(bias, span, samples),
            training=True,
            group_size=span.size,
            **options,
        )
        parts.append(y.reshape(part.shape))
    return joined_channels(parts)


def _for_each_sample(parameter: Tensor | None, span: Span, samples: int) -> Tensor | None:
    """A span's part of (C,) or (G, k, k), as often as there are samples, one after the other."""
    if parameter is None:
        return None
    if parameter.dim() == 1:
        part = of_channels(parameter, span.channels)
    else:
        part = of_groups(parameter, span)
    return part.expand(samples, *part.shape).flatten(0, 1)


def _laid_out_as(x: Tensor, y: Tensor) -> Tensor:
    """y with the channels last in memory, if x has them there."""
    if x.dim() > 2 and is_channels_last(x):
        return y.movedim(1, -1).contiguous().movedim(-1, 1)
    return y


class GroupWhitening(_Samplewise):
    r"""Whitens groups of channels against each other, in each sample by itself.

    *Group Whitening: Balancing Learning Efficiency and Representational Capacity*, Huang et al.,
    CVPR 2021. It takes the place and the arguments of :class:`torch.nn.GroupNorm`. The
    :math:`d = CHW` activations of one sample are seen as a matrix :math:`X` with a row for each of
    :math:`g` groups of neighbouring channels: the groups are the variables, and the :math:`d/g`
    activations of a group their samples.

    .. math::
        Y = S^{-1/2} (X - \mu 1^\top), \qquad
        \mu = \tfrac gd X 1, \qquad
        S = \tfrac gd (X - \mu 1^\top)(X - \mu 1^\top)^\top + \epsilon I

    GroupNorm divides by the root of the diagonal of :math:`S` alone, which this does with
    ``shrinkage=1.0``; with one group both are LayerNorm over all of a sample. There are no running
    statistics: a sample's output is a function of that sample, the same in training and
    evaluation.

    It helps where batches are too small for batch statistics, or where training and evaluation
    must compute the same. It doesn't where inference has to be cheap: it can't be folded, it
    decomposes a matrix for each sample, and it exports to ONNX with ``whitening="newton"`` alone.
    Nor where a group has few activations, as in (N, C) inputs of few channels: with fewer than
    there are groups, a sample's covariance is singular, and shrinkage or ``eps`` decides.

    Args:
        num_groups: Number of groups g; it has to divide ``num_channels``.
        num_channels: Number of channels C.
        eps: Added to the diagonal of the covariance.
        affine: Whether to learn a scale and a shift a channel, as GroupNorm does.
        device: Of the parameters.
        dtype: Of the parameters.
        whitening: As of :class:`whitenorm.DecorrelatedBatchNorm2d`.
        shrinkage: As there; 0.0 is the paper's.
        iterations: Steps of ``"newton"``.

    Shape:
        - Input: (N, C) or (N, C, ...)
        - Output: as the input

    Example:
        >>> norm = GroupWhitening(4, 32, shrinkage=0.0)
        >>> y = norm(torch.randn(1, 32, 8, 8))
        >>> torch.allclose(y.view(4, -1).cov(correction=0), torch.eye(4), atol=1e-3)
        True
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        whitening: str = "zca",
        shrinkage: float | str = "bounded",
        iterations: int = 5,
    ) -> None:
        for name, number in (("num_groups", num_groups), ("num_channels", num_channels)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ValueError(f"{name} must be a positive integer, got {number!r}")
        if num_channels % num_groups != 0:
            raise ValueError(
                f"num_groups must divide num_channels, got num_groups={num_groups} and "
                f"num_channels={num_channels}"
            )
        check_affine(affine, matrix=False)
        super().__init__(num_groups, eps, affine, whitening, shrinkage, iterations)
        self.num_groups = num_groups
        self.num_channels = num_channels
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight, self.bias = scale_and_shift(affine, num_channels, 1, **factory)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        if not isinstance(input, fx.Proxy):
            self._check_input(input)
        return _groups_whitened(input, self.num_groups, self.weight, self.bias, self._options())

    def _check_input(self, input: Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_channels:
            raise ValueError(
                f"expected input of shape (N, {self.num_channels}, ...), got "
                f"{tuple(input.shape)}; num_channels must be the number of channels"
            )
        elements = input.shape[2:].numel() * self.num_channels // self.num_groups
        if elements == 1:
            raise ValueError(
                f"expected more than 1 value a group of a sample, got input of shape "
                f"{tuple(input.shape)} in {self.num_groups} groups; use fewer groups"
            )
        self._warn_of_few(elements, self.num_groups, "groups", "num_groups")

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            + self._option_names()
        )


class InstanceWhitening2d(_Samplewise):
    r"""Whitens groups of channels over the positions of each sample by itself.

    What :class:`whitenorm.DecorrelatedBatchNorm2d` computes in training from a batch of that one
    sample, and what :class:`torch.nn.InstanceNorm2d` is with whitening: ``group_size=1`` is
    InstanceNorm. There are no running statistics; training and evaluation compute the same.

    It helps where the correlations of one picture's channels are what is to go, such as its style,
    or where batches are of one or two. It doesn't where they are what tells pictures apart, nor on
    maps of fewer positions than a group has channels. It can't be folded, and exports to ONNX with
    ``whitening="newton"`` alone.

    Args:
        num_features: Number of channels C.
        eps: Added to the diagonal of the covariance.
        affine: Whether to learn a scale and a shift a channel, or with ``"matrix"`` a matrix a
            group and a shift, as of :class:`whitenorm.DecorrelatedBatchNorm2d`. Off by default, as
            in InstanceNorm.
        device: Of the parameters.
        dtype: Of the parameters.
        group_size: How many contiguous channels are whitened together. If it doesn't divide C, the
            last group is smaller; if it is larger than C, there is one group.
        whitening: As of :class:`whitenorm.DecorrelatedBatchNorm2d`.
        shrinkage: As there.
        iterations: Steps of ``"newton"``.

    Shape:
        - Input: (N, C, H, W)
        - Output: as the input

    Example:
        >>> y = InstanceWhitening2d(32, group_size=8, shrinkage=0.0)(torch.randn(2, 32, 16, 16))
        >>> torch.allclose(y[1, :8].flatten(1).cov(correction=0), torch.eye(8), atol=1e-3)
        True
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        affine: bool | str = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        group_size: int = 16,
        whitening: str = "zca",
        shrinkage: float | str = "bounded",
        iterations: int = 5,
    ) -> None:
        if not isinstance(num_features, int) or num_features < 1:
            raise ValueError(f"num_features must be a positive integer, got {num_features!r}")
        check_affine(affine)
        super().__init__(group_size, eps, affine, whitening, shrinkage, iterations)
        self.num_features = num_features
        self.group_size = group_size
        size = min(group_size, num_features)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight, self.bias = scale_and_shift(affine, num_features, size, **factory)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        if not isinstance(input, fx.Proxy):
            self._check_input(input)
        return _channels_whitened(input, self.group_size, self.weight, self.bias, self._options())

    def _check_input(self, input: Tensor) -> None:
        if input.dim() != 4 or input.shape[1] != self.num_features:
            raise ValueError(
                f"expected 4D input of shape (N, {self.num_features}, H, W), got "
                f"{tuple(input.shape)}; num_features must be the number of channels"
            )
        positions = input.shape[2:].numel()
        if positions == 1:
            raise ValueError(
                f"expected more than 1 position, got input of shape {tuple(input.shape)}; use "
                "whitenorm.GroupWhitening, whose samples are channels as well"
            )
        size = min(self.group_size, self.num_features)
        self._warn_of_few(positions, size, "channels", "group_size")

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, affine={self.affine!r}, "
            f"group_size={self.group_size}, " + self._option_names()
        )
