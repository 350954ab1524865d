"""Correlation and conditioning of activations, against their definitions."""

import math

import pytest
import torch

from whitenorm import DecorrelatedBatchNorm1d
from whitenorm.diagnostics import (
    condition_number,
    correlation,
    covariance_spectrum,
    effective_rank,
    mean_correlation,
)


def test_spectrum_of_whitened_groups_is_one():
    x = torch.randn(512, 10, dtype=torch.float64).cumsum(1)
    norm = DecorrelatedBatchNorm1d(
        10, eps=0.0, affine=False, dtype=torch.float64, group_size=4, shrinkage=0
    )
    torch.testing.assert_close(covariance_spectrum(norm(x), group_size=4), torch.ones(10).double())
    assert covariance_spectrum(norm(x)).max() > 1.1  # between the groups correlation is left


def test_spectrum_counts_positions_as_samples_and_uses_one_over_m():
    x = torch.randn(6, 3, 5, 4)
    rows = x.permute(0, 2, 3, 1).reshape(-1, 3).double()
    expected = torch.linalg.eigvalsh(rows.T.cov(correction=0)).flip(0)
    torch.testing.assert_close(covariance_spectrum(x), expected)


def test_correlation_is_pearsons():
    x = torch.randn(50, 4).cumsum(1)
    torch.testing.assert_close(correlation(x), x.double().T.corrcoef())


def test_mean_correlation_leaves_constant_channels_out():
    x = torch.randn(100, 3, dtype=torch.float64)
    x[:, 1] = -x[:, 0]
    expected = (1 + 2 * abs(float(x.T.corrcoef()[0, 2]))) / 3
    assert mean_correlation(x) == pytest.approx(expected)
    x = torch.cat([x, torch.full((100, 1), 0.1, dtype=torch.float64)], 1)  # 0.1 has no exact mean
    assert correlation(x)[3].isnan().all()
    assert mean_correlation(x) == pytest.approx(expected)


@pytest.mark.parametrize(("at", "expected"), [(1.0, 10.0), (0.9, 9.0), (0.2, 2.0), (0.01, 1.0)])
def test_condition_number_at_a_fraction_of_the_spectrum(at, expected):
    eigenvalues = torch.tensor([10.0, 9, 8, 7, 6, 5, 4, 3, 2, 1]).reciprocal() * 10
    assert condition_number(eigenvalues, at) == pytest.approx(expected)
    rotation = torch.linalg.qr(torch.randn(10, 10)).Q
    matrix = rotation @ eigenvalues.diag() @ rotation.T
    assert condition_number(matrix, at) == pytest.approx(expected, rel=1e-4)


def test_condition_number_of_a_singular_matrix_is_infinite_despite_rounding():
    x = torch.randn(5, 3, dtype=torch.float64)
    assert condition_number(x @ x.T) == math.inf
    assert condition_number(x @ x.T, at=0.6) < 100


@pytest.mark.parametrize("at", [0.0, 1.1])
def test_condition_number_refuses_a_fraction_outside_the_spectrum(at):
    with pytest.raises(ValueError, match=r"at must be in \(0, 1\], got"):
        condition_number(torch.eye(2), at)


def test_condition_number_refuses_what_is_no_spectrum():
    with pytest.raises(ValueError, match=r"square matrix .* \(2, 3\)"):
        condition_number(torch.zeros(2, 3))


@pytest.mark.parametrize("shape", [(40, 6), (4, 6, 3, 5), (5, 9)], ids=["NC", "NCHW", "N < C"])
def test_effective_rank_is_the_entropy_of_the_singular_values_of_centred_samples(shape):
    x = torch.randn(shape, dtype=torch.float64).cumsum(1) + 3
    rows = x.movedim(1, -1).flatten(0, -2)
    singular = torch.linalg.svdvals(rows - rows.mean(0))
    singular = singular[singular > 1e-9]
    p = (singular / singular.sum()).tolist()
    expected = math.exp(-sum(q * math.log(q) for q in p))
    assert effective_rank(x) == pytest.approx(expected, rel=1e-6)
    assert 1 < effective_rank(x) < min(len(rows) - 1, x.shape[1])
    assert effective_rank(7 * x - 2) == pytest.approx(expected, rel=1e-6)


def test_effective_rank_of_white_activations_is_their_number_of_channels():
    x = torch.randn(200, 8, dtype=torch.float64).cumsum(1)
    norm = DecorrelatedBatchNorm1d(8, eps=0.0, dtype=torch.float64, group_size=8, shrinkage=0)
    assert effective_rank(norm(x)) == pytest.approx(8)


def test_effective_rank_counts_directions_not_channels():
    x = torch.randn(300, 2, dtype=torch.float64)
    x = DecorrelatedBatchNorm1d(2, eps=0.0, dtype=torch.float64, shrinkage=0)(x)
    assert effective_rank(x[:, [0, 0, 0]]) == pytest.approx(1)
    assert effective_rank(torch.cat([x, x, torch.ones(300, 3)], 1)) == pytest.approx(2)


def test_effective_rank_of_what_does_not_vary_is_zero_and_of_nan_is_nan():
    x = torch.full((10, 3), 0.1)
    assert effective_rank(x) == 0
    x[0, 0] = math.nan
    assert math.isnan(effective_rank(x))
