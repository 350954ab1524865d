r"""The layers: Decorrelated Batch Normalization over 1d, 2d and 3d inputs, and TReLU."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from whitenorm.arguments import check_affine, check_options, warn_user
from whitenorm.compiled import present_whitening
from whitenorm.distributed import ProcessGroup, Synchronized
from whitenorm.functional import decorrelated_batch_norm, whitening_of_running_covariance
from whitenorm.precision import may_read_values, work_dtype
from whitenorm.states import convert_state, mismatch
from whitenorm.transforms import is_wrapped

__all__ = [
    "DecorrelatedBatchNorm",
    "DecorrelatedBatchNorm1d",
    "DecorrelatedBatchNorm2d",
    "DecorrelatedBatchNorm3d",
    "TranslatedReLU",
]


fx.wrap("decorrelated_batch_norm")  # one node of a graph that is traced from the layer itself


def scale_and_shift(
    affine: bool | str, channels: int, size: int, **factory: Any
) -> tuple[nn.Parameter | None, nn.Parameter | None]:
    """Weight and bias without values: (C,) and (C,), or (G, k, k) and (C,) if a "matrix"."""
    if not affine:
        return None, None
    shape = (-(-channels // size), size, size) if affine == "matrix" else (channels,)
    return (
        nn.Parameter(torch.empty(shape, **factory)),
        nn.Parameter(torch.empty(channels, **factory)),
    )


@torch.no_grad()
def reset_scale_and_shift(weight: Tensor | None, bias: Tensor | None) -> None:
    """Scale 1 or matrix I, shift 0."""
    if weight is not None and weight.dim() == 3:
        weight.zero_()  # in place, since it may be sharded
        weight.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    elif weight is not None:
        weight.fill_(1.0)
    if bias is not None:
        bias.zero_()


class DecorrelatedBatchNorm(nn.Module):
    r"""Whitens groups of channels of a 2D to 5D input: the base class of the other three.

    It holds state and mode; :func:`whitenorm.decorrelated_batch_norm` does the rest. By itself it
    takes the place of :class:`torch.nn.SyncBatchNorm`, which doesn't mind the number of
    dimensions either. See :class:`DecorrelatedBatchNorm2d`; only the shape differs.

    Shape:
        - Input: (N, C) to (N, C, D, H, W)
        - Output: as the input
    """

    num_batches_tracked: Tensor | None
    running_mean: Tensor | None
    inference_whitening: Tensor
    _ndims: tuple[int, ...] = (2, 3, 4, 5)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool | str = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        group_size: int = 16,
        whitening: str = "zca",
        running: str = "covariance",
        shrinkage: float | str = "bounded",
        iterations: int = 5,
    ) -> None:
        super().__init__()
        check_options(eps, group_size, whitening, running, shrinkage, iterations)
        check_affine(affine)
        if not isinstance(num_features, int) or num_features < 1:
            raise ValueError(f"num_features must be a positive integer, got {num_features!r}")
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self.group_size = group_size
        self.whitening = whitening
        self.running = running
        self.shrinkage = shrinkage
        self.iterations = iterations
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        size = min(group_size, num_features)
        self.weight, self.bias = scale_and_shift(affine, num_features, size, **factory)
        matrices = torch.empty(self.num_groups, size, size, **factory)
        if running == "covariance":
            matrices = matrices.to(work_dtype(matrices))
        tracked = track_running_stats
        self.register_buffer(
            "running_mean", torch.empty(num_features, **factory) if tracked else None
        )
        self.register_buffer(f"running_{running}", matrices if tracked else None)
        self.register_buffer(
            "num_batches_tracked",
            torch.empty((), dtype=torch.long, device=device) if tracked else None,
        )
        if running == "covariance":
            # What inference multiplies by, so that no decomposition is left in its graph.
            self.register_buffer(
                "inference_whitening", matrices.clone() if tracked else None, persistent=False
            )
        self.synchronized: Synchronized | None = None  # set by whitenorm.synchronize
        self._whitened: tuple[Any, ...] = ()  # which covariance inference_whitening is of
        self._warned = False
        self.reset_parameters()

    @property
    def num_groups(self) -> int:
        """How many groups are whitened apart, the last possibly smaller than the others."""
        return -(-self.num_features // min(self.group_size, self.num_features))

    def reset_running_stats(self) -> None:
        """Back to mean 0 and matrix I, as before the first batch."""
        if self.running_mean is not None and self.num_batches_tracked is not None:
            self.running_mean.zero_()
            matrix = self._running_matrix
            identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
            self._running_matrix.copy_(identity)
            if self.running == "covariance":
                self.inference_whitening.copy_(identity)
            self.num_batches_tracked.zero_()
            self._whiten_running_covariance()

    def reset_parameters(self) -> None:
        """Running statistics as before the first batch, scale 1 or matrix I, shift 0."""
        self.reset_running_stats()
        reset_scale_and_shift(self.weight, self.bias)

    def train(self, mode: bool = True) -> DecorrelatedBatchNorm:
        super().train(mode)
        self._whitened = ()
        self._whiten_running_covariance()
        return self

    def forward(self, input: Tensor) -> Tensor:
        if not isinstance(input, fx.Proxy):
            self._check_input(input)
        elif getattr(input.tracer, "root", self) is not self:
            return self._traced(input)
        matrix, running = None, self.running
        if self.running_mean is not None:
            matrix = self._running_matrix
            if running == "covariance" and not self.training and not is_wrapped(matrix):
                matrix, running = self._present_whitening(), "whitening"
        return decorrelated_batch_norm(
            input,
            self.running_mean,
            matrix,
            self.weight,
            self.bias,
            self.training or self.running_mean is None,
            self.momentum,
            self.eps,
            group_size=self.group_size,
            whitening=self.whitening,
            running=running,
            shrinkage=self.shrinkage,
            iterations=self.iterations,
            num_batches_tracked=self.num_batches_tracked,
            process_group=self._process_group(),
        )

    def _traced(self, input: fx.Proxy) -> Any:
        """The layer as one node of a graph, as BatchNorm is, so that its mode can still change."""
        tracer = cast(fx.Tracer, input.tracer)
        return tracer.create_proxy("call_module", tracer.path_of_module(self), (input,), {})

    def _process_group(self) -> ProcessGroup | None:
        """The replicas to talk to; nobody in evaluation mode, where some may not be called."""
        synchronized = self.synchronized if self.training else None
        return None if synchronized is None else synchronized.group()

    @property
    def _running_matrix(self) -> Tensor:
        return getattr(self, f"running_{self.running}")  # type: ignore[no-any-return]

    def _present_whitening(self) -> Tensor:
        """What inference multiplies by: the whitening of the present running covariance.

        An exported graph has inference_whitening as it is, so that there is no decomposition in
        it: :meth:`eval`, loading and moving have brought it up to date.
        """
        if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
            options = self.num_features, self.eps, self.whitening, self.iterations
            return cast(Tensor, present_whitening(self._running_matrix, *options))
        self._whiten_running_covariance()
        return self.inference_whitening

    def _whiten_running_covariance(self) -> None:
        """Makes inference_whitening that of the present running covariance, if it isn't yet."""
        if self.running != "covariance" or self.running_mean is None or self.training:
            return
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
            return
        covariance = self._running_matrix
        options = (self.eps, self.whitening, self.iterations)
        version = None if covariance.is_inference() else covariance._version
        if self._whitened[1:] == (version, options) and self._is_as_whitened(covariance):
            return
        with torch.inference_mode(False), torch.no_grad():
            copy = covariance.clone()
            W = whitening_of_running_covariance(copy, self.num_features, *options)
            self.inference_whitening = W.to(covariance.dtype)
        self._whitened = (covariance, copy), version, options

    def _is_as_whitened(self, covariance: Tensor) -> bool:
        """Whether it is the covariance that inference_whitening was made from.

        Its version doesn't tell where it was written through ``.data`` or numpy. Its values do, if
        they may be looked at: on other devices :meth:`eval` has to be called after such a write.
        """
        known, copy = self._whitened[0]
        if known is not covariance or covariance.is_inference():
            return False
        return not may_read_values(covariance) or torch.equal(copy, covariance)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        convert_state(self, state_dict, prefix)
        super()._load_from_state_dict(
            state_dict, prefix, metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if strict and (hint := mismatch(self, state_dict, prefix)):
            error_msgs.append(f"{prefix.rstrip('.') or type(self).__name__}: {hint}.")
        self._whiten_running_covariance()

    def __prepare_scriptable__(self) -> Any:
        raise RuntimeError(
            f"{type(self).__name__} can't be compiled by torch.jit.script: call "
            "whitenorm.fold(model) first, or use torch.jit.trace"
        )

    def _apply(self, *args: Any, **kwargs: Any) -> DecorrelatedBatchNorm:
        precise = self._buffers.get("running_covariance")
        self._whitened = ()
        super()._apply(*args, **kwargs)
        moved = self._buffers.get("running_covariance")
        if precise is not None and moved is not None and moved.dtype != work_dtype(moved):
            # Rounded to half precision, a covariance of correlated channels isn't one any more.
            self.running_covariance = precise.to(moved.device, work_dtype(moved))
        self._whiten_running_covariance()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_whitened": ()}

    def _check_input(self, input: Tensor) -> None:
        if input.dim() not in self._ndims:
            expected = " or ".join(f"{n}D" for n in self._ndims)
            raise ValueError(
                f"expected {expected} input (got {input.dim()}D input of shape "
                f"{tuple(input.shape)})"
            )
        if input.shape[1] != self.num_features:
            raise ValueError(
                f"expected input with {self.num_features} channels in dimension 1 (got "
                f"{input.shape[1]} channels, input of shape {tuple(input.shape)}); "
                "num_features must be the number of channels"
            )
        if not self.training or self._warned or self.synchronized is not None:
            return
        if self.shrinkage != 0:
            return
        if torch.compiler.is_compiling():
            return
        size, count = min(self.group_size, self.num_features), input.numel() // self.num_features
        if 1 < count < size:
            self._warned = True
            warn_user(
                f"a batch of {count} samples a channel cannot show how {size} channels vary: "
                f"its covariance is singular, and eps={self.eps} decides the rest. Use "
                f"shrinkage='auto', a larger batch or group_size <= {count}."
            )

    def extra_repr(self) -> str:
        text = (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine!r}, track_running_stats={self.track_running_stats}, "
            f"group_size={self.group_size}, whitening={self.whitening!r}, "
            f"running={self.running!r}, shrinkage={self.shrinkage!r}"
        )
        text += f", iterations={self.iterations}" if self.whitening == "newton" else ""
        return text + (", synchronized" if self.synchronized is not None else "")


class DecorrelatedBatchNorm1d(DecorrelatedBatchNorm):
    r"""Whitens groups of features of a 2D or 3D input, in place of :class:`torch.nn.BatchNorm1d`.

    See :class:`DecorrelatedBatchNorm2d`; only the shape differs.

    Shape:
        - Input: (N, C) or (N, C, L)
        - Output: as the input

    Example:
        >>> norm = DecorrelatedBatchNorm1d(32, group_size=8)
        >>> norm(torch.randn(64, 32)).shape
        torch.Size([64, 32])
    """

    _ndims = (2, 3)


class DecorrelatedBatchNorm2d(DecorrelatedBatchNorm):
    r"""Whitens groups of channels of a 4D input, in place of :class:`torch.nn.BatchNorm2d`.

    *Decorrelated Batch Normalization*, Huang et al., CVPR 2018. Each group of ``group_size``
    contiguous channels, seen as samples :math:`x_1, \dots, x_m` (one for each position of each
    image, :math:`m = NHW`), becomes

    .. math::
        y_i &= \mathrm{diag}(\gamma)\, W (x_i - \mu) + \beta, \qquad W = S^{-1/2} \\
        \mu &= \tfrac1m \sum_i x_i, \qquad
        S = \tfrac1m \sum_i (x_i - \mu)(x_i - \mu)^\top + \epsilon I

    so that, before :math:`\gamma` and :math:`\beta`, its covariance is the identity, if
    ``shrinkage=0``. By default :math:`S` is drawn towards its diagonal first, little where a batch
    has many samples, much where it has few. Gradients are exact through :math:`\mu` and
    :math:`W`, also where eigenvalues of :math:`S` are equal, and can be differentiated again. With
    ``group_size=1`` this is BatchNorm.

    In training, running averages of the mean and the covariance are kept, from 0 and :math:`I`:
    ``running = (1 - momentum) * running + momentum * batch``. Inference uses them instead of the
    batch's. With ``track_running_stats=False`` the batch's are used always. A batch that holds NaN
    or inf gives NaN in the groups it is in and leaves the running averages as they were.

    Statistics are computed in float32 at least, also under autocast, and what is done with the
    small matrices in float64; the output has the input's dtype and memory format.

    Args:
        num_features: Number of channels C.
        eps: Added to the diagonal of the covariance. With 0, a batch whose covariance is singular
            is an error on the CPU, and gives NaN elsewhere, where looking would mean waiting.
        momentum: Weight of a batch in the running averages; None for a cumulative average.
        affine: Whether to learn a scale :math:`\gamma` and a shift :math:`\beta` a channel. With
            ``"matrix"``, a matrix :math:`\Gamma` a group takes the place of
            :math:`\mathrm{diag}(\gamma)`: ``weight`` has the shape (groups, k, k) and starts as
            the identity (*Whitening and Coloring Batch Transform for GANs*, Siarohin et al.,
            ICLR 2019).
        track_running_stats: Whether to keep running averages for inference.
        device: Of the parameters and buffers.
        dtype: Of the parameters and buffers.
        group_size: How many contiguous channels are whitened together. If it doesn't divide C, the
            last group is smaller; if it is larger than C, there is one group.
        whitening: ``"zca"``; ``"pca"``, which suffers from stochastic axis swapping and whose
            derivative doesn't exist at equal eigenvalues (it shows why the paper doesn't use it);
            ``"cholesky"``; or ``"newton"``, which approaches ``"zca"`` by matrix products alone.
            See :func:`whitenorm.whitening_matrix`.
        running: ``"covariance"`` averages the unbiased covariance, and inference whitens with the
            average; ``"whitening"`` averages :math:`W` itself, as in the paper, which goes wrong
            where channels depend on each other or samples are few.
        shrinkage: Draws each covariance towards its own diagonal before it is whitened,
            :math:`(1 - r) S + r\,\mathrm{diag}(S)`: a number :math:`r` from 0 (the paper) to 1
            (BatchNorm), or ``"auto"``, which estimates it from the correlations and the number of
            samples of each batch: near 0 with many samples, larger with few; or ``"bounded"``,
            the same but at least 0.05, for channels that depend on each other.
        iterations: Steps of ``"newton"``.

    Shape:
        - Input: (N, C, H, W)
        - Output: as the input

    Example:
        >>> norm = DecorrelatedBatchNorm2d(64, group_size=16, shrinkage=0.0)
        >>> y = norm(torch.randn(8, 64, 16, 16))
        >>> group = y[:, :16].transpose(0, 1).flatten(1)
        >>> torch.allclose(group.cov(correction=0), torch.eye(16), atol=1e-3)
        True
    """

    _ndims = (4,)


class DecorrelatedBatchNorm3d(DecorrelatedBatchNorm):
    r"""Whitens groups of channels of a 5D input, in place of :class:`torch.nn.BatchNorm3d`.

    See :class:`DecorrelatedBatchNorm2d`; only the shape differs.

    Shape:
        - Input: (N, C, D, H, W)
        - Output: as the input

    Example:
        >>> norm = DecorrelatedBatchNorm3d(8, group_size=4, whitening="newton")
        >>> norm(torch.randn(2, 8, 4, 4, 4)).shape
        torch.Size([2, 8, 4, 4, 4])
    """

    _ndims = (5,)


class TranslatedReLU(nn.Module):
    r"""TReLU, :math:`y = \max(x, a)` with one learnable threshold :math:`a` a channel.

    *On the effects of batch and weight normalization in generative adversarial networks*, Xiang
    and Li, 2017. After a normalization without scale and shift it learns, where a ReLU would cut,
    what :math:`\gamma` and :math:`\beta` would have.

    Args:
        num_features: Number of channels C.
        init: Threshold at the start; 0 is ReLU.

    Shape:
        - Input: (N, C, ...)
        - Output: as the input

    Example:
        >>> TranslatedReLU(2, init=-1.0)(torch.tensor([[-3.0, 3.0]]))
        tensor([[-1.,  3.]], grad_fn=<MaximumBackward0>)
    """

    def __init__(
        self,
        num_features: int,
        init: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.init = init
        self.threshold = nn.Parameter(torch.empty(num_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Thresholds as at the start."""
        nn.init.constant_(self.threshold, self.init)

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ValueError(
                f"expected input of shape (N, {self.num_features}, ...), got {tuple(input.shape)}"
            )
        shape = (-1, *[1] * (input.dim() - 2))
        return torch.maximum(input, self.threshold.to(input.dtype).view(shape))

    def extra_repr(self) -> str:
        return f"{self.num_features}, init={self.init}"
