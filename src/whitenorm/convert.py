r"""BatchNorm -> DBN in a model that exists already, without changing what it computes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from inspect import ismethod
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from whitenorm.distributed import synchronize
from whitenorm.layout import diagonal_matrices
from whitenorm.modules import (
    DecorrelatedBatchNorm,
    DecorrelatedBatchNorm1d,
    DecorrelatedBatchNorm2d,
    DecorrelatedBatchNorm3d,
)
from whitenorm.precision import algebra_dtype, may_read_values

__all__ = ["convert_batchnorm"]

OPTIONS = ("group_size", "whitening", "running", "shrinkage", "iterations", "affine")

# torch keeps a module's hooks in these; a handle's remove() works on the same dictionaries.
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
)

_TORCH_KEEPS = frozenset(vars(nn.Module()))  # modules, parameters, buffers, hooks

Where = str | Iterable[str] | Callable[[str, nn.Module], bool] | None
Adapt = Callable[[nn.Module, nn.Module], nn.Module]

_log = logging.getLogger(__name__)


def convert_batchnorm(
    model: nn.Module, *, where: Where = None, adapt: Adapt | None = None, **options: Any
) -> nn.Module:
    r"""Replaces BatchNorm layers by Decorrelated Batch Normalization, in place.

    In inference mode the model computes what it computed before: the running mean, the scale and
    the shift are carried over, and the running variances become the diagonal of the running
    covariance. Training goes on from there, and whitens. (A BatchNorm without running statistics
    has no such inference mode: it whitens at once.)

    Parameters and buffers are the same objects as before, so an optimizer that was built already
    still holds them; eps, momentum, training mode, device, dtype, forward and backward hooks are
    kept, and a layer that is used in several places is replaced by one layer. What replaces a
    SyncBatchNorm takes, as it did, inputs of any number of dimensions, and is synchronized over
    the same process group (see :func:`whitenorm.synchronize`). Says how many layers it replaced
    to the logger ``whitenorm.convert``, at level INFO.

    Args:
        model: Any module; it may itself be a BatchNorm.
        where: Which layers: ``"all"``, the default; ``"first"``, the one that is registered first
            (the paper's L1 placement); names or glob patterns of them such as ``"layer1.*"``; or
            a function of (name, module) that says whether to replace.
        adapt: What to put in the place of a subclass that has a forward of its own, such as a
            BatchNorm with an activation inside: a function of the old module and the new layer,
            for example ``lambda old, new: nn.Sequential(new, old.act)``. Without it such a
            subclass is an error, as its behaviour would be lost.
        options: ``group_size``, ``whitening``, ``running``, ``shrinkage`` and ``iterations`` of
            :class:`whitenorm.DecorrelatedBatchNorm2d`, and ``affine="matrix"``: each scale becomes
            the diagonal of matrices, in a new parameter, so that an optimizer is to be built
            afterwards. Without it, scale and shift are what the BatchNorm has.

    Returns:
        The model, or the new layer if the model was a BatchNorm itself.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        >>> model = convert_batchnorm(model, group_size=4)
        >>> type(model[1]).__name__, model[1].group_size
        ('DecorrelatedBatchNorm2d', 4)
    """
    _check_options(options)
    found = {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm)}
    if not found:
        already = sum(isinstance(m, DecorrelatedBatchNorm) for m in model.modules())
        raise ValueError(
            f"{type(model).__name__} has no BatchNorm layer to convert"
            + (f" ({already} of its layers are DBN already)" if already else "")
            + "; only BatchNorm1d/2d/3d and SyncBatchNorm of torch.nn and their subclasses are "
            "replaced, not frozen or functional ones"
        )
    chosen = _choose(found, where)
    # All are built before any is placed, so that an error leaves the model as it was.
    new = {old: _replacement(name, old, adapt, options) for name, old in chosen.items()}
    replace_modules(model, cast("dict[nn.Module, nn.Module]", new))
    _log.info("replaced %d of %d BatchNorm layers by DBN", len(new), len(found))
    frozen = [name for name, old in chosen.items() if model.training and not old.training]
    if frozen:
        _log.warning(
            "%s: in evaluation mode in a model in training mode, and so is what replaces them; "
            "code that freezes layers by isinstance(m, _BatchNorm) won't find these: write "
            "isinstance(m, (_BatchNorm, whitenorm.DecorrelatedBatchNorm))",
            _listed(frozen),
        )
    untracked = [name for name, old in chosen.items() if old.running_mean is None]
    if untracked:
        _log.warning(
            "%s: no running statistics, so inference whitens each batch from now on",
            _listed(untracked),
        )
    return new.get(cast(_BatchNorm, model), model)


def replace_modules(model: nn.Module, new: Mapping[nn.Module, nn.Module]) -> None:
    """Puts modules in the place of others, in place, wherever the modules of a model hold them.

    Some models keep a layer in a plain list as well, or one of its methods, and call it there.
    """
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and child in new:
                setattr(parent, name, new[child])
        for name, value in list(vars(parent).items()):
            if name not in _TORCH_KEEPS:
                vars(parent)[name] = _with_replacements(value, new)


def _with_replacements(value: Any, new: Mapping[nn.Module, nn.Module]) -> Any:
    """The value with modules replaced in it; lists and dictionaries stay the same objects."""
    if isinstance(value, nn.Module):
        return new.get(value, value)
    if ismethod(value) and isinstance(value.__self__, nn.Module) and value.__self__ in new:
        return getattr(new[value.__self__], value.__name__)
    if type(value) is list:
        value[:] = [_with_replacements(item, new) for item in value]
    elif type(value) is dict:
        value.update({key: _with_replacements(item, new) for key, item in value.items()})
    elif type(value) is tuple:
        return tuple(_with_replacements(item, new) for item in value)
    return value


def overrides_forward(module: nn.Module) -> bool:
    """Whether a subclass, or a patch on the object, computes something else than the layer."""
    theirs = (_BatchNorm, nn.SyncBatchNorm, DecorrelatedBatchNorm)
    return "forward" in vars(module) or all(type(module).forward is not t.forward for t in theirs)


# --- choosing -----------------------------------------------------------------------------------


def _choose(found: dict[str, _BatchNorm], where: Where) -> dict[str, _BatchNorm]:
    if where is None or where == "all":
        return found
    if where == "first":
        return dict([next(iter(found.items()))])
    if callable(where):
        chosen = {name: m for name, m in found.items() if where(name, m)}
        if not chosen:
            raise ValueError(
                f"where={where!r} chose none of the BatchNorm layers: {_listed(found)}"
            )
        return chosen
    patterns = [where] if isinstance(where, str) else list(where)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(
            "where must be 'all', 'first', names or patterns of layers, or a function of "
            f"(name, module), got {where!r}"
        )
    for pattern in patterns or [""]:
        if not any(fnmatchcase(name, pattern) for name in found):
            raise ValueError(
                f"where={where!r}: {pattern!r} matches no BatchNorm layer. Their names are: "
                f"{_listed(found)}. A pattern must match the whole name ('layer1.*')"
            )
    return {
        name: m
        for name, m in found.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def _listed(names: Iterable[str], most: int = 20) -> str:
    quoted = [repr(name) for name in names]
    more = f" and {len(quoted) - most} more" if len(quoted) > most else ""
    return ", ".join(quoted[:most]) + more


# --- replacing ----------------------------------------------------------------------------------


def _check_options(options: dict[str, Any]) -> None:
    for name in options:
        if name not in OPTIONS:
            raise TypeError(
                f"convert_batchnorm has no option {name!r}; it takes where, adapt, "
                f"{', '.join(OPTIONS)}. Everything else is carried over from the BatchNorm"
            )
    if options.get("affine", "matrix") != "matrix":
        raise ValueError(
            "affine must be 'matrix', or be left out to keep the scale and shift that each "
            f"BatchNorm has, got {options['affine']!r}"
        )
    averaged = options.get("running", "covariance")
    if averaged == "covariance" and options.get("whitening") in ("pca", "newton"):
        raise ValueError(
            f"with running='covariance', whitening={options['whitening']!r} does not turn a "
            "diagonal covariance into the diagonal scaling that BatchNorm has (PCA reorders the "
            "channels, Newton-Schulz approximates): use 'zca' or 'cholesky', or "
            "running='whitening'"
        )


def _replacement(
    name: str, old: _BatchNorm, adapt: Adapt | None, options: dict[str, Any]
) -> nn.Module:
    label = f"{name!r} ({type(old).__name__})" if name else type(old).__name__
    if isinstance(old, LazyModuleMixin) and old.has_uninitialized_params():
        raise ValueError(
            f"{label} doesn't know its number of channels yet: run a batch through the model "
            "before converting it"
        )
    if is_parametrized(old):
        raise ValueError(
            f"{label} has parametrizations, which would be lost: call "
            "torch.nn.utils.parametrize.remove_parametrizations first, or leave it out by `where`"
        )
    if old.eps == 0 and old.running_var is not None and _surely_has_zeros(old.running_var):
        raise ValueError(
            f"{label} has eps=0 and a channel with a running variance of 0, which it divides by: "
            "give it an eps > 0, for example 1e-5, or leave it out by `where`"
        )
    own_forward = overrides_forward(old)
    if own_forward and adapt is None:
        raise TypeError(
            f"{label} has a forward of its own, which would be lost: leave it out by `where`, or "
            "say what takes its place by `adapt`, such as "
            "adapt=lambda old, new: nn.Sequential(new, old.act)"
        )
    new: nn.Module = _converted(old, options)
    if own_forward and adapt is not None:
        new = adapt(old, new)
    for hooks in _HOOKS:
        vars(new)[hooks] = vars(old)[hooks]
    return new


def _surely_has_zeros(t: Tensor) -> bool:
    """Whether t is known to hold a zero, without having waited for a device."""
    return may_read_values(t) and bool((t == 0).any())


@torch.no_grad()
def _converted(old: _BatchNorm, options: dict[str, Any]) -> DecorrelatedBatchNorm:
    like = next((t for t in (old.running_var, old.weight) if t is not None), None)
    new = _class_for(old)(
        old.num_features,
        old.eps,
        old.momentum,
        track_running_stats=old.running_mean is not None,
        device=None if like is None else like.device,
        dtype=None if like is None else like.dtype,
        **{"affine": bool(old.affine), **options},
    )
    size = min(new.group_size, new.num_features)
    if new.affine != "matrix":
        new.weight, new.bias = old.weight, old.bias
    elif old.affine:
        new.bias = old.bias
        if old.weight is not None:
            matrices = diagonal_matrices(old.weight, size)
            new.weight = nn.Parameter(matrices, old.weight.requires_grad)
    if old.running_mean is not None and old.running_var is not None:
        new.running_mean = old.running_mean
        if old.num_batches_tracked is not None:
            new.num_batches_tracked = old.num_batches_tracked
        variance = old.running_var.to(algebra_dtype(old.running_var))
        diagonal = variance if new.running == "covariance" else (variance + old.eps).rsqrt()
        running = cast(Tensor, getattr(new, f"running_{new.running}"))
        running.copy_(diagonal_matrices(diagonal, size))
    if isinstance(old, nn.SyncBatchNorm):
        synchronize(new, old.process_group)
    return new.train(old.training)


def _class_for(old: _BatchNorm) -> type[DecorrelatedBatchNorm]:
    for batchnorm, decorrelated in (
        (nn.BatchNorm1d, DecorrelatedBatchNorm1d),
        (nn.BatchNorm2d, DecorrelatedBatchNorm2d),
        (nn.BatchNorm3d, DecorrelatedBatchNorm3d),
    ):
        if isinstance(old, batchnorm):
            return decorrelated
    return DecorrelatedBatchNorm
