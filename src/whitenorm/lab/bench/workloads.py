r"""What is measured: a layer's two passes, a training iteration, inference, peak memory."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from whitenorm.convert import convert_batchnorm
from whitenorm.folding import fold
from whitenorm.lab.bench.harness import BenchError, Timed
from whitenorm.lab.bench.ports import EighLoop, NewtonSchulz
from whitenorm.lab.networks.build import build_model
from whitenorm.lab.networks.methods import make_method
from whitenorm.modules import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d

__all__ = ["Network", "PeakMemory", "TrainingIteration", "inference", "layer", "training"]


def layer(
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
) -> Timed:
    """Forward and backward pass of a layer in training, with the gradients of all it has.

    Args:
        name: "bn"; "conv", a 3x3 convolution (for (N, C): a linear layer) as wide as the input;
            "dbn-g16", "loop-g16" or "newton-g16" with any group size, the last two of ``ports``.
        shape, dtype, channels_last: Of the input; normalizations keep float32 parameters.
    """
    generator = torch.Generator().manual_seed(0)
    module = _module(name, shape[1], len(shape))
    if name == "conv":
        module = module.to(dtype)
    x = torch.randn(shape, generator=generator)
    x = (x + 0.5 * x.roll(1, 1)).add_(0.5).to(dtype)  # correlated, with a mean, as in networks
    g = torch.randn(shape, generator=generator).to(dtype)
    if channels_last:
        layout = torch.channels_last
        module = module.to(memory_format=layout)  # type: ignore[call-overload]
        x, g = (t.contiguous(memory_format=layout) for t in (x, g))
    x.requires_grad_()
    inputs = [x, *module.parameters()]
    outputs: list[Tensor] = []

    def forward() -> None:
        outputs.append(module(x))

    def backward() -> None:
        # Popped, so that the time includes freeing the memory of the graph.
        torch.autograd.grad(outputs.pop(), inputs, g)

    def check() -> None:
        if not module(x).isfinite().all():
            raise BenchError(f"layer {name!r} gave NaN or inf on an input of shape {shape}")

    return Timed({"forward": forward, "backward": backward}, check)


def _module(name: str, channels: int, dims: int) -> nn.Module:
    if name == "bn":
        return nn.BatchNorm1d(channels) if dims == 2 else nn.BatchNorm2d(channels)
    if name == "conv":
        if dims == 2:
            return nn.Linear(channels, channels)
        return nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    kind, _, group = name.partition("-g")
    if kind == "dbn":
        types = {2: DecorrelatedBatchNorm1d, 4: DecorrelatedBatchNorm2d}
        return types[dims](channels, group_size=int(group))
    return {"loop": EighLoop, "newton": NewtonSchulz}[kind](channels, int(group))


@dataclass(frozen=True)
class Network:
    """A network, its normalization and its input."""

    model: str  # of build_model
    method: str  # of make_method
    batch: int
    input_shape: tuple[int, ...]
    classes: int = 10
    model_options: Mapping[str, Any] = field(default_factory=dict)
    method_options: Mapping[str, Any] = field(default_factory=dict)
    everywhere: int | None = None  # group size of the DBN that replaces all BN layers
    folded: bool = False  # inference: the normalization is merged into the layers before it

    def build(self) -> tuple[nn.Module, Tensor, Tensor]:
        """The network in training mode, a batch and its labels."""
        generator = torch.Generator().manual_seed(0)
        network = build_model(
            self.model,
            make_method(self.method, **self.method_options),
            num_classes=self.classes,
            input_shape=self.input_shape,
            generator=generator,
            **self.model_options,
        )
        if self.everywhere is not None:
            network = convert_batchnorm(network, group_size=self.everywhere)
        x = torch.randn(self.batch, *self.input_shape, generator=generator)
        return network, x, torch.randint(self.classes, (self.batch,), generator=generator)


class TrainingIteration:
    """zero_grad, forward, cross entropy, backward, and SGD with momentum."""

    def __init__(self, network: Network) -> None:
        self.network, self.x, self.y = network.build()
        # The rate is so small that hundreds of iterations on one batch keep ordinary numbers.
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-3, momentum=0.9)
        self.loss = math.nan

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.network(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        self.loss = loss.item()

    def check(self) -> None:
        """Raises if the loss isn't a number: the time of such iterations means nothing."""
        if not math.isfinite(self.loss):
            raise BenchError(f"the loss became {self.loss} during the training iterations")


def training(network: Network) -> Timed:
    """A training iteration; records call its time "step"."""
    iteration = TrainingIteration(network)
    return Timed({"step": iteration}, iteration.check)


def inference(network: Network) -> Timed:
    """A forward pass in inference mode, after one in training that filled the averages."""
    model, x, _ = network.build()
    with torch.no_grad():
        model(x)
    model.eval()
    if network.folded:
        model = fold(model)

    @torch.inference_mode()
    def forward() -> Tensor:
        output: Tensor = model(x)
        return output

    def check() -> None:
        if not forward().isfinite().all():
            raise BenchError(f"inference gave NaN or inf with {network}")

    return Timed({"inference": forward}, check)


class PeakMemory:
    """The most bytes that torch has handed out at once during a training iteration.

    That is activations, gradients and scratch, from the profiler's record of every allocation. It
    is the same in every run, and leaves out weights and what other libraries allocate.
    """

    def __init__(self, network: Network) -> None:
        self._iteration = TrainingIteration(network)
        self._iteration()  # what is set up once isn't part of an iteration
        self.check = self._iteration.check

    def __call__(self) -> dict[str, float]:
        self._iteration.optimizer.zero_grad()  # gradients of the iteration before don't count
        cpu = [ProfilerActivity.CPU]
        with _silent_stderr(), profile(activities=cpu, profile_memory=True) as profiler:
            self._iteration()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        found = [event["args"] for event in events if event.get("name") == "[memory]"]
        if not found:
            raise BenchError(f"the profiler of torch {torch.__version__} recorded no allocations")
        before = found[0]["Total Allocated"] - found[0]["Bytes"]
        return {"allocated": max(event["Total Allocated"] for event in found) - before}


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
