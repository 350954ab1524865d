r"""What torch.func and forward mode ask of an autograd function, beside its backward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual

__all__ = ["Transformable", "call", "is_wrapped", "save", "transposed"]

# Only is_grads_batched=True makes these; a torch that has done away with them has none to find.
_is_legacy_batch = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda _: False)


def is_wrapped(x: Tensor) -> bool:
    """Whether x stands for others in torch.func or in a batch of gradients.

    Such a tensor has no values to read, and what depends on it can't be written into another.
    """
    if torch.compiler.is_compiling():
        return False
    return torch.func.debug_unwrap(x) is not x or bool(_is_legacy_batch(x))


class Transformable(Function):
    """An autograd function for torch.func: vmap is a loop, and :func:`call` adds forward mode."""

    @staticmethod
    def push_forward(ctx: Any, saved: list[Any], *tangents: Tensor | None) -> Any:
        """The tangents of the outputs from what was saved and the tangents of the inputs.

        In differentiable operations; :func:`transposed` makes them from the backward pass.
        """
        raise NotImplementedError

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        results = []
        for i in range(info.batch_size):
            pairs = zip(inputs, in_dims, strict=True)
            chosen = [t.select(dim, i) if type(dim) is int else t for t, dim in pairs]
            results.append(call(cls, *chosen))
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        columns = [torch.stack(_alike(column)) for column in zip(*results, strict=True)]
        return tuple(columns), (0,) * len(columns)


def _alike(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Tensors of one shape, or empty, with zeros in place of the empty ones."""
    largest = max(tensors, key=Tensor.numel)
    return [t if t.shape == largest.shape else torch.zeros_like(largest) for t in tensors]


def call(function: type[Transformable], *inputs: Any) -> Any:
    """``function.apply(*inputs)``, with forward mode unless a graph is being captured."""
    if not torch.compiler.is_compiling():
        function = _with_forward_mode(function)
    return function.apply(*inputs)


@cache
def _with_forward_mode(function: type[Transformable]) -> type[Transformable]:
    """A class of its own, for torch.compile takes no function that has a jvp."""
    if "jvp" in vars(function):
        return function

    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        saved = [None if t is None else unpack_dual(t).primal for t in ctx.saved_tensors]
        with _set_fwd_grad_enabled(True):  # torch turns it off, also for the transforms around
            return function.push_forward(ctx, saved, *tangents)

    members = {"jvp": staticmethod(jvp)}
    metaclass: Any = type(function)
    return cast(type[Transformable], metaclass(function.__name__, (function,), members))


def save(ctx: Any, *tensors: Tensor | None) -> None:
    """Keeps tensors for the backward pass and for forward mode."""
    ctx.save_for_backward(*tensors)
    if not torch.compiler.is_compiling():
        ctx.save_for_forward(*tensors)


def transposed(pull_back: Callable[[Tensor], Any], output: Tensor, tangents: Any) -> Tensor:
    r"""The tangent :math:`J v` of an output from the map :math:`u \mapsto J^\top u`.

    Which is linear, so that the derivative of :math:`\langle J^\top u, v \rangle` by :math:`u`
    is the same everywhere: no derivative has to be written twice.
    """
    transpose: Any = torch.func.vjp(pull_back, torch.zeros_like(output))[1]
    return cast(Tensor, transpose(tangents)[0])
