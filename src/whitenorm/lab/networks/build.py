r"""The networks of the paper, each a row of ``MODELS``, with a method's layers in their places.

Each ends in a linear layer called ``classifier``. A convolution has no bias if a norm follows it;
the linear layers of the MLP keep theirs, as in the authors' scripts.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from whitenorm.lab.lookup import check_options, look_up
from whitenorm.lab.networks.methods import Method
from whitenorm.lab.networks.parts import Body, initialize, network
from whitenorm.lab.networks.plain import mlp, splain, vgg_a
from whitenorm.lab.networks.residual import imagenet_resnet, resnet, wrn

MODELS: dict[str, Callable[..., Body]] = {
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
    initialization: str | None = None,
    **options: Any,
) -> nn.Module:
    """The network of that name with a method's layers in it, for ``input_shape`` of one sample.

    The MLP takes inputs of any shape, the others (C, H, W). ``generator`` draws the initial
    weights, torch's own by default, by one of ``INITIALIZATIONS``, where None is the paper's or a
    common one for that network. The options are those of the row of ``MODELS``.
    """
    build = look_up(MODELS, "model", name)
    _, _, *known = inspect.signature(build).parameters  # after method and input shape
    check_options("model", name, options, known)
    if name != "mlp":
        if len(input_shape) != 3:
            raise ValueError(f"model {name!r} needs inputs (C, H, W), got shape {input_shape}")
        if method.linear is not nn.Linear:
            raise ValueError(
                f"method {method.name!r} changes linear layers alone, and model {name!r} is made "
                "of convolutions; use it with model 'mlp'"
            )
    parts, features = build(method, input_shape, **options)
    model = network(*parts, ("classifier", method.linear(features, num_classes)))
    initialize(model, initialization or ("lecun" if name in _LECUN else "he"), generator)
    return model
