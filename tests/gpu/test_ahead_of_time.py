"""The kernels compile for GPUs that aren't here, and fit into them."""

import re

import pytest
import torch

pytest.importorskip("triton")

from ahead import build

PASSES = ("moments", "sums", "apply", "apply2")
ALGEBRA = ("matrix", "vjp", "combine", "running")
ARCHITECTURES = (80, 90, 100)
SHARED = 48 * 1024  # what every program gets without asking
SLOW = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    """So that what is tested has been compiled now."""
    import triton

    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path_factory.mktemp("triton"))
        yield


@pytest.mark.parametrize("arch", [pytest.param(80, marks=SLOW), 90, pytest.param(100, marks=SLOW)])
@pytest.mark.parametrize("name", [*PASSES, *ALGEBRA])
def test_groups_of_16_spill_nothing(arch, name):
    built = build(arch, name, 16)
    assert built.spilled == 0
    assert built.registers <= 255
    assert built.shared <= SHARED


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_no_pass_over_smaller_groups_and_other_layouts_spills(arch, name, dtype):
    for k in (1, 2, 4, 7, 8, 13, 16):
        for images in (True, False):
            built = build(arch, name, k, dtype, images=images)
            assert built.spilled == 0, (k, images)
            assert built.shared <= SHARED, (k, images)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_sum_in_float64_spills(arch):
    for k in (1, 2, 4, 8, 16):
        built = build(arch, "moments", k, small=True)
        assert built.spilled == 0, k
        assert built.shared <= SHARED, k


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", [*PASSES, *ALGEBRA])
def test_groups_of_32_fit(arch, name):
    """Their algebra may spill a little."""
    built = build(arch, name, 32)
    assert built.spilled <= (256 if name in ALGEBRA else 0)
    assert built.shared <= SHARED


@pytest.mark.parametrize(("name", "doubles"), [("matrix", 3), ("vjp", 2), ("running", 2)])
def test_numbers_are_given_in_double(name, doubles):
    """count and eps, divisor and momentum: the interpreter doesn't show if they are rounded."""
    entry = re.search(r"\.entry .*?\)", build(90, name, 16).ptx, re.DOTALL)[0]
    assert entry.count(".param .f64") == doubles
    assert ".param .f32" not in entry


def test_products_are_not_rounded_to_tf32():
    for name in PASSES:
        ptx = build(90, name, 16).ptx
        assert "tf32" not in ptx
        assert "fma.rn.f32" in ptx
