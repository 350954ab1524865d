"""The floor computes what the layer computes, so that its time is that of the same work."""

import pytest
import torch
from torch.testing import assert_close

from whitenorm import decorrelated_batch_norm
from whitenorm.lab.bench.floor import Floor

SHAPES = {
    "maps": (6, 32, 8, 8),
    "maps of fewer positions than channels": (96, 64, 6, 6),
    "small maps": (40, 32, 3, 2),
    "rows": (150, 32),
}


@pytest.mark.parametrize("size", [1, 8, 32])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_the_floor_has_the_values_and_gradients_of_the_layer(shape, size):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    x = (x + 0.5 * x.roll(1, 1) + 0.5).requires_grad_()
    g = torch.randn(shape, generator=generator, dtype=torch.float64)
    weight = torch.linspace(0.5, 2, shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.linspace(-1, 1, shape[1], dtype=torch.float64, requires_grad=True)
    expected = decorrelated_batch_norm(
        x, weight=weight, bias=bias, training=True, group_size=size, shrinkage=0.0
    )
    gradients = torch.autograd.grad(expected, [x, weight, bias], g)

    floor, (given, scale, shift) = Floor(shape, size), (t.detach() for t in (x, weight, bias))
    y, saved = floor.forward(given, scale, shift)
    assert_close(y, expected.detach())
    assert_close(floor.backward(g, given, scale, saved), gradients)
    # In float32, which is what is timed.
    given, scale, shift = given.float(), scale.float(), shift.float()
    y, saved = floor.forward(given, scale, shift)
    found = (y, *floor.backward(g.float(), given, scale, saved))
    for mine, layers in zip(found, (expected.detach(), *gradients), strict=True):
        assert mine.dtype == torch.float32
        assert (mine - layers).norm() < 1e-5 * layers.norm()


def test_groups_that_leave_a_remainder_have_no_floor():
    with pytest.raises(ValueError, match="no groups of 16 in 40 channels"):
        Floor((8, 40), 16)
