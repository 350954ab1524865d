"""Axis swapping: the paper's figure 2, and against brute force."""

import math

import pytest
import torch

from whitenorm import decorrelated_batch_norm, whitening_matrix
from whitenorm.diagnostics import (
    axis_swapping,
    whitening_axis_swapping,
)
from whitenorm.diagnostics.axis_swapping import _assignment


def figure_2():
    """Two batches that share most points; the others make another direction the longest."""
    angle = math.pi / 6
    D = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    shared = torch.randn(200, 2) * torch.tensor([1.0, 0.9])
    along = torch.tensor([[6.0, 0.0], [-6.0, 0.0]]).repeat(4, 1)
    return (shared @ D.T).double(), [
        (torch.cat([shared, extra]) @ D.T).double() for extra in (along, along.flip(1))
    ]


def whitenings(whitening):
    shared, batches = figure_2()
    matrices = [whitening_matrix(b.T.cov(correction=0), 0.0, whitening) for b in batches]
    return matrices, [(shared - b.mean(0)) @ W.T for b, W in zip(batches, matrices, strict=True)]


def test_pca_swaps_the_axes_of_figure_2_and_zca_does_not():
    _, (first, second) = whitenings("pca")
    pca = axis_swapping(first, second)
    assert pca.swapped == 1
    assert pca.permutation.tolist() == [1, 0]
    assert pca.agreement > 0.95  # it is a permutation
    assert pca.drift > 0.4
    _, (first, second) = whitenings("zca")
    zca = axis_swapping(first, second)
    assert zca.swapped == 0
    assert zca.agreement > 0.9
    assert zca.drift < 0.05


@pytest.mark.parametrize("whitening", ["pca", "zca"])
def test_axis_swapping_of_matrices_agrees_with_that_of_points(whitening):
    (W1, W2), (first, second) = whitenings(whitening)
    shared, _ = figure_2()
    points = axis_swapping(first, second)
    shared = torch.linalg.lstsq(W1, (first - first.mean(0)).T).solution  # the centred points
    matrices = whitening_axis_swapping(W1, W2, shared @ shared.T / shared.shape[1])
    assert matrices[:3] == pytest.approx(points[:3])
    assert torch.equal(matrices.permutation, points.permutation)
    assert whitening_axis_swapping(W1, W2).swapped == points.swapped


def test_an_exact_permutation_with_a_change_of_sign_is_found():
    x = torch.randn(100, 12, dtype=torch.float64)
    permutation = torch.randperm(12)
    moved = torch.empty_like(x)
    moved[:, permutation] = -x
    found = axis_swapping(x, moved)
    assert torch.equal(found.permutation, permutation)
    assert found.agreement == pytest.approx(1)
    assert found.swapped == pytest.approx(float((permutation != torch.arange(12)).double().mean()))


def test_no_change_is_no_swapping_and_a_change_of_every_sign_is_all_drift():
    x = torch.randn(50, 5)
    assert axis_swapping(x, x)[:3] == pytest.approx((0, 1, 0))
    assert axis_swapping(x, -x)[:3] == pytest.approx((0, 1, 1))


@pytest.mark.parametrize("n", [1, 2, 5, 30])
def test_the_assignment_is_the_best_there_is(n):
    from scipy.optimize import linear_sum_assignment

    for kind in (torch.rand(n, n), torch.randint(3, (n, n)).double(), -torch.rand(n, n)):
        rows, columns = linear_sum_assignment(kind.numpy())
        found = _assignment(kind)
        assert sorted(found.tolist()) == list(range(n))
        best = float(kind[rows, columns].sum())
        assert float(kind[torch.arange(n), found].sum()) == pytest.approx(best)


def test_axis_swapping_refuses_different_points():
    with pytest.raises(ValueError, match=r"same points twice, .* got \(4, 2\) and \(5, 2\)"):
        axis_swapping(torch.zeros(4, 2), torch.zeros(5, 2))


# --- whose axes swap ----------------------------------------------------------------------------

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
