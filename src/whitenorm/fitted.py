r"""Whitening that is fitted to data once, and then stays as it is."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from whitenorm.arguments import check_options, check_tensors
from whitenorm.distributed import ProcessGroup, combine, pool
from whitenorm.layout import grouped, is_channels_last
from whitenorm.passes import moments
from whitenorm.precision import algebra_dtype, no_autocast, work_dtype
from whitenorm.shrinkage import kept_share, shrink
from whitenorm.whitening import whitening_matrix

__all__ = ["FittedWhitening", "fit_whitening", "inputs_of"]

fx.wrap("_mapped")  # one node of a graph that is traced


class FittedWhitening(nn.Module):
    r"""A fixed affine map of the features, :math:`y = W (x - \mu) + b`.

    :func:`fit_whitening` makes one from data. A new one is the identity, or leaves out the last
    features, until a state is loaded into it. Nothing in it is learned; :meth:`as_linear` and
    :meth:`as_conv` give layers that can be.

    Args:
        in_features: How many features the input has.
        out_features: How many the output has; None for as many.

    Attributes:
        mean: :math:`\mu`, shape (in_features,).
        matrix: :math:`W`, shape (out_features, in_features).
        bias: :math:`b`, shape (out_features,): 0 unless this is the inverse of another.

    Shape:
        - Input: (N, in_features, ...); every position is whitened by itself
        - Output: (N, out_features, ...), with the input's dtype

    Example:
        >>> FittedWhitening(3)(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[1., 2., 3.]])
    """

    mean: Tensor
    matrix: Tensor
    bias: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = in_features if out_features is None else out_features
        rows = self.out_features
        self.register_buffer("mean", torch.zeros(in_features, device=device, dtype=dtype))
        self.register_buffer("matrix", torch.eye(rows, in_features, device=device, dtype=dtype))
        self.register_buffer("bias", torch.zeros(rows, device=device, dtype=dtype))

    def forward(self, input: Tensor) -> Tensor:
        return _mapped(input, self.mean, self.matrix, self.bias)

    @torch.no_grad()
    def inverse(self) -> FittedWhitening:
        r"""A module that undoes this one, :math:`x = W^+ (y - b) + \mu`.

        Exactly, if no feature was left out. Else it gives the nearest point among those that the
        kept components span, since :math:`W^+` is the pseudo-inverse.

        Example:
            >>> x = torch.randn(99, 4).cumsum(1)
            >>> whitening = fit_whitening(x)
            >>> torch.allclose(whitening.inverse()(whitening(x)), x, atol=1e-4)
            True
        """
        other = FittedWhitening(
            self.out_features, self.in_features, self.matrix.device, self.matrix.dtype
        )
        other.mean.copy_(self.bias)
        other.matrix.copy_(_pseudo_inverse(_exactly(self.matrix)))
        other.bias.copy_(self.mean)
        return other

    @torch.no_grad()
    def as_linear(self) -> nn.Linear:
        r"""The same map as a layer for inputs of shape (..., in_features), :math:`W x + b'`.

        Where the mean is many deviations from zero, :math:`b' = b - W \mu` takes digits away from
        float32 that the module itself, which subtracts the mean first, doesn't lose.

        Example:
            >>> fit_whitening(torch.randn(99, 4), whitening="pca", components=2).as_linear()
            Linear(in_features=4, out_features=2, bias=True)
        """
        layer = nn.Linear(
            self.in_features,
            self.out_features,
            device=self.matrix.device,
            dtype=self.matrix.dtype,
        )
        layer.weight.copy_(self.matrix)
        layer.bias.copy_(self._constant())
        return layer

    @torch.no_grad()
    def as_conv(
        self, kernel_size: int | tuple[int, int] = 1, stride: int | tuple[int, int] = 1
    ) -> nn.Conv2d:
        """The same map as a convolution: 1x1 of feature maps, or larger if it whitens patches.

        Args:
            kernel_size: Of the patches that the features are, as
                :func:`torch.nn.functional.unfold` writes them: all of the first channel, then all
                of the second.
            stride: Of the convolution.

        Example:
            >>> pictures = torch.rand(9, 3, 8, 8)
            >>> fit_whitening(F.unfold(pictures, 2)).as_conv(kernel_size=2)
            Conv2d(3, 12, kernel_size=(2, 2), stride=(1, 1))
        """
        kernel = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
        if self.in_features % prod(kernel):
            raise ValueError(
                f"{self.in_features} features aren't patches of {kernel[0]} x {kernel[1]} pixels: "
                f"give a kernel_size whose number of pixels divides {self.in_features}"
            )
        layer = nn.Conv2d(
            self.in_features // prod(kernel),
            self.out_features,
            kernel,
            stride,
            device=self.matrix.device,
            dtype=self.matrix.dtype,
        )
        layer.weight.copy_(self.matrix.view_as(layer.weight))
        if layer.bias is not None:
            layer.bias.copy_(self._constant())
        return layer

    def _constant(self) -> Tensor:
        """b - W mean."""
        return _exactly(self.bias) - _exactly(self.matrix) @ _exactly(self.mean)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"


def _exactly(t: Tensor) -> Tensor:
    """In float64, and where every device's tensors have it."""
    return t.to("cpu", torch.float64)


def _pseudo_inverse(matrix: Tensor) -> Tensor:
    """Of a matrix of full rank: R^-1 Q^T from its decomposition Q R, or the transpose of such."""
    if matrix.shape[0] < matrix.shape[1]:
        return _pseudo_inverse(matrix.mT).mT
    Q, R = torch.linalg.qr(matrix)
    inverse: Tensor = torch.linalg.solve_triangular(R, Q.mT, upper=True)
    return inverse


def _mapped(x: Tensor, mean: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    """matrix (x - mean) + bias over dimension 1, with the memory format of x."""
    rows, features = matrix.shape
    if x.dim() < 2 or x.shape[1] != features:
        raise ValueError(
            f"expected input of shape (N, {features}, ...), got shape {tuple(x.shape)}; the "
            f"whitening was fitted to {features} features, which are dimension 1"
        )
    if not x.is_floating_point():
        raise ValueError(f"expected a floating-point input, got {x.dtype}")
    work = torch.promote_types(work_dtype(x), matrix.dtype)
    with no_autocast(x.device.type):
        centred = x.to(work) - mean.to(work).view(-1, *[1] * (x.dim() - 2))
        W, b = matrix.to(work), bias.to(work)
        if x.dim() == 2 or is_channels_last(x):
            return F.linear(centred.movedim(1, -1), W, b).movedim(-1, 1).to(x.dtype)
        y = W @ centred.flatten(2) + b.unsqueeze(-1)
        return y.reshape(x.shape[0], rows, *x.shape[2:]).to(x.dtype)


# --- fitting ------------------------------------------------------------------------------------


@torch.no_grad()
def fit_whitening(
    batches: Tensor | Iterable[Any],
    *,
    whitening: str = "zca",
    eps: float = 1e-5,
    components: int | None = None,
    shrinkage: float | str = 0.0,
    iterations: int = 5,
    device: torch.device | str | None = None,
    process_group: ProcessGroup | None = None,
) -> FittedWhitening:
    r"""A whitening of all examples of a data set, from one pass over its batches.

    Sums are made in float64 and of deviations, so that the number of batches, their sizes and a
    mean far from zero cost no digits. The covariance is the biased one (divided by the number of
    samples): of the examples themselves, whitened, it is the identity, but for eps and shrinkage.

    Args:
        batches: Tensors of shape (N, D) or (N, D, ...), whose dimension 1 are the features and
            whose positions are all samples; or tuples or lists that start with one, such as a
            DataLoader gives; or one such tensor. To whiten whole pictures, flatten them first:
            ``(x.flatten(1) for x, _ in loader)``.
        whitening: ``"zca"``, ``"pca"``, ``"cholesky"`` or ``"newton"``: see
            :func:`whitenorm.whitening_matrix`.
        eps: Added to the variances, on the scale of the data: it bounds how much directions
            without variance are amplified, at :math:`\epsilon^{-1/2}`.
        components: How many principal components to keep, those of largest variance. Only for
            ``"pca"``, whose rows are the components in this order.
        shrinkage: How far the covariance is drawn towards its diagonal: a number from 0 to 1,
            ``"auto"`` or ``"bounded"``.
        iterations: Steps of ``"newton"``.
        device: To move the batches to, if given.
        process_group: Replicas of torch.distributed whose batches count as one; each has to have
            one batch at least, which may hold no examples.

    Returns:
        A module in the batches' dtype, at least float32, on their device.

    Example:
        >>> x = torch.randn(999, 4, dtype=torch.float64).cumsum(1) + 100
        >>> y = fit_whitening(x.split(64))(x)
        >>> torch.allclose(y.T.cov(correction=0), torch.eye(4, dtype=torch.float64), atol=1e-3)
        True
    """
    check_options(eps, 1, whitening, "covariance", shrinkage, iterations)
    if components is not None and (type(components) is not int or components < 1):
        raise ValueError(f"components must be a positive integer or None, got {components!r}")
    if components is not None and whitening != "pca":
        raise ValueError(
            f"components={components} keeps rows of whitening='pca', which are sorted by "
            f"variance; {whitening!r} has no such rows: use whitening='pca', or components=None"
        )
    samples, mean, central, dtype = _pooled_moments(inputs_of(batches, device))
    if process_group is not None:
        count, (mean,), (central,) = combine(samples, [mean], [central], process_group)
        samples = int(count)
    features = mean.shape[1]
    kept_rows = features if components is None else components
    _check_fit(samples, features, kept_rows, central, shrinkage)
    with no_autocast(central.device.type):
        covariance = central / samples
        covariance = shrink(covariance, kept_share(covariance, eps, shrinkage, samples))
        W = whitening_matrix(covariance, eps, whitening, iterations)[0]
    fitted = FittedWhitening(features, kept_rows, W.device, dtype)
    fitted.mean.copy_(mean.flatten())
    fitted.matrix.copy_(W[:kept_rows])
    return fitted


def inputs_of(
    batches: Tensor | Iterable[Any], device: torch.device | str | None
) -> Iterator[Tensor]:
    """The inputs of the batches, moved to a device if one is given."""
    for batch in (batches,) if isinstance(batches, Tensor) else batches:
        inputs = batch[0] if isinstance(batch, list | tuple) and batch else batch
        if not isinstance(inputs, Tensor):
            raise TypeError(
                "expected batches that are tensors, or tuples or lists that start with one, got "
                f"{type(inputs).__name__}"
            )
        yield inputs if device is None else inputs.to(device)


def _pooled_moments(inputs: Iterator[Tensor]) -> tuple[int, Tensor, Tensor, torch.dtype]:
    """Samples, their mean [1, D, 1] and central moment [1, D, D], and the dtype of a module."""
    samples, features = 0, 0
    shift: Tensor | None = None  # the mean of the first samples: means of others are near zero
    for x in inputs:
        check_tensors(x, None, None, None, None, 1)
        if features == 0:
            features, dtype, algebra = x.shape[1], work_dtype(x), algebra_dtype(x)
            mean = torch.zeros(1, features, 1, dtype=algebra, device=x.device)
            central = torch.zeros(1, features, features, dtype=algebra, device=x.device)
        if x.shape[1] != features:
            raise ValueError(
                f"batches must have the same features, in dimension 1: the first has {features}, "
                f"another has shape {tuple(x.shape)}"
            )
        if x.numel() == 0:
            continue
        with no_autocast(x.device.type):
            view = grouped(x, features, is_channels_last(x))
            if shift is None:
                shift = moments(view, algebra).mean
            found = moments(view - shift, algebra)  # all of it in the dtype of the shift
            number = x.numel() // features
            counts = torch.tensor([samples, number], dtype=algebra, device=x.device)
            means = torch.stack([mean, found.mean])
            mean, central = pool(counts, means, torch.stack([central, found.central]))
        samples += number
    if features == 0:
        raise ValueError("batches is empty; give one batch of inputs or more")
    return samples, mean if shift is None else shift + mean, central, dtype


def _check_fit(
    samples: int, features: int, kept: int, central: Tensor, shrinkage: float | str
) -> None:
    if kept > features:
        raise ValueError(
            f"components={kept} is more than the {features} features have: give fewer, or None "
            "for all"
        )
    if samples < 2:
        raise ValueError(
            f"a whitening can't be fitted to {samples} samples, which don't vary; give more"
        )
    if not central.isfinite().all():
        raise ValueError(
            "the batches hold NaN, inf or values too large to square, so that they have no "
            "covariance; leave such examples out"
        )
    if samples <= kept and shrinkage == 0:
        warnings.warn(
            f"{samples} samples cannot show how {kept} features vary: their covariance is "
            f"singular, and eps decides the rest. Use more samples, shrinkage='auto', or "
            f"whitening='pca' with components < {samples}.",
            stacklevel=4,  # no_grad() is one
        )
