r"""BatchNorm, torch's path and the Triton path on a GPU: time, memory, launches, graph capture."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm.convert import convert_batchnorm
from whitenorm.gpu import gate, unmet_requirement
from whitenorm.lab.bench.harness import BenchError, Case, Sampler, Suite
from whitenorm.lab.bench.workloads import Layer, Network, TrainingIteration

SHAPES: list[tuple[int, ...]] = [
    *((128, 64, 56, 56), (128, 256, 56, 56), (128, 512, 28, 28)),  # Res-50
    *((128, 1024, 14, 14), (128, 2048, 7, 7)),  # Res-50, last layers
    *((256, 64, 32, 32), (8192, 512)),  # VGG-A, an MLP
]
FORMATS = [("bfloat16", "contiguous"), ("float32", "channels_last"), ("bfloat16", "channels_last")]
LAYERS = [*map(Layer, SHAPES), *(Layer(SHAPES[1], *each) for each in FORMATS)]
SMALL = [Layer((16, 32, 8, 8)), Layer((16, 32, 8, 8), "bfloat16", "channels_last")]
NETWORKS = {
    "Res-50": Network("imagenet-resnet", 64, (3, 224, 224), {}, classes=1000),
    "VGG-A": Network("vgg-a", 256, (3, 32, 32), {}, where="features.*"),
    "Res-20": Network("resnet", 128, (3, 32, 32), {}, {"depth": 20}),
}
SMALL_NETWORKS = {"Res-8": Network("resnet", 8, (3, 32, 32), {}, {"depth": 8})}
ROUNDS, SECONDS = 10, 0.1
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
CAPTURED = ("bn", "triton-g16", "newton-g16", "cholesky-g16", "dbn-g16")  # what may fail, last


def suite(device: str, quick: bool = False) -> Suite:
    """What is measured on a device: under ten minutes, or small cases in no time."""
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise BenchError(f"--device must be 'cpu' or 'cuda', got {device!r}")
    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise BenchError(f"torch {torch.__version__} has no CUDA device; use a machine with one")
    names = ["bn", "dbn-g16"] + ([] if unmet_requirement(where) else ["triton-g16"])
    layers = SMALL if quick else LAYERS
    networks = SMALL_NETWORKS if quick else NETWORKS
    cases = [_layer_case(given, names, where) for given in layers]
    cases += [_network_case(title, networks[title], names, where) for title in networks]
    return Suite("gpu", "On a GPU", cases, ROUNDS, "", partial(_extras, where))


def _layer_case(given: Layer, names: list[str], device: torch.device) -> Case:
    return Case(
        f"layer {list(given.shape)} {given.dtype} {given.layout}",
        str(list(given.shape)),
        {name: partial(_layer, given, name, device) for name in names},
        ["bn"],
        {"mode": "layer", "dtype": given.dtype, "layout": given.layout},
        facts={name: partial(_facts, _layer_step, given, name, device) for name in names},
    )


def _network_case(title: str, network: Network, names: list[str], device: torch.device) -> Case:
    return Case(
        f"training {title.lower()}",
        title,
        {name: partial(_network, network, name, device) for name in names},
        ["bn"],
        {"mode": "training", "batch": network.batch},
        facts={name: partial(_facts, _network_step, network, name, device) for name in names},
    )


class OnDevice:
    """Seconds of a step, with the device waited for after as many as make a long sample."""

    def __init__(self, step: Callable[[], object], device: torch.device, least: float = SECONDS):
        self._step, self._device, self.repeats = step, device, 1
        self(), self()  # what is set up on the first calls isn't measured
        self.repeats = max(1, min(int(least / max(self()["step"], 1e-9)), 1000))

    def __call__(self) -> dict[str, float]:
        _wait(self._device)
        start = time.perf_counter()
        for _ in range(self.repeats):
            self._step()
        _wait(self._device)
        return {"step": (time.perf_counter() - start) / self.repeats}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _path_of(name: str) -> Iterator[None]:
    """The Triton path for "triton-g16", torch's for all others; what is warned of is an error."""
    with gate.switched(name.startswith("triton")), warnings.catch_warnings():
        warnings.filterwarnings("error", message="the Triton path")
        try:
            yield
        except UserWarning as warning:
            raise BenchError(f"{warning} Please report this.") from warning


def _module(name: str, channels: int, ndim: int, device: torch.device) -> nn.Module:
    layer: nn.Module = nn.BatchNorm2d(channels) if ndim == 4 else nn.BatchNorm1d(channels)
    kind, _, group = name.partition("-g")
    if kind != "bn":
        whitening = kind if kind in ("newton", "cholesky") else "zca"
        layer = convert_batchnorm(layer, group_size=int(group), whitening=whitening)
    return layer.to(device)


def _tensors(given: Layer, device: torch.device) -> tuple[Tensor, Tensor]:
    generator, dtype = torch.Generator(device).manual_seed(0), getattr(torch, given.dtype)
    x, g = (torch.randn(given.shape, generator=generator, device=device) for _ in range(2))
    x = (x + 0.5 * x.roll(1, 1)).add_(0.5)
    x, g = x.to(dtype), g.to(dtype)
    if given.layout == "channels_last":
        x, g = (t.to(memory_format=torch.channels_last) for t in (x, g))
    return x.requires_grad_(), g


def _layer_step(given: Layer, name: str, device: torch.device) -> Callable[[], object]:
    module = _module(name, given.shape[1], len(given.shape), device)
    x, g = _tensors(given, device)
    inputs = [x, *module.parameters()]

    def step() -> list[Tensor]:
        with _path_of(name):
            y = module(x)
            return [y, *torch.autograd.grad(y, inputs, g)]

    return step


def _layer(given: Layer, name: str, device: torch.device) -> Sampler:
    """Forward and backward pass of a layer, after its values have been checked."""
    step = _layer_step(given, name, device)
    if name != "bn":
        found, expected = step(), _in_float64(given, name, device)
        for a, b in zip(found, expected, strict=True):  # type: ignore[call-overload]
            error = ((a.double() - b).norm() / b.norm()).item()
            if not error <= TOLERANCE[given.dtype]:
                raise BenchError(f"{name} is off by {error:.2g} on {given}. Please report this.")
    return OnDevice(step, device)


def _in_float64(given: Layer, name: str, device: torch.device) -> list[Tensor]:
    module = _module(name, given.shape[1], len(given.shape), device).double()
    x, g = _tensors(given, device)
    x = x.detach().double().requires_grad_()
    with gate.switched(False):
        y = module(x)
        return [y, *torch.autograd.grad(y, [x, *module.parameters()], g.double())]


def _network_step(network: Network, name: str, device: torch.device) -> Callable[[], object]:
    iteration = TrainingIteration(network, name.replace("triton", "dbn"), device)

    def step() -> None:
        with _path_of(name):
            iteration()

    return step


def _network(network: Network, name: str, device: torch.device) -> Sampler:
    return OnDevice(_network_step(network, name, device), device)


def _facts(
    make: Callable[..., Callable[[], object]], given: Any, name: str, device: torch.device
) -> dict[str, int]:
    """Kernels that one step launches, and the most bytes that it and its tensors take at once."""
    if device.type != "cuda":
        return {}
    others = torch.cuda.memory_allocated(device)  # of the alternatives that were measured
    step = make(given, name, device)
    step()
    torch.cuda.reset_peak_memory_stats(device)
    step()
    memory = torch.cuda.max_memory_allocated(device) - others
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profiler:
        step()
        _wait(device)
    return {"launches": _launches(profiler.events()), "memory": memory}


def _launches(events: Iterable[Any]) -> int:
    """How many of a profiler's events are work of a GPU: kernels and copies, not their labels."""
    of_gpu = [e for e in events if str(e.device_type).endswith("CUDA")]
    return sum(not e.is_user_annotation for e in of_gpu)


def _extras(device: torch.device) -> dict[str, Any]:
    """Versions, why there is no Triton path if there is none, and what can be captured."""
    captures = {}
    if device.type == "cuda":
        names = [n for n in CAPTURED if n != "triton-g16" or not unmet_requirement(device)]
        captures = {name: _is_capturable(name, device) for name in names}
    triton = None
    if not unmet_requirement(device):
        import triton as module

        triton = module.__version__
    return {
        "device": _described(device),
        "triton": triton,
        "without_triton": unmet_requirement(device),
        "captures": captures,
    }


def _described(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"name": device.type}
    found = torch.cuda.get_device_properties(device)
    return {
        "name": found.name,
        "capability": f"{found.major}.{found.minor}",
        "memory": found.total_memory,
        "cuda": torch.version.cuda,
    }


def _is_capturable(name: str, device: torch.device) -> bool:
    """Whether forward and backward of a layer can be captured in a CUDA graph, and replayed."""
    step = _layer_step(Layer((64, 64, 16, 16)), name, device)
    with torch.cuda.device(device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                step()
            graph.replay()
            _wait(device)
        except (RuntimeError, BenchError):  # of torch, or what the Triton path has warned of
            return False
        return True
