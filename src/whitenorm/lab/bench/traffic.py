r"""What the Triton path reads, writes and launches, and what GPUs allow: computed, not measured.

Tests hold the counts against the kernels, and the page against :func:`traffic_table`.
"""

from typing import NamedTuple

from whitenorm.lab.reporting.markdown import table


class Pass(NamedTuple):
    """A pass over the activations: tensors read and written, and k x k products of a sample."""

    reads: int
    writes: int
    products: int


PASSES = {
    "moments": Pass(1, 0, 1),
    "apply": Pass(1, 1, 1),
    "sums": Pass(2, 0, 1),
    "apply2": Pass(2, 1, 2),
}
LAUNCHES = {  # combine adds up what the programs of a pass have found
    "forward": ("moments", "combine", "matrix", "apply", "running"),
    "backward": ("sums", "combine", "vjp", "apply2"),
}
BATCH_NORM = {"moments": (1, 0), "apply": (1, 1), "sums": (2, 0), "apply2": (2, 1)}
GPUS = {  # bytes and float32 operations a second, by the vendor's data sheets
    "A100 (40 GB)": (1.555e12, 19.5e12),
    "H100 (SXM)": (3.35e12, 67e12),
}


def least_ratio(gpu: str, group_size: int, itemsize: int) -> float:
    """The time of the four passes against BatchNorm's, each as slow as what bounds it."""
    bandwidth, arithmetic = GPUS[gpu]
    ours = theirs = 0.0
    for name, each in PASSES.items():
        memory = itemsize * (each.reads + each.writes) / bandwidth
        ours += max(memory, 2 * each.products * group_size / arithmetic)
        theirs += itemsize * sum(BATCH_NORM[name]) / bandwidth
    return ours / theirs


def traffic_table() -> str:
    """The least ratios, for the page."""
    kinds = [
        (dtype, size, k) for dtype, size in (("float32", 4), ("bfloat16", 2)) for k in (16, 32)
    ]
    ratios = [
        (f"{dtype}, groups of {k}", *(f"{least_ratio(gpu, k, size):.2f}" for gpu in GPUS))
        for dtype, size, k in kinds
    ]
    return table(("computed, not measured: passes / BatchNorm's", *GPUS), ratios)
