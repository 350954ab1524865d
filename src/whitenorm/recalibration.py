r"""Running statistics anew, from the pooled moments of several batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from whitenorm.distributed import ProcessGroup, add_up, combine, pool
from whitenorm.functional import whitening_of_running_covariance
from whitenorm.layout import grouped_spans, is_channels_last, joined_matrices, spans_of
from whitenorm.modules import DecorrelatedBatchNorm
from whitenorm.passes import moments
from whitenorm.precision import algebra_dtype, no_autocast
from whitenorm.shrinkage import kept_share, shrink

__all__ = ["recalibrate"]

_Model = TypeVar("_Model", bound=nn.Module)
_Norm = DecorrelatedBatchNorm | _BatchNorm

_log = logging.getLogger(__name__)


@torch.no_grad()
def recalibrate(
    model: _Model,
    batches: Iterable[Any],
    *,
    one_pass: bool = False,
    device: torch.device | str | None = None,
    process_group: ProcessGroup | None = None,
) -> _Model:
    r"""Makes the running statistics of DBN and BatchNorm layers anew from some batches.

    For a model whose weights aren't those that its running statistics were averaged with: after
    weight averaging (SWA, EMA), after :func:`whitenorm.convert_batchnorm`, or after training with
    small batches. It does for both kinds of layers what :func:`torch.optim.swa_utils.update_bn`
    does for BatchNorm alone, and does it exactly: the statistics are those of one batch that holds
    the examples of all.

    For that, layer after layer is given its statistics, in the order in which they are called, and
    the batches are passed through the network up to each. With ``one_pass=True`` they are passed
    through once, as by ``update_bn``: each layer's statistics are pooled over what it sees while
    the layers before it normalize with the statistics of each batch by itself.

    All other modules are in evaluation mode meanwhile, so that there is no dropout. Where
    ``shrinkage`` is ``"auto"`` or ``"bounded"``, the pooled covariance is shrunk by what the
    batches ask for on average, as in training. A layer that is called several times pools all its
    calls; one that isn't called keeps its statistics.

    Args:
        model: Modified in place; its modules keep their training or evaluation modes.
        batches: Inputs, or tuples or lists whose first item is the input, such as a DataLoader
            gives. They are gone through once for each layer; an iterator is read into a list
            first. Some thousand examples are enough.
        one_pass: Whether to go through the batches once only.
        device: To move the inputs to, if given.
        process_group: Replicas of torch.distributed whose batches count as one. Layers of
            :func:`whitenorm.synchronize` know theirs.

    Returns:
        The model.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), DecorrelatedBatchNorm(8, group_size=4))
        >>> x = torch.randn(90, 4)
        >>> mean = recalibrate(model, x.split(32))[1].running_mean
        >>> torch.allclose(mean, model[0](x).mean(0), atol=1e-5)
        True
    """
    if iter(batches) is batches:
        batches = list(batches)
    run = _Run(model, batches, device)
    with _evaluating(model), torch.compiler.set_stance("force_eager"):
        calls = run.calls()
        if not calls:
            raise ValueError(
                f"{type(model).__name__} calls no DecorrelatedBatchNorm or BatchNorm layer that "
                "has running statistics, so there is nothing to recalibrate"
            )
        passes = [list(calls)] if one_pass else [[norm] for norm in calls]
        found: dict[_Norm, _Statistics] = {}
        for norms in passes:
            stop = not one_pass and calls[norms[0]] == 1
            for norm, statistics in run.statistics(norms, process_group, stop).items():
                found[norm] = statistics
                statistics.write(norm, unbiased=False)  # as one batch of all would normalize
                norm.eval()
        for norm, statistics in found.items():
            statistics.write(norm, unbiased=True)
    _log.info("recalibrated %d normalization layers", len(found))
    return model


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within, and afterwards each module's own mode again."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.train(mode) if isinstance(module, _Norm) else setattr(module, "training", mode)


class _Statistics(NamedTuple):
    """Of a layer's inputs: their number and, by span, means, central moments, kept shares."""

    samples: Tensor
    means: list[Tensor]
    central: list[Tensor]
    kept: list[Tensor | None]

    def write(self, norm: _Norm, unbiased: bool) -> None:
        """Into the buffers of a layer; the covariance as running averages hold it if unbiased."""
        options = None
        if isinstance(norm, DecorrelatedBatchNorm) and norm.running == "whitening":
            options = norm.eps, norm.whitening, norm.iterations
        count = self.samples
        if unbiased and options is None:
            count = (count - 1).clamp(min=1)
        pairs = zip(self.central, self.kept, strict=True)
        matrix = joined_matrices([shrink(moment / count, kept) for moment, kept in pairs])
        mean = torch.cat([mean.flatten() for mean in self.means])
        if options is not None:
            matrix = whitening_of_running_covariance(matrix, norm.num_features, *options)
        buffer = norm.running_var if isinstance(norm, _BatchNorm) else norm._running_matrix
        cast(Tensor, norm.running_mean).copy_(mean)
        cast(Tensor, buffer).copy_(matrix.view_as(cast(Tensor, buffer)))
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.fill_(1)  # one batch that holds all


class _Stop(Exception):
    """Ends a forward pass that has shown what it was made for."""


class _Run(NamedTuple):
    """The model and what it is run on."""

    model: nn.Module
    batches: Iterable[Any]
    device: torch.device | str | None

    def calls(self) -> dict[_Norm, int]:
        """How often the first batch calls each layer, in the order of their first calls."""
        found: dict[_Norm, int] = {}

        def count(norm: nn.Module, _: Any) -> None:
            found[cast(_Norm, norm)] = found.get(cast(_Norm, norm), 0) + 1

        norms = [m for m in self.model.modules() if isinstance(m, _Norm)]
        tracked = [norm for norm in norms if norm.running_mean is not None]
        if self._forward(tracked, count, most=1) == 0:
            raise ValueError("batches is empty; give one batch of inputs or more")
        return found

    def statistics(
        self, norms: list[_Norm], group: ProcessGroup | None, stop: bool
    ) -> dict[_Norm, _Statistics]:
        """The pooled statistics of the inputs of some layers, of all batches and replicas."""
        found: dict[_Norm, _Statistics] = {}

        def observe(norm: nn.Module, args: tuple[Any, ...]) -> None:
            norm = cast(_Norm, norm)
            new = _of_batch(norm, args[0])
            found[norm] = _added(found[norm], new) if norm in found else new
            if stop:
                raise _Stop

        synchronized = {n: n.synchronized for n in norms if isinstance(n, DecorrelatedBatchNorm)}
        for norm in norms:
            norm.train()  # until it has been observed it normalizes with each batch
        for layer in synchronized:
            layer.synchronized = None  # replicas may have different numbers of batches
        try:
            self._forward(norms, observe)
        finally:
            for layer, mark in synchronized.items():
                layer.synchronized = mark
        for norm, own in found.items():
            mark = synchronized.get(cast(DecorrelatedBatchNorm, norm))
            replicas = group if group is not None or mark is None else mark.group()
            found[norm] = _over_replicas(own, replicas)
        return found

    def _forward(
        self, norms: list[_Norm], hook: Callable[..., None], most: int | None = None
    ) -> int:
        """Passes the batches through the model with a hook on some layers; how many there were."""
        handles = [norm.register_forward_pre_hook(hook) for norm in norms]
        seen = 0
        try:
            for batch in self.batches:
                inputs = batch[0] if isinstance(batch, list | tuple) else batch
                if self.device is not None:
                    inputs = inputs.to(self.device)
                with suppress(_Stop):
                    self.model(inputs)
                seen += 1
                if seen == most:
                    break
        finally:
            for handle in handles:
                handle.remove()
        return seen


def _of_batch(norm: _Norm, x: Tensor) -> _Statistics:
    """The statistics of one input."""
    group_size: int = 1
    shrinkage: float | str = 0.0
    if isinstance(norm, DecorrelatedBatchNorm):
        group_size, shrinkage = norm.group_size, norm.shrinkage
    algebra, rows = algebra_dtype(x), is_channels_last(x)
    with no_autocast(x.device.type):
        views = grouped_spans(x, spans_of(x.shape[1], group_size), rows)
        parts = [moments(view, algebra)[1:3] for view in views]
    count = torch.tensor(x.numel() / x.shape[1], dtype=algebra, device=x.device)
    central = [moment for _, moment in parts]
    kept = [kept_share(moment / count, norm.eps, shrinkage, count) for moment in central]
    return _Statistics(count, [mean for mean, _ in parts], central, kept)


def _added(a: _Statistics, b: _Statistics) -> _Statistics:
    """Those of the samples of both together."""
    counts = torch.stack([a.samples, b.samples])
    pairs = zip(a.means, b.means, a.central, b.central, strict=True)
    joint = [
        pool(counts, torch.stack([mean, mean_b]), torch.stack([moment, moment_b]))
        for mean, mean_b, moment, moment_b in pairs
    ]
    total = counts.sum()
    kept = [
        None if one is None or other is None else (one * a.samples + other * b.samples) / total
        for one, other in zip(a.kept, b.kept, strict=True)
    ]
    means, central = [mean for mean, _ in joint], [moment for _, moment in joint]
    return _Statistics(total, means, central, kept)


def _over_replicas(own: _Statistics, group: ProcessGroup | None) -> _Statistics:
    """Those of all replicas' samples."""
    if group is None:
        return own
    total, means, central = combine(float(own.samples), own.means, own.central, group)
    kept = own.kept
    if own.kept[0] is not None:
        weighted = [own.samples * share for share in cast("list[Tensor]", own.kept)]
        kept = [share / total for share in add_up(weighted, group)]
    return _Statistics(total, means, central, kept)
