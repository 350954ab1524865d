"""Which dtype does what, and when values may be looked at."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from whitenorm.precision import (
    algebra_dtype,
    may_read_values,
    no_autocast,
    surely_finite,
    work_dtype,
)


@pytest.mark.parametrize(
    ("dtype", "work"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
def test_passes_are_made_in_float32_at_least_and_algebra_in_float64(dtype, work):
    x = torch.zeros(1, dtype=dtype)
    assert work_dtype(x) == work
    assert algebra_dtype(x) == torch.float64


def test_values_are_read_where_that_waits_for_nothing():
    assert may_read_values(torch.zeros(1))
    assert not may_read_values(torch.zeros(1, device="meta"))
    with FakeTensorMode():
        assert not may_read_values(torch.zeros(1))


def test_only_what_was_looked_at_is_surely_finite():
    assert surely_finite(torch.ones(3))
    assert not surely_finite(torch.tensor([1.0, torch.inf]))
    assert not surely_finite(torch.tensor([1.0, torch.nan]))
    assert not surely_finite(torch.ones(3, device="meta"))


def test_autocast_is_off_inside():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("cpu")
        with no_autocast("cpu"):
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")
