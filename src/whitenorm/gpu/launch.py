r"""From tensors to launches: how activations lie in memory, who works on what, and how much."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from whitenorm.gpu import kernels
from whitenorm.layout import is_channels_last, new_output
from whitenorm.passes import PIECE
from whitenorm.precision import work_dtype

__all__ = [
    "Algebra",
    "apply",
    "derivative",
    "is_small",
    "moments",
    "sums",
    "update_running",
    "whitening",
]

# One-warp programs for each multiprocessor in a pass that adds up, and parts of one group. Enough
# loads are under way with that; what the parts leave to be combined is some per cent of the input.
PROGRAMS, MOST_PARTS = 16, 512
# The shortest inner dimension of a product in Triton.
SHORTEST = 16
# Samples in a tile and warps of a program, by the channels of a tile. Larger tiles spill registers
# to memory, on sm_80, sm_90 or sm_100; half as many samples are taken in float64.
TILES = {
    "moments": {1: (256, 1), 2: (128, 1), 4: (32, 1), 8: (32, 1), 16: (16, 2), 32: (32, 4)},
    "sums": {1: (256, 1), 2: (128, 1), 4: (64, 1), 8: (32, 2), 16: (16, 2), 32: (16, 4)},
    "apply": {1: (128, 4), 2: (128, 4), 4: (128, 4), 8: (128, 4), 16: (128, 4), 32: (32, 4)},
}
WARPS = {"matrix": {16: 4, 32: 4}, "vjp": {16: 4, 32: 8}}
# A product and a sum are one operation. Triton's default is about to change.
OPTIONS = {"enable_fp_fusion": True}


class Places(NamedTuple):
    """How samples of some tensors lie: m of them, L an image; strides of each tensor."""

    m: int
    L: int
    images: bool  # whether images and positions are two dimensions
    strides: list[tuple[int, int, int]]  # of images, positions, channels


def places(*tensors: Tensor) -> tuple[Places, list[Tensor]]:
    """Tensors (N, C, ...) of one shape as samples; those whose positions aren't one are copied."""
    flat = [t.unsqueeze(-1) if t.dim() == 2 else t.flatten(2) for t in tensors]
    n, _, length = flat[0].shape
    if length == 1:
        strides = [(0, t.stride(0), t.stride(1)) for t in flat]
        return Places(n, 1, False, strides), flat
    strides = [(t.stride(0), t.stride(2), t.stride(1)) for t in flat]
    images = n > 1 and any(image != length * position for image, position, _ in strides)
    return Places(n * length, length, images, strides), flat


def is_small(x: Tensor) -> bool:
    """Whether sums in float64 take no time, since there is so little to add up."""
    return x.numel() <= PIECE


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # Triton's interpreter
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _triton_dtype(dtype: torch.dtype) -> Any:
    return tl.float64 if dtype == torch.float64 else tl.float32


class Shape(NamedTuple):
    """Channels, groups, and channels of a group: in truth, and in a tile."""

    channels: int
    groups: int
    size: int
    padded: int

    @property
    def square(self) -> int:
        """Channels of a group in the tiles of the k x k algebra, which are made of products."""
        return max(self.padded, SHORTEST)


def shape_of(x: Tensor, group_size: int) -> Shape:
    channels = x.shape[1]
    size = min(group_size, channels)
    return Shape(channels, -(-channels // size), size, _power_of_two(size))


def tile(kernel: str, padded: int, work: torch.dtype) -> tuple[int, int]:
    """Samples in a tile, and warps."""
    samples, warps = TILES[kernel][padded]
    return (samples if work == torch.float32 else max(samples // 2, SHORTEST)), warps


def _parts(m: int, shape: Shape, block: int, device: torch.device) -> tuple[int, int]:
    """Into how many parts the samples are cut, and how many samples each has."""
    wanted = -(-PROGRAMS * _multiprocessors(device) // shape.groups)
    per = -(-m // min(wanted, MOST_PARTS))
    per = block * -(-per // block)
    return -(-m // per), per


def _partial(x: Tensor, parts: int, shape: Shape) -> tuple[Tensor, Tensor]:
    size, double = shape.size, torch.float64
    vectors = x.new_empty(parts, shape.channels, dtype=double)
    return vectors, x.new_empty(parts, shape.groups, size, size, dtype=double)


def _combined(
    vectors: Tensor, matrices: Tensor, m: int, per: int, shape: Shape, central: bool
) -> tuple[Tensor, Tensor]:
    parts = vectors.shape[0]
    if parts == 1:
        return vectors[0], matrices[0]
    vector, matrix = torch.empty_like(vectors[0]), torch.empty_like(matrices[0])
    kernels.combine[(shape.groups, shape.size)](
        vectors,
        matrices,
        vector,
        matrix,
        m,
        shape.channels,
        per,
        parts,
        K=shape.size,
        KP=shape.padded,
        PARTS=min(_power_of_two(parts), max(2048 // shape.padded, 1)),
        CENTRAL=central,
        num_warps=4,
        **OPTIONS,
    )
    return vector, matrix


def moments(x: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """The mean (C,) and the sum of (x - mean) (x - mean)^T [G, k, k], in float64.

    The corner of a smaller last group is filled, and what is beside it isn't.
    """
    (m, length, images, (strides,)), (x,) = places(x)
    shape = shape_of(x, group_size)
    work = torch.float64 if is_small(x) else work_dtype(x)
    block, warps = tile("moments", shape.padded, work)
    with _on(x.device):
        parts, per = _parts(m, shape, block, x.device)
        means, centrals = _partial(x, parts, shape)
        kernels.moments[(parts, shape.groups)](
            x,
            means,
            centrals,
            m,
            length,
            shape.channels,
            per,
            *strides,
            K=shape.size,
            KP=shape.padded,
            BLOCK=block,
            IMAGES=images,
            WORK=_triton_dtype(work),
            num_warps=warps,
            **OPTIONS,
        )
        return _combined(means, centrals, m, per, shape, central=True)


def sums(x: Tensor, g: Tensor, shift: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """The sums of g (C,) and of g (x - shift)^T [G, k, k], in float64."""
    (m, length, images, strides), (x, g) = places(x, g)
    shape, work = shape_of(x, group_size), work_dtype(x)
    block, warps = tile("sums", shape.padded, work)
    with _on(x.device):
        parts, per = _parts(m, shape, block, x.device)
        totals, outers = _partial(x, parts, shape)
        kernels.sums[(parts, shape.groups)](
            x,
            g,
            shift,
            totals,
            outers,
            m,
            length,
            shape.channels,
            per,
            *strides[0],
            *strides[1],
            K=shape.size,
            KP=shape.padded,
            BLOCK=block,
            IMAGES=images,
            WORK=_triton_dtype(work),
            num_warps=warps,
            **OPTIONS,
        )
        return _combined(totals, outers, m, per, shape, central=False)


class Algebra(NamedTuple):
    """What the algebra of a forward pass leaves, of all groups."""

    W: Tensor  # [G, k, k], float64; a smaller last group ends in an identity
    norm: Tensor  # [G], float64: of S
    kept: Tensor  # [G], float64: the share of the covariances that shrinkage left
    finite: Tensor  # [G], int32
    P: Tensor  # [G, k, k]: y = P (x - shift) + constant
    shift: Tensor  # (C,)
    constant: Tensor  # (C,)


def whitening(
    mean: Tensor,
    central: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    count: float,
    eps: float,
    shrinkage: float,
    estimate: bool,
    work: torch.dtype,
) -> Algebra:
    """ZCA of S = central / count + eps I, where central is shrunk in place.

    By ``shrinkage``, or by an ``estimate`` of at least that.
    """
    groups, size, _ = central.shape
    square = max(_power_of_two(size), SHORTEST)
    found = Algebra(
        torch.empty_like(central),
        central.new_empty(groups),
        central.new_empty(groups),
        central.new_empty(groups, dtype=torch.int32),
        torch.empty_like(central, dtype=work),
        torch.empty_like(mean, dtype=work),
        torch.empty_like(mean, dtype=work),
    )
    with _on(mean.device):
        kernels.matrix[(groups,)](
            mean,
            central,
            weight,
            bias,
            *found,
            mean.shape[0],
            count,
            eps,
            shrinkage,
            AUTO=estimate,
            K=size,
            KP=square,
            WORK=_triton_dtype(work),
            num_warps=WARPS["matrix"][square],
            **OPTIONS,
        )
    return found


def derivative(
    total: Tensor,
    outer: Tensor,
    mean: Tensor,
    W: Tensor,
    norm: Tensor,
    kept: Tensor,
    shift: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    count: float,
    eps: float,
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor, Tensor]:
    """dweight, dbias, and P, Q and constant of dx = P g + Q (x - shift) + constant."""
    groups, size, _ = outer.shape
    square = max(_power_of_two(size), SHORTEST)
    work = shift.dtype
    dweight = None if weight is None else torch.empty_like(weight)
    dbias = None if bias is None else torch.empty_like(bias)
    P, Q = (torch.empty_like(outer, dtype=work) for _ in range(2))
    constant = torch.empty_like(shift)
    with _on(mean.device):
        kernels.vjp[(groups,)](
            total,
            outer,
            mean,
            shift,
            W,
            norm,
            kept,
            weight,
            dweight,
            dbias,
            P,
            Q,
            constant,
            mean.shape[0],
            count,
            eps,
            K=size,
            KP=square,
            WORK=_triton_dtype(work),
            num_warps=WARPS["vjp"][square],
            **OPTIONS,
        )
    return dweight, dbias, P, Q, constant


def apply(
    x: Tensor,
    shift: Tensor | None,
    matrix: Tensor,
    constant: Tensor,
    g: Tensor | None = None,
    other: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """matrix (x - shift) + constant, plus other g if there is g, as x lies in memory."""
    y = new_output(x, is_channels_last(x)) if out is None else out
    (m, length, images, strides), flat = places(x, y if g is None else g, y)
    shape, work = shape_of(x, matrix.shape[-1]), matrix.dtype
    block, warps = tile("apply", shape.padded, work)
    with _on(x.device):
        parts, per = _parts(m, shape, block, x.device)
        kernels.apply[(parts, shape.groups)](
            flat[0],
            shift,
            matrix,
            None if g is None else flat[1],
            other,
            constant,
            y,
            m,
            length,
            shape.channels,
            per,
            *strides[0],
            *strides[1],
            *strides[2],
            K=shape.size,
            KP=shape.padded,
            INNER=shape.square,
            BLOCK=block,
            IMAGES=images,
            WORK=_triton_dtype(work),
            num_warps=warps,
            **OPTIONS,
        )
    return y


def update_running(
    running_mean: Tensor,
    running_matrix: Tensor | None,
    tracked: Tensor | None,
    mean: Tensor,
    values: Tensor,
    finite: Tensor,
    divisor: float,
    momentum: float | None,
) -> None:
    """Moves the running statistics towards mean and values / divisor, if all are finite."""
    groups, size, _ = values.shape
    factor = None
    if momentum is None and tracked is not None:  # computed before the kernel moves the count
        factor = 1 / (tracked + 1).to(torch.float64)
    with _on(mean.device):
        kernels.running[(groups,)](
            running_mean,
            running_matrix,
            tracked,
            mean,
            values,
            finite,
            factor,
            mean.shape[0],
            groups,
            divisor,
            0.0 if momentum is None else momentum,
            K=size,
            KP=_power_of_two(size),
            GROUPS=min(_power_of_two(groups), 1024),
            num_warps=4,
            **OPTIONS,
        )
