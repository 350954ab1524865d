"""Singular values of the Jacobian, against autograd's."""

import itertools
import math

import pytest
import torch
from cases import assert_same_state, small_classifier, state
from torch import nn
from torch.autograd.functional import jacobian

from whitenorm import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d
from whitenorm.diagnostics import (
    condition_number,
    covariance_spectrum,
    fisher_condition_numbers,
    fisher_of_model,
    jacobian_singular_values,
)


def singular_values(function, x):
    """Of the diagonal blocks of autograd's Jacobian of the whole batch."""
    full = jacobian(function, x)  # [N, K, N, D]
    blocks = torch.stack([full[i, :, i] for i in range(len(x))])
    return torch.linalg.svdvals(blocks), full


def test_jacobian_of_a_network_without_normalisation_is_autograds():
    model, x = small_classifier()
    expected, _ = singular_values(model, x)
    torch.testing.assert_close(jacobian_singular_values(model, x), expected)


def norms():
    yield "bn", nn.BatchNorm1d(6, dtype=torch.float64)
    yield "bn without running statistics", nn.BatchNorm1d(6, track_running_stats=False).double()
    yield "matrix", DecorrelatedBatchNorm1d(6, affine="matrix", dtype=torch.float64, group_size=4)
    for whitening, running in itertools.product(("zca", "newton"), ("whitening", "covariance")):
        options = {"group_size": 4, "whitening": whitening, "running": running}
        yield f"{whitening} {running}", DecorrelatedBatchNorm1d(6, dtype=torch.float64, **options)


NORMS = list(norms())


def normalized(norm):
    model = nn.Sequential(nn.Linear(7, 6), norm, nn.ReLU(inplace=True), nn.Linear(6, 4)).double()
    x = torch.randn(20, 7, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2) if norm.weight is not None else None
    return model, x


@pytest.mark.parametrize("norm", [n for _, n in NORMS], ids=[name for name, _ in NORMS])
def test_jacobian_in_train_mode_holds_the_batch_statistics_fixed(norm):
    model, x = normalized(norm)
    z = model[0](x).detach()
    y = norm(z).detach()
    # The affine map that the batch made of the layer, found from its inputs and outputs alone.
    ones = torch.ones(len(z), 1).double()
    A = torch.linalg.lstsq(torch.cat([z, ones], 1), y).solution

    def held(x):
        return model[3](torch.relu(model[0](x) @ A[:-1] + A[-1]))

    before = state(model)
    expected, _ = singular_values(held, x)
    torch.testing.assert_close(jacobian_singular_values(model, x), expected)
    assert_same_state(before, model)


@pytest.mark.parametrize("norm", [n for name, n in NORMS if "without" not in name])
def test_jacobian_in_eval_mode_is_that_of_inference(norm):
    model, x = normalized(norm)
    for _ in range(3):
        model(torch.randn(20, 7, dtype=torch.float64))
    expected, full = singular_values(model.eval(), x)
    assert full[0, :, 1].abs().max() == 0
    torch.testing.assert_close(jacobian_singular_values(model, x), expected)


def test_what_the_held_statistics_leave_out_shrinks_with_the_batch():
    def error(n):
        model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
        x = torch.randn(n, 5, dtype=torch.float64)
        expected, _ = singular_values(model, x)
        return (jacobian_singular_values(model, x) - expected).abs().max()

    assert error(160) < error(10) / 4


def test_jacobian_of_a_convolutional_network():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), DecorrelatedBatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3)
    )
    x = torch.randn(9, 1, 6, 6)
    model(x)
    expected = torch.linalg.svdvals(
        torch.stack([jacobian(model.eval(), x[i : i + 1]).reshape(3, 36) for i in range(9)])
    )
    torch.testing.assert_close(jacobian_singular_values(model, x).float(), expected)


def test_jacobian_leaves_random_numbers_and_gradients_alone():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 2))
    random = torch.get_rng_state()
    jacobian_singular_values(model, torch.zeros(8, 4) + torch.arange(8.0)[:, None])
    assert torch.equal(random, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_jacobian_refuses_a_layer_that_mixes_samples():
    class Mixing(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    with pytest.raises(ValueError, match="depends on other samples"):
        jacobian_singular_values(Mixing(), torch.randn(4, 3))


def test_a_diverged_model_gives_nan_and_no_error():
    model, x = small_classifier()
    x[3] = torch.nan
    numbers = fisher_condition_numbers(fisher_of_model(model, x), num_classes=4)
    assert math.isnan(numbers.at_90_percent)
    assert math.isnan(numbers.at_smallest)
    assert math.isnan(condition_number(covariance_spectrum(model(x))))
    values = jacobian_singular_values(model, x)
    assert values[3].isnan().all()
    assert values[:3].isfinite().all()
    with torch.no_grad():
        model[0].weight.fill_(torch.inf)
    assert jacobian_singular_values(model, x).isnan().all()
