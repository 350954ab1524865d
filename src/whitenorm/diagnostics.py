r"""What whitening is for, measured: correlation, conditioning, Fisher information, isometry, axes.

The measures take tensors. Those that take a model leave it as it was, buffers, gradients and
random numbers included, so that they can be taken in the middle of a training;
:class:`ActivationRecorder` takes the first kind during the training's own forward passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from whitenorm.axes import AxisSwapping, axis_swapping, whitening_axis_swapping
from whitenorm.isometry import jacobian_singular_values, undisturbed
from whitenorm.precision import algebra_dtype

__all__ = [
    "MEASURES",
    "ActivationRecorder",
    "AxisSwapping",
    "FisherConditioning",
    "axis_swapping",
    "condition_number",
    "correlation",
    "covariance",
    "covariance_spectrum",
    "fisher_condition_numbers",
    "fisher_last_layer",
    "fisher_of_model",
    "jacobian_singular_values",
    "mean_correlation",
    "whitening_axis_swapping",
]


# --- activations --------------------------------------------------------------------------------


def covariance_spectrum(activations: Tensor, group_size: int | None = None) -> Tensor:
    r"""Eigenvalues of the covariance (with 1/m) of activations, non-increasing: shape (C,).

    With a ``group_size``, those of each group of channels, one group after the other. Whitened
    activations have eigenvalues of 1 in every group.

    Args:
        activations: Shape (N, C) or (N, C, ...); every position counts as a sample.
        group_size: As in :class:`whitenorm.DecorrelatedBatchNorm2d`; None for all channels.
    """
    S = covariance(activations)
    size = len(S) if group_size is None else group_size
    blocks = [S[i : i + size, i : i + size] for i in range(0, len(S), size)]
    return torch.cat([_eigenvalues(block) for block in blocks])


def correlation(activations: Tensor) -> Tensor:
    """Correlation matrix of activations (N, C, ...), shape (C, C); NaN for a constant channel."""
    S = covariance(activations)
    deviation = S.diagonal().sqrt()
    return S / deviation.outer(deviation)


def mean_correlation(activations: Tensor) -> float:
    """Mean absolute correlation of the pairs of channels that vary; NaN if there is no pair."""
    matrix = correlation(activations)
    off_diagonal = ~torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
    return float(matrix[off_diagonal].abs().nanmean())


def condition_number(matrix_or_eigenvalues: Tensor, at: float = 1.0) -> float:
    r"""Largest eigenvalue over the one at a fraction of the spectrum, :math:`\lambda_1/\lambda_j`.

    :math:`j = \lfloor \mathtt{at} \cdot n \rfloor` counts from the largest of n; ``at=1`` is the
    usual condition number. It is infinite where :math:`\lambda_j` is zero to working precision,
    and NaN where something isn't finite.

    Args:
        matrix_or_eigenvalues: A symmetric positive semi-definite matrix, or its eigenvalues.
        at: In (0, 1].
    """
    if not 0 < at <= 1:
        raise ValueError(f"at must be in (0, 1], got {at!r}")
    given = matrix_or_eigenvalues.detach()
    if given.dim() not in (1, 2) or (given.dim() == 2 and given.shape[0] != given.shape[1]):
        raise ValueError(
            f"expected a square matrix or a vector of eigenvalues, got shape {tuple(given.shape)}"
        )
    eigenvalues = _eigenvalues(given) if given.dim() == 2 else given.sort(descending=True).values
    n = len(eigenvalues)
    largest = float(eigenvalues[0])
    chosen = float(eigenvalues[max(int(at * n + 1e-9), 1) - 1])  # 0.9 * 10 may be 8.999...
    if not eigenvalues.isfinite().all():
        return math.nan
    return largest / chosen if chosen > n * torch.finfo(given.dtype).eps * largest else math.inf


def _eigenvalues(matrix: Tensor) -> Tensor:
    """Non-increasing; NaN, and no word from LAPACK, where a training has diverged."""
    if not matrix.isfinite().all():
        return matrix.new_full((len(matrix),), math.nan)
    eigenvalues: Tensor = torch.linalg.eigvalsh(matrix)
    return eigenvalues.flip(-1)


def covariance(activations: Tensor) -> Tensor:
    """Covariance (with 1/m) of activations (N, C, ...), shape (C, C), in float64."""
    if activations.dim() < 2:
        raise ValueError(f"expected activations (N, C, ...), got shape {tuple(activations.shape)}")
    x = activations.detach().movedim(1, -1).flatten(0, -2)
    constant = (x == x[:1]).all(0)  # whose mean, rounded, may leave a deviation that isn't there
    x = x.to(algebra_dtype(x))
    x = torch.where(constant, 0, x - x.mean(0))
    return x.mT @ x / len(x)


# --- Fisher information -------------------------------------------------------------------------


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
    eigenvalues = _eigenvalues(fisher)
    rest = eigenvalues[: n - n // num_classes]
    return FisherConditioning(condition_number(rest, 0.9), condition_number(rest), eigenvalues)


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


# --- during a training --------------------------------------------------------------------------

MEASURES: Mapping[str, Callable[[Tensor], float]] = {
    "mean_correlation": mean_correlation,
    "condition_number": lambda activations: condition_number(covariance_spectrum(activations)),
    "condition_number_90": lambda activations: condition_number(
        covariance_spectrum(activations), 0.9
    ),
}


class ActivationRecorder:
    r"""Measures the outputs of named layers during a training's own forward passes.

    Only passes in train mode count and are measured. Nothing else is touched.

    Args:
        model: The model that is trained.
        layers: Names of the layers, as in ``model.named_modules()``.
        measures: Name and function of each measure, which takes a layer's output; by default
            ``MEASURES``.
        every: Passes from one measurement to the next; the first pass is measured.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        >>> with ActivationRecorder(model, ["0"], every=10) as recorder:
        ...     for _ in range(20):
        ...         y = model(torch.randn(8, 4))
        >>> [(record["layer"], record["step"]) for record in recorder.records]
        [('0', 0), ('0', 10)]
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Iterable[str],
        measures: Mapping[str, Callable[[Tensor], float]] = MEASURES,
        every: int = 1,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be a positive integer, got {every!r}")
        known = dict(model.named_modules())
        self.layers = {name: known.get(name) for name in layers}
        if unknown := [name for name, module in self.layers.items() if module is None]:
            raise ValueError(
                f"the model has no layer {', '.join(map(repr, unknown))}; it has "
                f"{', '.join(repr(name) for name in known if name)}"
            )
        self.measures = measures
        self.every = every
        self.records: list[dict[str, Any]] = []
        self._handles: list[RemovableHandle] = []
        self._passes = dict.fromkeys(self.layers, 0)

    def __enter__(self) -> ActivationRecorder:
        for name, module in self.layers.items():
            assert module is not None
            self._handles.append(module.register_forward_hook(self._hook(name)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        @torch.no_grad()
        def measure(module: nn.Module, args: Any, output: Tensor) -> None:
            if not module.training:
                return
            step = self._passes[name]
            self._passes[name] += 1
            if step % self.every == 0:
                values = {key: function(output) for key, function in self.measures.items()}
                self.records.append({"layer": name, "step": step, **values})

        return measure
