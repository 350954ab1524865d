r"""What a layer and its function may be given, and the errors where it isn't that."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whitenorm.shrinkage import ESTIMATES
from whitenorm.whitening import WHITENINGS

__all__ = [
    "RUNNING",
    "check_affine",
    "check_options",
    "check_tensors",
    "check_training",
    "warn_user",
]

RUNNING = ("whitening", "covariance")
_OURS = tuple(str(Path(file).parent) for file in (__file__, torch.__file__))


def warn_user(message: str) -> None:
    """Warns at the line of the user's that led here, past those of this package and of torch."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def check_options(
    eps: float,
    group_size: int,
    whitening: str,
    running: str,
    shrinkage: float | str,
    iterations: int,
) -> None:
    """Raises a ValueError that says which option is wrong, and what it may be."""
    for name, number in (("group_size", group_size), ("iterations", iterations)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"{name} must be a positive integer, got {number!r}")
    for name, choice, known in (
        ("whitening", whitening, tuple(WHITENINGS)),
        ("running", running, RUNNING),
    ):
        if choice not in known:
            raise ValueError(
                f"{name} must be one of {', '.join(map(repr, known))}, got {choice!r}"
            )
    is_number = isinstance(shrinkage, int | float) and 0 <= shrinkage <= 1
    if not is_number and shrinkage not in ESTIMATES:
        raise ValueError(
            f"shrinkage must be {', '.join(map(repr, ESTIMATES))} or a number from 0 to 1, got "
            f"{shrinkage!r}"
        )
    if not eps >= 0:
        raise ValueError(f"eps must not be negative, got {eps!r}")


def check_affine(affine: bool | str, *, matrix: bool = True) -> None:
    """Raises a ValueError if affine isn't True, False or, where that is known, "matrix"."""
    if isinstance(affine, bool) or (matrix and isinstance(affine, str) and affine == "matrix"):
        return
    known = "True, False or 'matrix'" if matrix else "True or False"
    raise ValueError(f"affine must be {known}, got {affine!r}")


def check_tensors(
    input: Tensor,
    running_mean: Tensor | None,
    running_matrix: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    group_size: int,
) -> None:
    """Raises a ValueError that says which tensor is wrong, and which shape it must have."""
    if input.dim() < 2:
        raise ValueError(f"expected input of shape (N, C, ...), got shape {tuple(input.shape)}")
    if not input.is_floating_point():
        raise ValueError(f"expected a floating-point input, got {input.dtype}")
    channels = input.shape[1]
    if channels == 0:
        raise ValueError(f"expected at least one channel, got input of shape {tuple(input.shape)}")
    size = group_size if group_size < channels else channels
    vector: tuple[int, ...] = (channels,)
    matrices: tuple[int, ...] = (-(-channels // size), size, size)
    for name, tensor, expected in (
        ("running_mean", running_mean, (vector,)),
        ("weight", weight, (vector, matrices)),
        ("bias", bias, (vector,)),
        ("running_matrix", running_matrix, (matrices,)),
    ):
        if tensor is not None and all(tensor.shape != shape for shape in expected):
            shapes = " or ".join(map(str, expected))
            raise ValueError(
                f"{name} must have shape {shapes} for an input with {channels} channels "
                f"and group_size={group_size}, got {tuple(tensor.shape)}"
            )


def check_training(
    input: Tensor,
    running_mean: Tensor | None,
    momentum: float | None,
    num_batches_tracked: Tensor | None,
    process_group: Any,
) -> None:
    """Raises a ValueError that says why the batch can't be trained on."""
    if input.numel() == input.shape[1] and process_group is None:
        raise ValueError(
            "Expected more than 1 value per channel when training, "
            f"got input size {tuple(input.shape)}; use a larger batch or call eval()"
        )
    if momentum is None and running_mean is not None and num_batches_tracked is None:
        raise ValueError("momentum=None averages over all batches: give num_batches_tracked too")
