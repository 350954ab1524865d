"""Networks built without memory, and the layers in them."""

import torch

from whitenorm.lab.networks.build import build_model

CIFAR = {"num_classes": 10, "input_shape": (3, 32, 32)}
IMAGENET = {"num_classes": 1000, "input_shape": (3, 224, 224)}


def on_meta(*args, **options):
    """Only shapes count."""
    with torch.device("meta"):
        return build_model(*args, **options)


def layers(model, kind):
    return {name: m for name, m in model.named_modules() if isinstance(m, kind)}
