r"""The networks of the paper, each a row of ``MODELS``, with a method's layers in their places.

Every network ends in a linear layer called ``classifier``. A convolution has no bias if a norm
follows it; the linear layers of the MLP keep theirs, as in the authors' scripts.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from whitenorm.lab.lookup import check_options, look_up
from whitenorm.lab.networks.methods import Method
from whitenorm.lab.networks.parts import initialise
from whitenorm.lab.networks.plain import mlp, splain, vgg_a
from whitenorm.lab.networks.residual import imagenet_resnet, resnet, wrn

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "vgg-a": vgg_a,
    "splain": splain,
    "resnet": resnet,
    "wrn": wrn,
    "imagenet-resnet": imagenet_resnet,
}
_LECUN = ("mlp", "vgg-a", "splain")  # the paper names no other initialization for these


def build_model(
    name: str,
    method: Method,
    *,
    num_classes: int,
    input_shape: tuple[int, ...],
    generator: torch.Generator | None = None,
    **options: Any,
) -> nn.Module:
    """The network of that name with a method's layers in it.

    Args:
        name: Key in ``MODELS``, whose row is the function that builds it.
        method: From :func:`whitenorm.lab.networks.methods.make_method`.
        num_classes: Number of outputs.
        input_shape: Of one sample: (features,) or any other for the MLP, (C, H, W) for the rest.
        generator: Draws the initial weights; torch's own by default.
        options: Those of the row, with their defaults there.
    """
    build = look_up(MODELS, "model", name)
    _, _, _, *known = inspect.signature(build).parameters  # after method, num_classes, input_shape
    check_options("model", name, options, known)
    if name != "mlp":
        if len(input_shape) != 3:
            raise ValueError(f"model {name!r} needs inputs (C, H, W), got shape {input_shape}")
        if method.linear is not nn.Linear:
            raise ValueError(
                f"method {method.name!r} changes linear layers alone, and model {name!r} is made "
                "of convolutions; use it with model 'mlp'"
            )
    model = build(method, num_classes, input_shape, **options)
    initialise(model, "lecun" if name in _LECUN else "he", generator)
    return model


def parameter_count(model: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(parameter.numel() for parameter in model.parameters())
