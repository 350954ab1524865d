"""Stochastic axis swapping, the paper's figure 2: why whitening has to be ZCA."""

import torch

from whitenorm import decorrelated_batch_norm

SHARED = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]).double()
WIDE = torch.cat([SHARED, torch.tensor([[3.0, 0.0], [-3.0, 0.0]]).double()])
TALL = torch.cat([SHARED, torch.tensor([[0.0, 3.0], [0.0, -3.0]]).double()])


def shared_points(batch, whitening):
    y = decorrelated_batch_norm(batch, training=True, group_size=2, whitening=whitening)
    return y[: len(SHARED)]


def test_pca_swaps_the_axes_of_the_points_that_two_batches_share():
    """Four points stay, two move: the larger eigenvalue changes axis, so the axes swap."""
    wide, tall = shared_points(WIDE, "pca"), shared_points(TALL, "pca")
    assert torch.equal(wide.sign(), SHARED.sign())
    assert torch.equal(tall.sign(), SHARED.flip(1).sign())
    torch.testing.assert_close(tall, shared_points(TALL, "zca").flip(1))


def test_zca_leaves_them_on_their_axes():
    for batch in (WIDE, TALL):
        assert torch.equal(shared_points(batch, "zca").sign(), SHARED.sign())


def test_zca_distorts_least():
    """Of all whitenings, ZCA moves the points least (in the squared distance)."""
    for batch in (WIDE, TALL):
        centred = batch - batch.mean(0)
        zca = decorrelated_batch_norm(batch, training=True, group_size=2)
        for angle in torch.linspace(0.1, 6.2, 20):
            c, s = angle.cos().double(), angle.sin().double()
            rotated = zca @ torch.stack([torch.stack([c, -s]), torch.stack([s, c])])
            assert (zca - centred).pow(2).sum() < (rotated - centred).pow(2).sum()
