"""Compiles the kernels as they are launched, for GPUs that aren't here; reads what came out."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from whitenorm.gpu import kernels, launch  # noqa: E402

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
NUMBERS = (
    "count",
    "eps",
    "shrinkage",
    "divisor",
    "momentum",
)  # Python's, which Triton takes for float32
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}


class Built(NamedTuple):
    registers: int  # a thread
    spilled: int  # bytes of local memory a thread
    shared: int  # bytes a program
    ptx: str


def case(name, k, dtype=torch.float32, images=True, small=False):
    """Pointers, constants and warps of a launch; a pointer may be absent."""
    padded = 1 << (k - 1).bit_length()
    square = max(padded, launch.SHORTEST)
    x, f, d = POINTERS[dtype], "*fp32", "*fp64"
    pointers = {
        "moments": {"x": x, "means": d, "centrals": d},
        "sums": {"x": x, "g": x, "shift": f, "totals": d, "outers": d},
        "apply": {"x": x, "shift": f, "matrix": f, "g": None, "other": None}
        | {"constant": f, "y": x},
        "apply2": {"x": x, "shift": f, "matrix": f, "g": x, "other": f, "constant": f, "y": x},
        "combine": {"vectors": d, "matrices": d, "vector": d, "matrix": d},
        "matrix": {"mean": d, "central": d, "weight": f, "bias": f, "W": d, "norm": d}
        | {"kept": d, "finite": "*i32", "P": f, "shift": f, "constant": f},
        "vjp": {"total": d, "outer": d, "mean": d, "shift": f, "W": d, "norm": d}
        | {"kept": d, "weight": f, "dweight": f, "dbias": f, "P": f, "Q": f, "constant": f},
        "running": {"running_mean": f, "running_matrix": f, "tracked": "*i64", "mean": d}
        | {"values": d, "finite": "*i32", "factor": None},
    }[name]
    kernel, constants, warps = name.rstrip("2"), {"K": k, "KP": padded}, 4
    if kernel in launch.TILES:
        work = torch.float64 if small else torch.float32
        block, warps = launch.tile(kernel, padded, work)
        constants |= {"BLOCK": block, "IMAGES": images}
        constants["WORK"] = tl.float64 if small else tl.float32
        constants |= {"INNER": square} if kernel == "apply" else {}
    elif kernel in launch.WARPS:
        constants |= {"KP": square, "WORK": tl.float32}
        constants |= {"AUTO": True} if kernel == "matrix" else {}
        warps = launch.WARPS[kernel][square]
    elif kernel == "combine":
        constants |= {"PARTS": 2048 // padded, "CENTRAL": True}
    else:
        constants["GROUPS"] = 16
    return kernel, pointers, constants, warps


def build(arch, *arguments, **options):
    """A launch as a cubin for an architecture, with pointers that are multiples of 16."""
    name, pointers, constants, warps = case(*arguments, **options)
    kernel = getattr(kernels, name)
    constants = {**constants, **{p: None for p, kind in pointers.items() if kind is None}}
    signature, attributes = {}, {}
    for i, parameter in enumerate(kernel.arg_names):
        if parameter in constants:
            signature[parameter] = "constexpr"
        elif parameter in pointers:
            signature[parameter] = pointers[parameter]
            attributes[(i,)] = [["tt.divisibility", 16]]
        else:
            usual = "fp32" if parameter in NUMBERS else "i32"
            signature[parameter] = kernel.params[i].annotation_type or usual
    made = triton.compile(
        ASTSource(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", arch, 32),
        options={"num_warps": warps, **launch.OPTIONS},
    )
    usage = resources(made.asm["cubin"])
    return Built(
        usage["REG"], usage["STACK"] + usage["LOCAL"], made.metadata.shared, made.asm["ptx"]
    )


def resources(cubin):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [CUOBJDUMP, "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", said)}
