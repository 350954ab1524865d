r"""DBN -> nothing: whitening merged into the weights of the layer before it, for inference."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvTransposeNd
from torch.nn.utils.parametrize import is_parametrized

from whitenorm.convert import overrides_forward, replace_modules
from whitenorm.modules import DecorrelatedBatchNorm
from whitenorm.precision import algebra_dtype
from whitenorm.wiring import (
    HOOKS,
    NORMS,
    Wiring,
    ancestors,
    called,
    recorded,
    tensors_in,
    traced,
)

__all__ = ["ChannelAffine", "FoldReport", "fold", "fold_weights"]

_PLAIN = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoldReport:
    """What became of each normalization layer.

    Args:
        folded: Name of a normalization -> name of the layer it was merged into.
        kept: Name of a normalization that stayed -> why.
    """

    folded: dict[str, str]
    kept: dict[str, str]

    def __str__(self) -> str:
        total = len(self.folded) + len(self.kept)
        lines = [f"merged {len(self.folded)} of {total} normalizations"]
        return "\n".join(lines + [f"  kept {name!r}: {why}" for name, why in self.kept.items()])


@torch.no_grad()
def fold(model: nn.Module, example_inputs: Any = None) -> nn.Module:
    r"""Returns a copy for inference in which normalization is part of the layer before it.

    Every DBN (and BatchNorm) whose input is the output of a Linear, a convolution or a transposed
    convolution is merged into the weight and bias of that layer, and an Identity takes its place.
    A DBN that can't be merged becomes a :class:`ChannelAffine`; a BatchNorm stays. The attribute
    ``fold_report`` of the copy, a :class:`FoldReport`, says which and why.

    Without ``example_inputs`` the model is traced by :mod:`torch.fx`, called with the arguments it
    requires. Where a module doesn't trace, the modules inside it are traced each for itself, and
    are taken to be called as wholes; a Sequential there isn't, for code often takes it apart. What
    cannot be seen is not merged, and the report says that example inputs would show it.

    With ``example_inputs`` a copy of the model runs on them once, and what was seen then is taken
    to hold for all inputs. This finds the layers of models that don't trace. The folded model is
    run on them too, and an error says so if its outputs aren't the same.

    Args:
        model: In inference mode; it isn't changed.
        example_inputs: An input tensor, a tuple of positional arguments or a dictionary of keyword
            arguments.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()).eval()
        >>> print(fold(model).fold_report)
        merged 1 of 1 normalizations
    """
    for name, module in model.named_modules():
        if module.training and (module is model or isinstance(module, NORMS)):
            raise ValueError(
                f"only a model in inference mode can be folded, and {type(module).__name__}"
                f"{f' {name!r}' if name else ''} is in training mode: call model.eval() first"
            )
    wiring = traced(model) if example_inputs is None else recorded(model, example_inputs)
    result = copy.deepcopy(model)
    modules = dict(result.named_modules())
    paths = Counter(id(m) for _, m in result.named_modules(remove_duplicate=False))
    owners = Counter(id(p) for m in modules.values() for p in m._parameters.values())
    report = FoldReport({}, {})
    new: dict[nn.Module, nn.Module] = {}
    for name, norm in modules.items():
        if not isinstance(norm, NORMS):
            continue
        why = _no_affine_map(norm)
        if why is None:
            norm.eval()  # brings an inference matrix up to date
            why = _obstacle(name, modules, wiring, paths, owners)
            if why is None:
                report.folded[name] = wiring.sources[name]
                new[norm] = _merge(modules[wiring.sources[name]], norm)
            elif isinstance(norm, DecorrelatedBatchNorm):
                new[norm] = _channel_affine(norm)
        if why is not None:
            report.kept[name] = why
    replace_modules(result, new)
    result = new.get(result, result)
    if example_inputs is not None:
        _compare(model, result, example_inputs)
    cast(Any, result).fold_report = report
    _log.info("%s", report)
    return result


def _compare(model: nn.Module, folded: nn.Module, example_inputs: Any) -> None:
    """Raises if a folded model computes something else on the example inputs."""
    outputs = []
    for each in (model, folded):
        with torch.random.fork_rng():  # for models that draw random numbers in inference
            torch.manual_seed(0)
            outputs.append(list(tensors_in(called(copy.deepcopy(each), example_inputs))))
    for a, b in zip(*outputs, strict=True):
        if a.is_floating_point() and not torch.allclose(a, b, *_tolerance(a), equal_nan=True):
            raise RuntimeError(
                "the folded model computes something else on the example inputs (by "
                f"{(a - b).abs().max():.2g} where outputs are up to {a.abs().max():.2g}), for its "
                "code does something with the layers that folding doesn't see; please report "
                "this, and deploy the model as it is"
            )


def _tolerance(output: Tensor) -> tuple[float, float]:
    """Relative and absolute: far above rounding, far below another result."""
    relative = torch.finfo(output.dtype).eps ** 0.5
    return 10 * relative, 10 * relative * max(float(output.abs().max()), 1e-30)


# --- the algebra --------------------------------------------------------------------------------


def fold_weights(
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    matrix: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    groups: int = 1,
    transposed: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Weight and bias of a layer that whitens its own output.

    With :math:`P = \mathrm{diag}(\gamma) M`, or :math:`P = \Gamma M`,
    :math:`P(Vx + c - \mu) + \beta` is :math:`(PV) x + (P(c - \mu) + \beta)`. Computed in float64,
    returned in the weight's dtype.

    Args:
        weight: :math:`V`, of shape (C, ...), or (in, C / groups, ...) if ``transposed``.
        bias: :math:`c`, shape (C,).
        mean: :math:`\mu`, shape (C,).
        matrix: :math:`M`, the whitening matrices of contiguous groups of k channels, shape
            (ceil(C / k), k, k). A last group of r < k channels uses the corner [:r, :r].
            BatchNorm is k = 1 and :math:`1/\sqrt{\sigma^2 + \epsilon}`.
        gamma: Scale, shape (C,), or matrices :math:`\Gamma` of the shape of ``matrix``.
        beta: Shift, shape (C,).
        groups: Of the convolution. No matrix may mix channels of different groups.
        transposed: Whether the layer is a transposed convolution.

    Example:
        >>> linear, norm = nn.Linear(2, 4), nn.BatchNorm1d(4).eval()
        >>> matrix = (norm.running_var + norm.eps).rsqrt().view(4, 1, 1)
        >>> w, b = fold_weights(linear.weight, linear.bias, norm.running_mean, matrix)
        >>> x = torch.randn(3, 2)
        >>> torch.allclose(nn.functional.linear(x, w, b), norm(linear(x)), atol=1e-5)
        True
    """
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    P = _scaled(matrix, gamma, channels)
    if _mixes(P, channels, groups):
        raise ValueError(
            f"the whitening of {P.shape[-1]} channels at a time mixes channels of different "
            f"groups of the convolution ({channels} channels in {groups} groups), so that no "
            "convolution with these groups equals the two"
        )
    if mean.shape != (channels,):
        raise ValueError(f"mean must have shape ({channels},), got {tuple(mean.shape)}")
    work = P.dtype
    rows = weight.to(work)
    if transposed:  # (in, C / groups, ...) -> (C, in / groups, ...), as in other convolutions
        rows = _exchanged(rows, groups)
    shift = -mean.to(work) if bias is None else bias.to(work) - mean.to(work)
    folded, constant = _apply(P, rows), _apply(P, shift)
    if beta is not None:
        constant = constant + beta.to(work)
    if transposed:
        folded = _exchanged(folded, groups)
    return folded.to(weight.dtype).contiguous(), constant.to(weight.dtype)


def _exchanged(weight: Tensor, groups: int) -> Tensor:
    """(groups * a, b, ...) -> (groups * b, a, ...): between the two layouts of a convolution."""
    parts = weight.reshape(groups, -1, *weight.shape[1:])
    return parts.transpose(1, 2).flatten(0, 1)


def _scaled(matrix: Tensor, gamma: Tensor | None, channels: int) -> Tensor:
    """diag(gamma) M, or gamma M, in float64; zero where the last group has no channel."""
    size = matrix.shape[-1]
    if matrix.shape != (-(-channels // size), size, size):
        raise ValueError(
            f"matrix must have shape (ceil({channels} / k), k, k) for {channels} channels, got "
            f"{tuple(matrix.shape)}"
        )
    if gamma is not None and gamma.shape not in ((channels,), matrix.shape):
        raise ValueError(
            f"gamma must have shape ({channels},) or {tuple(matrix.shape)}, got "
            f"{tuple(gamma.shape)}"
        )
    P = matrix.to(algebra_dtype(matrix))
    used = _grouped(P.new_ones(channels), *P.shape[:2]) > 0
    used = used.unsqueeze(-1) & used.unsqueeze(-2)
    P = torch.where(used, P, 0)
    if gamma is None:
        return P
    if gamma.dim() == 1:
        return _grouped(gamma.to(P.dtype), *P.shape[:2]).unsqueeze(-1) * P
    return torch.where(used, gamma.to(P.dtype), 0) @ P


def _grouped(rows: Tensor, groups: int, size: int) -> Tensor:
    """(C, ...) -> (G, k, ...), with zeros where the last group has no channel."""
    missing = rows.new_zeros(groups * size - len(rows), *rows.shape[1:])
    return torch.cat([rows, missing]).view(groups, size, *rows.shape[1:])


def _apply(P: Tensor, rows: Tensor) -> Tensor:
    """P over dimension 0 of (C, ...)."""
    product = P @ _grouped(rows, *P.shape[:2]).reshape(*P.shape[:2], -1)
    return product.flatten(0, 1)[: len(rows)].view_as(rows)


def _mixes(P: Tensor, channels: int, groups: int) -> bool:
    """Whether any element of P that isn't zero joins channels of different convolution groups."""
    group = torch.arange(P.shape[0] * P.shape[1], device=P.device).view(P.shape[:2])
    group = group // (channels // groups)
    return bool(((group.unsqueeze(2) != group.unsqueeze(1)) & (P != 0)).any())


# --- what is put in place -----------------------------------------------------------------------


class ChannelAffine(nn.Module):
    r"""y = P x + b over the channels: what a DBN that can't be merged is in inference.

    Args:
        matrix: P, block diagonal in contiguous groups of k channels, shape (ceil(C / k), k, k).
            A last group of r < k channels uses the corner [:r, :r].
        bias: b, shape (C,).

    Shape:
        - Input: (N, C, ...)
        - Output: as the input

    Example:
        >>> swap = ChannelAffine(torch.tensor([[[0.0, 1], [1, 0]]]), torch.tensor([0.0, 5]))
        >>> swap(torch.tensor([[1.0, 2]]))
        tensor([[2., 6.]])
    """

    matrix: Tensor
    bias: Tensor

    def __init__(self, matrix: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.num_features, self.group_size = bias.shape[0], matrix.shape[-1]
        groups = -(-self.num_features // self.group_size)
        if self.group_size > self.num_features or matrix.shape != (groups, *matrix.shape[-1:] * 2):
            raise ValueError(
                f"matrix must have shape (ceil({self.num_features} / k), k, k) for a bias of "
                f"{self.num_features} channels, with k <= {self.num_features}, got "
                f"{tuple(matrix.shape)}"
            )
        self.register_buffer("matrix", matrix)
        self.register_buffer("bias", bias)

    def forward(self, input: Tensor) -> Tensor:
        rest = self.num_features % self.group_size
        whole = self.num_features - rest
        groups = whole // self.group_size
        y = _affine(input[:, :whole], self.matrix[:groups], self.bias[:whole], self.group_size)
        if rest == 0:
            return y
        corner = self.matrix[groups:, :rest, :rest]
        tail = _affine(input[:, whole:], corner, self.bias[whole:], rest)
        return torch.cat([y, tail], 1)

    def extra_repr(self) -> str:
        return f"{self.num_features}, group_size={self.group_size}"


def _affine(x: Tensor, P: Tensor, b: Tensor, size: int) -> Tensor:
    """P x + b over groups of equal size."""
    if x.dim() == 2:  # one product a group, not one a sample and group
        y = x.reshape(x.shape[0], -1, size).transpose(0, 1) @ P.mT + b.view(-1, 1, size)
        return y.transpose(0, 1).reshape(x.shape)
    y = P @ x.reshape(x.shape[0], P.shape[0], size, x.shape[2:].numel()) + b.view(-1, size, 1)
    return y.reshape(x.shape)


class _MergedIntoLinear(nn.Identity):
    """In place of a norm after a Linear, whose features are channels in 2D inputs only."""

    def forward(self, input: Tensor) -> Tensor:
        torch._assert(
            input.dim() == 2,
            "a normalization that was folded into a Linear takes inputs of shape (N, C) only; "
            "fold with example_inputs of the shape that the model is used with",
        )
        return input


def _statistics(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Mean and whitening matrices of a norm in inference; BatchNorm has groups of one."""
    mean = cast(Tensor, norm.running_mean)
    if isinstance(norm, _BatchNorm):
        variance = cast(Tensor, norm.running_var)
        scale = (variance.to(algebra_dtype(variance)) + norm.eps).rsqrt()
        return mean, scale.view(-1, 1, 1)
    covariance = norm.running == "covariance"
    return mean, cast(Tensor, norm.inference_whitening if covariance else norm.running_whitening)


def _merge(layer: nn.Module, norm: nn.Module) -> nn.Module:
    weight, bias = fold_weights(
        cast(Tensor, layer.weight),
        cast("Tensor | None", layer.bias),
        *_statistics(norm),
        cast("Tensor | None", norm.weight),
        cast("Tensor | None", norm.bias),
        groups=cast(int, getattr(layer, "groups", 1)),
        transposed=isinstance(layer, _ConvTransposeNd),
    )
    wanted = cast(Tensor, layer.weight).requires_grad
    layer.weight, layer.bias = nn.Parameter(weight, wanted), nn.Parameter(bias, wanted)
    return (_MergedIntoLinear() if isinstance(layer, nn.Linear) else nn.Identity()).eval()


def _channel_affine(norm: DecorrelatedBatchNorm) -> ChannelAffine:
    mean, matrix = _statistics(norm)
    P = _scaled(matrix, norm.weight, norm.num_features)
    bias = -_apply(P, mean.to(P.dtype))
    if norm.bias is not None:
        bias = bias + norm.bias.to(P.dtype)
    return ChannelAffine(P.to(matrix.dtype), bias.to(matrix.dtype)).eval()


# --- whether it may be --------------------------------------------------------------------------


def _no_affine_map(norm: nn.Module) -> str | None:
    """Why a norm isn't an affine map in inference, or can't be replaced by one."""
    if overrides_forward(norm):
        return f"{type(norm).__name__} has a forward of its own"
    if norm.running_mean is None:
        return "it has no running statistics, and uses those of each batch"
    return _watched(norm)


def _obstacle(
    name: str,
    modules: dict[str, nn.Module],
    wiring: Wiring,
    paths: Counter[int],
    owners: Counter[int],
) -> str | None:
    """Why a norm can't be merged into the layer before it; None if it can."""
    norm = modules[name]
    if wiring.calls[name] == 0:
        return wiring.unseen(name)
    if wiring.calls[name] > 1 or paths[id(norm)] > 1:
        return "it is used more than once"
    if name not in wiring.sources:
        return "its input is not the output of a Linear or a convolution"
    source = wiring.sources[name]
    layer, label = modules[source], f"the layer before it, {source!r},"
    if wiring.calls[source] > 1 or paths[id(layer)] > 1:
        return f"{label} is used more than once"
    if source in wiring.leaks:
        return f"{label} {wiring.leaks[source]}"
    if why := _watched(layer):
        return f"{label} can't be changed: {why}"
    if not _is_plain(layer):
        return f"{label} is a {type(layer).__name__}, which has a forward of its own"
    if any(p is not None and owners[id(p)] > 1 for p in layer._parameters.values()):
        return f"{label} shares its weight with another module"
    for between in set(ancestors(source)) ^ set(ancestors(name)):
        if _watched(modules[between]):
            return f"hooks on {between!r} see what is between it and {source!r}"
    return _mismatch(layer, norm, label)


def _mismatch(layer: nn.Module, norm: nn.Module, label: str) -> str | None:
    linear, groups = isinstance(layer, nn.Linear), cast(int, getattr(layer, "groups", 1))
    channels = cast(int, layer.out_features if linear else layer.out_channels)
    if norm.num_features != channels or (linear and not _takes_rows(norm)):
        return f"{label} has features that are not its channels"
    _, matrix = _statistics(norm)
    if _mixes(_scaled(matrix, cast("Tensor | None", norm.weight), channels), channels, groups):
        return (
            f"{label} is a convolution in {groups} groups, and whitening {matrix.shape[-1]} "
            "channels at a time mixes those of different groups"
        )
    return None


def _takes_rows(norm: nn.Module) -> bool:
    if isinstance(norm, DecorrelatedBatchNorm):
        return 2 in norm._ndims
    return not isinstance(norm, (nn.BatchNorm2d, nn.BatchNorm3d))


def _watched(module: nn.Module) -> str | None:
    if any(vars(module).get(kind) for kind in HOOKS):
        return "it has hooks"
    return "it has parametrizations" if is_parametrized(module) else None


def _is_plain(layer: nn.Module) -> bool:
    return "forward" not in vars(layer) and any(
        type(layer).forward is kind.forward
        and getattr(type(layer), "_conv_forward", None) is getattr(kind, "_conv_forward", None)
        for kind in _PLAIN
    )
