r"""What is timed: a layer's two passes, a training step, inference."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from whitenorm.convert import convert_batchnorm
from whitenorm.folding import fold
from whitenorm.lab.bench.bare import backward_passes, forward_passes, laid_bare
from whitenorm.lab.bench.timing import Timed
from whitenorm.lab.networks.build import build_model
from whitenorm.lab.networks.methods import make_method
from whitenorm.modules import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d

__all__ = ["BASELINES", "Network", "baselines", "inference", "layer", "part", "training"]

BASELINES = Path(__file__).parents[4] / "benchmarks" / "baselines.py"


@cache
def baselines() -> ModuleType | None:
    """The layers of ``benchmarks/baselines.py``; None where only the package is installed."""
    if not BASELINES.exists():
        return None
    spec = importlib.util.spec_from_file_location("whitenorm_baselines", BASELINES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- one layer ----------------------------------------------------------------------------------


def layer(
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    cold: bool = False,
) -> Timed:
    """Forward and backward pass of a layer in training, with the gradients of all it has.

    Args:
        name: "bn"; "conv", a 3x3 convolution (for (N, C): a linear layer) as wide as the input;
            "dbn-g16", "loop-g16" or "newton-g16" with any number, the last two from the baselines.
        shape: Of the input.
        dtype: Of the input; norms keep float32 parameters.
        channels_last: Memory format of the input.
        cold: Whether other layers have used the processor's cache before each pass.
    """
    generator = torch.Generator().manual_seed(0)
    module = _module(name, shape[1], len(shape))
    if name == "conv":
        module = module.to(dtype)
    x = _correlated(shape, generator).to(dtype)
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
        # Taken out, so that what is freed is freed within the time.
        torch.autograd.grad(outputs.pop(), inputs, g)

    def check() -> None:
        if not module(x).isfinite().all():
            raise RuntimeError(f"layer {name!r} gave NaN or inf on an input of shape {shape}")

    with _Calls() as calls:
        forward()
        backward()
    phases = {"forward": forward, "backward": backward}
    return Timed(phases, {"calls": calls.count}, check, _other_layer() if cold else None)


def _other_layer() -> Callable[[], object]:
    """Passes over 8 MB of activations, as those of layers that come before."""
    x, matrix = torch.ones(128, 16, 32, 32), torch.eye(16).view(1, 16, 16)
    return partial(forward_passes, x, matrix, matrix[..., :1])


def part(name: str, shape: tuple[int, ...], group: int) -> Timed:
    """What a DBN layer can't do without, by itself, on an input as :func:`layer` has it.

    Args:
        name: "passes", the four over the activations with new outputs; or "eigenvalues".
        shape: Of the input.
        group: Group size.
    """
    generator = torch.Generator().manual_seed(0)
    x, g = _correlated(shape, generator), torch.randn(shape, generator=generator)
    matrix = torch.zeros(shape[1] // group, group, group)
    constant = matrix[..., :1].contiguous()
    _, outer = forward_passes(x, matrix, constant)
    matrix.copy_(outer)

    def forward() -> None:
        forward_passes(x, matrix, constant)

    def backward() -> None:
        backward_passes(x, g, matrix, matrix, constant)

    if name == "passes":
        return Timed({"forward": forward, "backward": backward})
    return Timed({"forward": lambda: torch.linalg.eigh(outer), "backward": lambda: None})


def _module(name: str, channels: int, dims: int) -> nn.Module:
    if name == "bn":
        return nn.BatchNorm1d(channels) if dims == 2 else nn.BatchNorm2d(channels)
    if name == "conv":
        if dims == 2:
            return nn.Linear(channels, channels)
        return nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    kind, _, group = name.partition("-g")
    size = int(group)
    if kind == "dbn":
        types = {2: DecorrelatedBatchNorm1d, 4: DecorrelatedBatchNorm2d}
        return types[dims](channels, group_size=size)
    module = baselines()
    if module is None:
        raise RuntimeError(f"{name!r} needs {BASELINES}, which is part of the source tree")
    found: nn.Module = {"loop": module.EighLoop, "newton": module.NewtonSchulz}[kind](
        channels, size
    )
    return found


def _correlated(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Activations whose neighbouring channels correlate, with a mean, as those of networks do."""
    x = torch.randn(shape, generator=generator)
    return (x + 0.5 * x.roll(1, 1)).add_(0.5)


class _Calls(TorchDispatchMode):
    """Counts the operations that reach a backend."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


# --- networks -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """A network, its normalization and its input, as plain data: a fresh process can rebuild it.

    Args:
        model: Of :func:`whitenorm.lab.networks.build.build_model`.
        method: Of :func:`whitenorm.lab.networks.methods.make_method`.
        batch: Samples.
        input_shape: Of a sample.
        classes: Outputs.
        model_options: Of the model.
        method_options: Of the method.
        everywhere: Group size of the DBN that takes the place of all BN layers afterwards.
        bare: Whether what a DBN layer can't do without takes the place of each in the end.
    """

    model: str
    method: str
    batch: int
    input_shape: tuple[int, ...]
    classes: int = 10
    model_options: Mapping[str, Any] = field(default_factory=dict)
    method_options: Mapping[str, Any] = field(default_factory=dict)
    everywhere: int | None = None
    bare: bool = False

    def settings(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)

    def build(self) -> tuple[nn.Module, Tensor, Tensor]:
        """The network in training mode, a batch and its labels."""
        generator = torch.Generator().manual_seed(0)
        network = build_model(
            self.model,
            make_method(self.method, **self.method_options),
            num_classes=self.classes,
            input_shape=tuple(self.input_shape),
            generator=generator,
            **self.model_options,
        )
        if self.everywhere is not None:
            network = convert_batchnorm(network, group_size=self.everywhere)
        if self.bare:
            network = laid_bare(network)
        x = torch.randn(self.batch, *self.input_shape, generator=generator)
        return network, x, torch.randint(self.classes, (self.batch,), generator=generator)


class TrainingStep:
    """zero_grad, forward, cross entropy, backward, and an update of SGD with momentum."""

    def __init__(self, network: Network) -> None:
        self.network, self.x, self.y = network.build()
        # Small enough that hundreds of steps on one batch change nothing about their cost.
        self.optimiser = torch.optim.SGD(self.network.parameters(), lr=1e-3, momentum=0.9)
        self.loss = math.nan

    def __call__(self) -> None:
        self.optimiser.zero_grad()
        loss = F.cross_entropy(self.network(self.x), self.y)
        loss.backward()
        self.optimiser.step()
        self.loss = loss.item()

    def check(self) -> None:
        """Raises if training went astray, for then the numbers weren't ordinary ones."""
        if not math.isfinite(self.loss):
            raise RuntimeError(f"the loss became {self.loss} during the training steps")


def training(network: Network) -> Timed:
    """A training step."""
    step = TrainingStep(network)
    return Timed({"step": step}, check=step.check)


def inference(network: Network, folded: bool = False) -> Timed:
    """A forward pass in inference mode, after one in training that filled the averages."""
    model, x, _ = network.build()
    with torch.no_grad():
        model(x)
    model.eval()
    info = {}
    if folded:
        model = fold(model)
        report: Any = model.fold_report
        info = {"folded": len(report.folded), "kept": len(report.kept)}

    @torch.inference_mode()
    def forward() -> None:
        model(x)

    return Timed({"inference": forward}, info)
