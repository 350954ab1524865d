r"""Which module's output goes into which: the model's code traced, or watched while it runs."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode

from whitenorm.modules import DecorrelatedBatchNorm

__all__ = [
    "HOOKS",
    "LAYERS",
    "NORMS",
    "Wiring",
    "ancestors",
    "called",
    "recorded",
    "tensors_in",
    "traced",
]

NORMS = (_BatchNorm, DecorrelatedBatchNorm)
LAYERS = (nn.Linear, _ConvNd)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_USED = "has an output that is used elsewhere as well"
_READ = "has parameters that are read from outside"


@dataclass
class Wiring:
    """How often modules are called, and which layer's output each norm takes.

    Args:
        calls: Name of a module -> number of calls.
        sources: Name of a norm -> name of the layer whose output is its input.
        leaks: Name of a layer -> who else sees its output or its parameters.
        untraced: Name of a module -> why it doesn't trace; None if nothing was traced.
    """

    calls: Counter[str] = field(default_factory=Counter)
    sources: dict[str, str] = field(default_factory=dict)
    leaks: dict[str, str] = field(default_factory=dict)
    untraced: dict[str, str] | None = None

    def unseen(self, name: str) -> str:
        if self.untraced is None:
            return "it was not called on the example inputs"
        for above in ancestors(name):
            if above in self.untraced:
                return (
                    f"{repr(above) if above else 'the model'}, which calls it, doesn't trace "
                    f"({self.untraced[above]}): give example_inputs"
                )
        return "no code that traces calls it"


def ancestors(name: str) -> Iterator[str]:
    """Names of the modules that contain a module, from the inside out; the last is ''."""
    while name:
        name = name.rpartition(".")[0]
        yield name


# --- traced -------------------------------------------------------------------------------------


def traced(model: nn.Module) -> Wiring:
    """The wiring as torch.fx sees it, in parts as large as trace.

    Of a module that doesn't trace, the modules inside it are traced each for itself: whatever the
    code is, it calls them as wholes. Not so a Sequential, which code often takes apart: there the
    elements are such parts.
    """
    # Tracing runs the model's code on proxies, which may stay behind on its modules, and would
    # run its hooks. So it is done to a copy, which shares the tensors.
    shared = {id(t): t for t in chain(model.parameters(), model.buffers())}
    model = copy.deepcopy(model, cast("dict[int, Any]", shared))
    for module in model.modules():
        for kind in HOOKS:
            vars(module).get(kind, {}).clear()
    modules = dict(model.named_modules())
    wiring = Wiring(untraced={})
    waiting = [""]
    while waiting:
        name = waiting.pop()
        graphs, opaque = _trace(modules[name])
        _add_graphs(wiring, name, graphs, modules)
        for inner, why in opaque.items():
            full_name = f"{name}.{inner}".strip(".")
            cast("dict[str, str]", wiring.untraced)[full_name] = why
            waiting += _parts_inside(full_name, modules[full_name])
    return wiring


def _parts_inside(name: str, module: nn.Module) -> list[str]:
    """Names of the modules just inside a module that have code of their own and hold a norm."""
    names = []
    for child_name, child in module.named_children():
        full_name = f"{name}.{child_name}".strip(".")
        if isinstance(child, NORMS + LAYERS):  # alone they show nothing
            continue
        if isinstance(child, nn.Sequential) or type(child).forward is nn.Module.forward:
            names += _parts_inside(full_name, child)
        elif any(isinstance(m, NORMS) for m in child.modules()):
            names.append(full_name)
    return names


def _trace(module: nn.Module) -> tuple[list[fx.Graph], dict[str, str]]:
    """The graphs of a module called with what it requires and with all it takes.

    Code often depends on whether an optional argument was given; what is to be merged must be so
    in both cases. Beside them: names of the modules inside that don't trace ("" if it is the
    module itself), and why.
    """
    graphs: list[fx.Graph] = []
    opaque: dict[str, str] = {}
    why = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of code that meets a proxy
        for optional in (False, True):
            try:
                call = _Call(module, optional)
                if not optional or call.has_optional:
                    tracer = _Tracer()
                    graphs.append(tracer.trace(call))
                    opaque |= tracer.opaque
            except Exception as error:  # anything may happen to code that meets a proxy
                why = why or _reason(error)
    return graphs, opaque if graphs else {"": why}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


class _Tracer(fx.Tracer):
    """Makes a leaf of each module whose code can't be followed, and keeps its name and why."""

    def __init__(self) -> None:
        super().__init__()
        self.opaque: dict[str, str] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, NORMS + LAYERS) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        name = self.path_of_module(m)
        if name == "module" or self.is_leaf_module(m, name):
            return super().call_module(m, forward, args, kwargs)
        before, stack = len(self.graph.nodes), self.module_stack.copy()
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as error:
            self.opaque[name.removeprefix("module.")] = _reason(error)
            for node in list(self.graph.nodes)[: before - 1 : -1]:
                self.graph.erase_node(node)
            self.module_stack = stack
            return self.create_proxy("call_module", name, args, kwargs)


class _Call(nn.Module):
    """Calls a module with the arguments it requires (the first, if none), or with all."""

    def __init__(self, module: nn.Module, optional: bool) -> None:
        super().__init__()
        self.module = module
        parameters = inspect.signature(module.forward).parameters.values()
        taken = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        required = [p for p in taken if p.default is p.empty] or taken[:1]
        self.has_optional = len(taken) > len(required)
        used = taken if optional else required
        self.positional = [p.name for p in used if p.kind != p.KEYWORD_ONLY]
        self.keywords = [p.name for p in used if p.kind == p.KEYWORD_ONLY]

    def forward(self, inputs: Mapping[str, Any]) -> Any:
        return self.module(
            *[inputs[name] for name in self.positional],
            **{name: inputs[name] for name in self.keywords},
        )


def _add_graphs(
    wiring: Wiring, region: str, graphs: list[fx.Graph], modules: dict[str, nn.Module]
) -> None:
    """Adds what holds in all graphs of a part of the model."""
    if not graphs:
        return
    seen = [_graph_wiring(graph, region, modules) for graph in graphs]
    calls: Counter[str] = Counter()
    for each in seen:
        calls |= each.calls
        wiring.leaks.update(each.leaks)
    wiring.calls.update(calls)
    for norm, layer in seen[0].sources.items():
        if all(each.sources.get(norm) == layer for each in seen):
            wiring.sources[norm] = layer


def _graph_wiring(graph: fx.Graph, region: str, modules: dict[str, nn.Module]) -> Wiring:
    wiring = Wiring()

    def full(target: Any) -> str:
        return f"{region}{str(target).removeprefix('module')}".removeprefix(".")

    def calls(node: fx.Node, kinds: tuple[type, ...]) -> bool:
        return node.op == "call_module" and isinstance(modules[full(node.target)], kinds)

    for node in graph.nodes:
        name = full(node.target)
        if node.op == "get_attr":
            wiring.leaks[name.rpartition(".")[0]] = _READ
        if node.op != "call_module":
            continue
        wiring.calls[name] += 1
        before = node.all_input_nodes
        if calls(node, NORMS) and len(before) == 1 and calls(before[0], LAYERS):
            wiring.sources[name] = full(before[0].target)
        once = len(node.users) <= 1 and all(calls(user, NORMS) for user in node.users)
        if calls(node, LAYERS) and not once:
            wiring.leaks[name] = _USED
    return wiring


# --- watched ------------------------------------------------------------------------------------


def recorded(model: nn.Module, example_inputs: Any) -> Wiring:
    """The wiring as one run shows it."""
    shared = {id(p): p for p in model.parameters()}
    model = copy.deepcopy(model, cast("dict[int, Any]", shared))
    recorder = _Recorder(model)
    with recorder:
        output = called(model, example_inputs)
    for tensor in tensors_in(output):
        recorder.use(tensor)
    return recorder.wiring


def called(model: nn.Module, example_inputs: Any) -> Any:
    """The output for an input tensor, positional arguments or keyword arguments."""
    if isinstance(example_inputs, Mapping):
        return model(**example_inputs)
    if isinstance(example_inputs, Tensor):
        return model(example_inputs)
    return model(*example_inputs)


class _Recorder(TorchDispatchMode):
    """Watches every operation for the outputs and the parameters of layers, by their memory."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.wiring = Wiring()
        self.running: list[str] = []
        self.parameters: dict[int, str] = {}
        self.outputs: dict[int, tuple[str, Tensor]] = {}  # kept, or their memory would be reused
        for name, module in model.named_modules():
            if isinstance(module, NORMS + LAYERS):
                module.register_forward_pre_hook(partial(self._enter, name))
                module.register_forward_hook(partial(self._leave, name))
            if isinstance(module, LAYERS):
                self.parameters |= {_memory(p): name for p in module.parameters(recurse=False)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for tensor in chain(tensors_in(args), tensors_in(kwargs or {})):
            self.use(tensor)
        return func(*args, **(kwargs or {}))

    def use(self, tensor: Tensor) -> None:
        layer, _ = self.outputs.get(_memory(tensor), ("", None))
        if layer and not any(self.wiring.sources.get(name) == layer for name in self.running):
            self.wiring.leaks[layer] = _USED
        owner = self.parameters.get(_memory(tensor))
        if owner is not None and owner not in self.running:
            self.wiring.leaks[owner] = _READ

    def _enter(self, name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.wiring.calls[name] += 1
        if isinstance(module, NORMS) and args:
            layer, output = self.outputs.get(_memory(args[0]), ("", None))
            if output is args[0]:
                if layer in self.wiring.sources.values():
                    self.wiring.leaks[layer] = _USED
                self.wiring.sources[name] = layer
        self.running.append(name)

    def _leave(self, name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.running.pop()
        if isinstance(module, LAYERS):
            self.outputs[_memory(output)] = (name, output)
            if isinstance(module, nn.Linear) and output.dim() != 2:
                self.wiring.leaks[name] = "has features that are not channels (dimension 1)"


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else 0


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in a structure."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, (list, tuple, set)):
        for each in value:
            yield from tensors_in(each)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from tensors_in(vars(value))
