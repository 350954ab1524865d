r"""The methods that the studies compare, each a row of ``METHODS``.

A method says what normalises the activations (``norm``), what stands for a linear layer
(``linear``), and what happens between updates (``after_step``). Models know nothing else about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whitenorm.modules import (
    DecorrelatedBatchNorm1d,
    DecorrelatedBatchNorm2d,
    DecorrelatedBatchNorm3d,
)
from whitenorm.passes import algebra_dtype

__all__ = ["METHODS", "Method", "Row", "WhitenedLinear", "make_method", "reparameterise"]


@dataclass(frozen=True)
class Method:
    """One way to normalise a network.

    Args:
        name: Key in ``METHODS``.
        label: For legends and tables.
        norm: ``norm(num_features, spatial_dims)`` gives the layer for inputs (N, C) if
            ``spatial_dims`` is 0, (N, C, H, W) if it is 2; None for a network without such layers.
        linear: Stands for ``nn.Linear(in_features, out_features, bias=True)``.
        after_step: ``after_step(model, inputs, iteration)``, to be called after every update with
            a batch of the model's inputs and the number of updates made so far, this one included.
            It changes parameters in place.
        options: The options that it was made with, defaults included.
    """

    name: str
    label: str
    norm: Callable[[int, int], nn.Module] | None
    linear: Callable[..., nn.Module] = nn.Linear
    after_step: Callable[[nn.Module, Tensor, int], None] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A row of ``METHODS``.

    Args:
        label: For legends and tables.
        options: What can be chosen, with its default.
        build: ``build(**options)`` gives the fields of :class:`Method` that differ from a plain
            network's.
        fixed: Options of ``build`` that can't be chosen: they make the method what it is.
    """

    label: str
    options: Mapping[str, Any]
    build: Callable[..., Mapping[str, Any]]
    fixed: Mapping[str, Any] = field(default_factory=dict)


def make_method(name: str, **options: Any) -> Method:
    """The method of that name, with its row's defaults for the options that aren't given.

    Example:
        >>> make_method("dbn", group_size=8).norm(32, 2)
        DecorrelatedBatchNorm2d(32, eps=1e-05, momentum=0.1, affine=True, \
track_running_stats=True, group_size=8, whitening='zca', running='whitening')
    """
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; there are {', '.join(METHODS)}")
    row = METHODS[name]
    if unknown := sorted(set(options) - set(row.options)):
        raise ValueError(
            f"method {name!r} has no option {', '.join(map(repr, unknown))}; "
            f"it has {', '.join(row.options) or 'none'}"
        )
    options = {**row.options, **options, **row.fixed}
    return Method(name, row.label, **{"norm": None, **row.build(**options)}, options=options)


# --- normalisation layers -----------------------------------------------------------------------


def _plain() -> dict[str, Any]:
    return {}


_BATCH_NORMS = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_DECORRELATED = {
    0: DecorrelatedBatchNorm1d,
    1: DecorrelatedBatchNorm1d,
    2: DecorrelatedBatchNorm2d,
    3: DecorrelatedBatchNorm3d,
}


def _batch_norm(**options: Any) -> dict[str, Any]:
    return {"norm": lambda features, dims: _BATCH_NORMS[dims](features, **options)}


def _layer_norm(eps: float, affine: bool) -> dict[str, Any]:
    # One group over all of a sample's channels and positions, with a scale and shift a channel;
    # on (N, C) that is nn.LayerNorm(C).
    return {"norm": lambda features, _: nn.GroupNorm(1, features, eps=eps, affine=affine)}


def _decorrelated(group_size: int | None, **options: Any) -> dict[str, Any]:
    def norm(features: int, dims: int) -> nn.Module:
        size = features if group_size is None else group_size
        return _DECORRELATED[dims](features, group_size=size, **options)

    return {"norm": norm}


# --- Natural Neural Networks --------------------------------------------------------------------


class WhitenedLinear(nn.Module):
    r"""The linear layer of Natural Neural Networks, :math:`y = V U (x - c) + d`.

    *Natural Neural Networks*, Desjardins et al., NeurIPS 2015. :math:`V` and :math:`d`, those of
    ``linear``, are learned; :math:`c` and :math:`U`, the buffers ``mean`` and ``whitening``, only
    change when :meth:`reparameterise` re-estimates them. Starts as ``linear`` alone: c = 0, U = I.

    Args:
        in_features: Size of :math:`x`.
        out_features: Size of :math:`y`.
        bias: Whether there is a :math:`d`; re-parameterisation needs it.
        device: Of the parameters and buffers.
        dtype: Of the parameters and buffers.
    """

    mean: Tensor
    whitening: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not bias:
            raise ValueError("WhitenedLinear needs its bias: re-parameterisation moves c into it")
        self.linear = nn.Linear(in_features, out_features, device=device, dtype=dtype)
        self.register_buffer("mean", torch.zeros(in_features, device=device, dtype=dtype))
        self.register_buffer("whitening", torch.eye(in_features, device=device, dtype=dtype))

    def forward(self, input: Tensor) -> Tensor:
        centred = input - self.mean
        if torch.is_grad_enabled():
            # V U first: with more examples than outputs, that is far less to multiply.
            return F.linear(centred, self.linear.weight @ self.whitening, self.linear.bias)
        output: Tensor = self.linear(centred @ self.whitening.mT)  # for who watches its input
        return output

    @torch.no_grad()
    def reparameterise(self, sample: Tensor, eps: float) -> None:
        r"""New :math:`c` and :math:`U` from a sample of inputs; the function stays the same.

        :math:`W = V U`, :math:`b = d - W c`; then, with the sample's mean :math:`c` and
        :math:`S + \epsilon I = D L D^\top`: :math:`U = L^{-1/2} D^\top`, :math:`V = W U^{-1}`,
        :math:`d = b + W c`.
        """
        algebra = algebra_dtype(sample)
        x, V, d = (t.to(algebra) for t in (sample, self.linear.weight, self.linear.bias))
        W = V @ self.whitening.to(algebra)
        b = d - W @ self.mean.to(algebra)
        mean = x.mean(0)
        centred = x - mean
        S = centred.mT @ centred / len(x)
        S.diagonal().add_(eps)
        eigenvalues, D = torch.linalg.eigh(S)
        root = eigenvalues.clamp(min=eps).sqrt()
        self.mean.copy_(mean)
        self.whitening.copy_((D / root).mT)
        self.linear.weight.copy_(W @ (D * root))
        self.linear.bias.copy_(b + W @ mean)


@torch.no_grad()
def reparameterise(model: nn.Module, inputs: Tensor, eps: float) -> None:
    """Re-parameterises every :class:`WhitenedLinear` of a model from one forward pass."""
    samples: dict[WhitenedLinear, Tensor] = {}
    layers = [module for module in model.modules() if isinstance(module, WhitenedLinear)]
    handles = [
        layer.register_forward_pre_hook(lambda layer, args: samples.update({layer: args[0]}))
        for layer in layers
    ]
    try:
        model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    for layer, sample in samples.items():
        layer.reparameterise(sample, eps)


def _natural(eps: float, interval: int) -> dict[str, Any]:
    if interval < 1:
        raise ValueError(f"interval must be a positive number of updates, got {interval!r}")
    if not eps > 0:
        raise ValueError(f"eps must be positive, got {eps!r}: U divides by sqrt(variance + eps)")

    def after_step(model: nn.Module, inputs: Tensor, iteration: int) -> None:
        if iteration % interval == 0:
            reparameterise(model, inputs, eps)

    return {"linear": WhitenedLinear, "after_step": after_step}


# --- the table ----------------------------------------------------------------------------------

_BATCH = {"eps": 1e-5, "momentum": 0.1, "affine": True}
_DBN = {**_BATCH, "group_size": 16, "running": "whitening"}  # group_size None: the whole layer


def _variant(label: str, whitening: str, **options: Any) -> Row:
    return Row(label, {**_DBN, **options}, _decorrelated, fixed={"whitening": whitening})


METHODS: dict[str, Row] = {
    "plain": Row("plain", {}, _plain),
    "bn": Row("BN", _BATCH, _batch_norm),
    "ln": Row("LN", {"eps": 1e-5, "affine": True}, _layer_norm),
    "nnn": Row("NNN", {"eps": 1.0, "interval": 200}, _natural),
    "dbn": Row("DBN", {**_DBN, "whitening": "zca", "iterations": 5}, _decorrelated),
    "dbn-zca": _variant("DBN-ZCA", "zca"),
    "dbn-pca": _variant("DBN-PCA", "pca"),
    "dbn-cholesky": _variant("DBN-Cholesky", "cholesky"),
    "dbn-newton": _variant("DBN-Newton", "newton", iterations=5),
}
