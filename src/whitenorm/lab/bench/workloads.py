r"""What is measured: a layer's two passes, a training update, inference, peak memory."""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.profiler import profile
from torch.nn import functional as F

from whitenorm.convert import convert_batchnorm, replace_modules
from whitenorm.folding import fold
from whitenorm.lab.bench.floor import Floor, Saved
from whitenorm.lab.bench.harness import BenchError, Timed
from whitenorm.lab.bench.ports import PORTS, Port
from whitenorm.lab.networks.build import build_model
from whitenorm.lab.networks.methods import make_method
from whitenorm.modules import DecorrelatedBatchNorm


@dataclass(frozen=True)
class Layer:
    """The input of a layer."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str = "contiguous"  # or channels_last


def layer(given: Layer, name: str) -> Timed:
    """Forward and backward pass of a layer in training, with the gradients of all it has.

    The layer is "bn", or "dbn-g16", "loop-g16", "newton-g16" or "floor-g16", with any group size.
    Normalizations keep float32 parameters.
    """
    generator, dtype = torch.Generator().manual_seed(0), getattr(torch, given.dtype)
    x = torch.randn(given.shape, generator=generator)
    x = (x + 0.5 * x.roll(1, 1)).add_(0.5).to(dtype)  # correlated, with a mean, as in networks
    g = torch.randn(given.shape, generator=generator).to(dtype)
    if given.layout == "channels_last":
        x, g = (t.to(memory_format=torch.channels_last) for t in (x, g))
    kind, _, group = name.partition("-g")
    if kind == "floor":
        return _floor(Floor(given.shape, int(group)), x, g)
    module = _module(kind, given.shape, int(group or 1))
    if not module(x).isfinite().all():
        raise BenchError(f"layer {name!r} gave NaN or inf on {given}")
    x.requires_grad_()
    inputs = [x, *module.parameters()]
    outputs: list[Tensor] = []

    def forward() -> None:
        outputs.append(module(x))

    def backward() -> None:
        # Popped, so that the time includes freeing the memory of the graph.
        torch.autograd.grad(outputs.pop(), inputs, g)

    return Timed({"forward": forward, "backward": backward})


def _module(kind: str, shape: tuple[int, ...], group: int) -> nn.Module:
    if kind in PORTS:
        return Port(PORTS[kind], shape[1], group)
    bn = nn.BatchNorm2d(shape[1]) if len(shape) == 4 else nn.BatchNorm1d(shape[1])
    return bn if kind == "bn" else convert_batchnorm(bn, group_size=group)


def _floor(floor: Floor, x: Tensor, g: Tensor) -> Timed:
    weight, bias = torch.ones(x.shape[1]), torch.zeros(x.shape[1])
    outputs: list[tuple[Tensor, Saved]] = []

    def forward() -> None:
        outputs.append(floor.forward(x, weight, bias))

    def backward() -> None:
        floor.backward(g, x, weight, outputs.pop()[1])

    return Timed({"forward": forward, "backward": backward})


@dataclass(frozen=True)
class Network:
    """A network, its input and the DBNs that it is measured with."""

    model: str  # of build_model
    batch: int
    input_shape: tuple[int, ...]
    dbn: Mapping[str, float | None]  # and training time against BN in the paper's appendix
    options: Mapping[str, Any] = field(default_factory=dict)  # of build_model
    classes: int = 10
    where: str = "all"  # the normalizations that DBN replaces

    def build(self, name: str) -> tuple[nn.Module, Tensor, Tensor]:
        """The network in training mode, a batch and its labels.

        Names are "bn"; "dbn-g16", with any group size; and "dbn-scale", which is the paper's
        DBN-scale-L1, groups of 8 in the first layer alone. "loop" or "newton" in place of "dbn"
        puts a port where DBN would be.
        """
        generator = torch.Generator().manual_seed(0)
        network = build_model(
            self.model,
            make_method("bn"),
            num_classes=self.classes,
            input_shape=self.input_shape,
            generator=generator,
            **self.options,
        )
        kind, _, group = name.partition("-g")
        first, port = kind.endswith("-scale"), PORTS.get(kind.partition("-")[0])
        if kind != "bn":
            size, where = (8, "first") if first else (int(group), self.where)
            convert_batchnorm(network, where=where, group_size=size)
        if port is not None:
            found = [m for m in network.modules() if isinstance(m, DecorrelatedBatchNorm)]
            replace_modules(network, {m: Port(port, m.num_features, size) for m in found})
        x = torch.randn(self.batch, *self.input_shape, generator=generator)
        return network, x, torch.randint(self.classes, (self.batch,), generator=generator)


class TrainingIteration:
    """zero_grad, forward, cross entropy, backward, and SGD with momentum."""

    def __init__(self, network: Network, name: str, device: torch.device | str = "cpu") -> None:
        model, x, y = network.build(name)
        self.network, self.x, self.y = model.to(device), x.to(device), y.to(device)
        # The rate is so small that hundreds of iterations on one batch keep ordinary numbers.
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-3, momentum=0.9)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.network(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        if not math.isfinite(loss.item()):  # the time of such iterations means nothing
            raise BenchError(f"the loss became {loss.item()} during the training updates")


def training(network: Network, name: str) -> Timed:
    """A training update; records call its time "step"."""
    return Timed({"step": TrainingIteration(network, name)})


def inference(network: Network, name: str) -> Timed:
    """A forward pass in inference mode, after one in training that filled the averages.

    In "bn, folded" or "dbn-g16, folded", normalizations are merged into the layers before them.
    """
    normalization, _, folded = name.partition(", ")
    model, x, _ = network.build(normalization)
    with torch.no_grad():
        model(x)
    model = fold(model.eval()) if folded else model.eval()
    forward = torch.inference_mode()(partial(model, x))
    if not forward().isfinite().all():
        raise BenchError(f"inference gave NaN or inf with {name!r} in {network}")
    return Timed({"inference": forward})


class PeakMemory:
    """The most bytes that torch has handed out at once during a training update.

    That is activations, gradients and scratch, from the profiler's record of every allocation. It
    is the same in every run, and leaves out weights and what other libraries allocate.
    """

    def __init__(self, network: Network, name: str) -> None:
        self._iteration = TrainingIteration(network, name)
        self._iteration()  # what is set up once isn't part of an iteration

    def __call__(self) -> dict[str, float]:
        self._iteration.optimizer.zero_grad()  # gradients of the iteration before don't count
        with _silent_stderr(), profile(profile_memory=True) as profiler:
            self._iteration()
        events = sorted(profiler.kineto_results.events(), key=lambda event: event.start_ns())
        sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
        return {"allocated": max(accumulate(sizes))}  # frees are negative


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """For the profiler, whose C++ code reports there that it starts and stops."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
