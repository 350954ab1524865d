"""Correlation and conditioning of activations, against their definitions."""

import math

import pytest
import torch

from whitenorm import DecorrelatedBatchNorm1d
from whitenorm.diagnostics import (
    condition_number,
    correlation,
    covariance_spectrum,
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
