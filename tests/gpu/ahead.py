"""Compiles the kernels for GPUs that aren't here, and reads what came out."""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import warnings

warnings.simplefilter("ignore")
from whitenorm.gpu import kernels

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
DOUBLES = ("count", "eps", "divisor", "momentum")


class Built(NamedTuple):
    registers: int
    spilled: int  # bytes of stack and local memory
    shared: int
    ptx: str


def build(name, arch, types, constants, warps):
    """A kernel as a cubin for an architecture; pointers and strides are multiples of 16."""
    kernel = getattr(kernels, name)
    signature, attributes = {}, {}
    for i, parameter in enumerate(kernel.arg_names):
        if parameter in constants or types.get(parameter, "") is None:
            signature[parameter] = "constexpr"
        elif parameter in types:
            signature[parameter] = types[parameter]
            attributes[(i,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter] = "fp64" if parameter in DOUBLES else "i32"
    absent = {p: None for p, kind in types.items() if kind is None}
    source = ASTSource(kernel, signature, {**constants, **absent}, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})
    usage = resources(made.asm["cubin"])
    return Built(
        usage["REG"], usage["STACK"] + usage["LOCAL"], made.metadata.shared, made.asm["ptx"]
    )


def resources(cubin):
    path = Path(triton.knobs.cache.dir) / "resources.cubin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cubin)
    said = subprocess.run(
        [TOOLS / "cuobjdump", "--dump-resource-usage", path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", said)}
