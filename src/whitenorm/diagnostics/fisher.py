r"""Fisher information of a classifier's last layer, and how well conditioned it is."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from whitenorm.diagnostics.activations import condition_number, eigenvalues
from whitenorm.diagnostics.isometry import undisturbed
from whitenorm.precision import algebra_dtype

__all__ = [
    "FisherConditioning",
    "fisher_condition_numbers",
    "fisher_last_layer",
    "fisher_of_model",
]


def fisher_last_layer(logits: Tensor, hidden: Tensor, bias: bool = False) -> Tensor:
    r"""Exact Fisher information of a softmax classifier's last linear layer.

    .. math:: F = \tfrac1N \sum_x (\mathrm{diag}(p) - p p^\top) \otimes h h^\top, \qquad
              p = \mathrm{softmax}(z), \quad z = W h + b

    which is the mean, over the model's own classes y ~ p, of the outer product of
    :math:`\nabla \log p_y` with itself. (Summing the gradients over y before the outer product
    gives zero instead.) Parameters are in the order of ``weight.flatten()``; with ``bias``, each
    row of the weight ends in its bias.

    Args:
        logits: :math:`z`, shape (N, K).
        hidden: :math:`h`, the layer's input, shape (N, D).
        bias: Whether to count the bias among the parameters.

    Returns:
        Shape (K D, K D), or (K (D + 1), K (D + 1)) with ``bias``; float64 where there is one.
    """
    if logits.dim() != 2 or hidden.dim() != 2 or len(logits) != len(hidden):
        raise ValueError(
            "expected logits (N, K) and hidden (N, D) of the same N samples, got "
            f"{tuple(logits.shape)} and {tuple(hidden.shape)}"
        )
    dtype = algebra_dtype(logits)
    p, h = logits.detach().to(dtype).softmax(1), hidden.detach().to(dtype)
    if bias:
        h = torch.cat([h, h.new_ones(len(h), 1)], 1)
    # Both factors are symmetric, so half of each, and a quarter of the products, is enough.
    (i, j), classes = _triangle(p.shape[1], p.device)
    (a, b), features = _triangle(h.shape[1], h.device)
    total = p.new_zeros(len(i), len(a))
    for q, g in zip(p.split(4096), h.split(4096), strict=True):
        total.addmm_((torch.where(i == j, q[:, i], 0) - q[:, i] * q[:, j]).mT, g[:, a] * g[:, b])
    blocks = (total / len(p))[classes][:, :, features]  # [K, K, D, D]
    return blocks.transpose(1, 2).reshape(p.shape[1] * h.shape[1], -1)


def _triangle(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of an n x n upper triangle, and each element's place in it."""
    pairs = torch.triu_indices(n, n, device=device)
    place = torch.empty(n, n, dtype=torch.long, device=device)
    place[pairs[0], pairs[1]] = place[pairs[1], pairs[0]] = torch.arange(
        pairs.shape[1], device=device
    )
    return pairs, place


class FisherConditioning(NamedTuple):
    """Condition numbers of a last layer's Fisher matrix, where softmax leaves it non-zero.

    Args:
        at_90_percent: Largest eigenvalue over the one at 90% of the rest.
        at_smallest: Largest eigenvalue over the smallest of the rest.
        eigenvalues: All of them, non-increasing.
    """

    at_90_percent: float
    at_smallest: float
    eigenvalues: Tensor


def fisher_condition_numbers(fisher: Tensor, num_classes: int) -> FisherConditioning:
    """Condition numbers of a Fisher matrix from :func:`fisher_last_layer`.

    Softmax ignores a shift of all its logits, so one eigenvalue for each element of the layer's
    input is zero whatever the data. Those are left out, and the rest is judged. What else is zero
    (an input that is always zero; fewer samples than parameters) makes a number infinite.

    Args:
        fisher: Shape (K D, K D).
        num_classes: K.
    """
    n = len(fisher)
    if fisher.dim() != 2 or n % num_classes or num_classes < 2:
        raise ValueError(
            f"expected a Fisher matrix of {num_classes} classes (at least 2), whose size they "
            f"divide, got shape {tuple(fisher.shape)}"
        )
    values = eigenvalues(fisher)
    rest = values[: n - n // num_classes]
    return FisherConditioning(condition_number(rest, 0.9), condition_number(rest), values)


@torch.no_grad()
def fisher_of_model(
    model: nn.Module, input: Tensor, layer: str | None = None, bias: bool = False
) -> Tensor:
    """:func:`fisher_last_layer` of a classifier, in the mode (train or eval) it is in.

    Args:
        model: Gives logits (N, K); left as it was.
        input: A batch of its inputs.
        layer: Name of the ``nn.Linear`` that gives them; the model's last one by default.
        bias: Whether to count the bias among the parameters.
    """
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    if not linears or (layer is not None and layer not in linears):
        raise ValueError(
            f"layer must name one of the model's nn.Linear ({', '.join(linears) or 'none'}), "
            f"got {layer!r}"
        )
    chosen = linears[layer] if layer is not None else list(linears.values())[-1]
    seen: list[Tensor] = []
    with undisturbed(model, input):
        handle = chosen.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            logits = model(input)
        finally:
            handle.remove()
    return fisher_last_layer(logits, seen[-1], bias)
