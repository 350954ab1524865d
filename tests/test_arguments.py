"""Bad arguments give errors that name what was given and what was expected."""

import pytest
import torch
from cases import correlated

from whitenorm import decorrelated_batch_norm


def train(x, weight=None, **options):
    return decorrelated_batch_norm(x, None, None, weight, training=True, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"group_size": 0}, "group_size must be a positive integer, got 0"),
        ({"group_size": -4}, "group_size must be a positive integer, got -4"),
        ({"group_size": 2.0}, "group_size must be a positive integer, got 2.0"),
        ({"iterations": 0}, "iterations must be a positive integer, got 0"),
        ({"whitening": "svd"}, "whitening must be one of 'zca', .*, got 'svd'"),
        ({"running": "mean"}, "running must be one of 'whitening', 'covariance', got 'mean'"),
        ({"eps": -1e-5}, "eps must not be negative, got -1e-05"),
        ({"eps": float("nan")}, "eps must not be negative, got nan"),
    ],
)
def test_a_wrong_option_is_named(options, words):
    with pytest.raises(ValueError, match=words):
        train(correlated((9, 4)), **options)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(4), r"expected input of shape \(N, C, ...\), got shape \(4,\)"),
        (torch.zeros(4, 4, dtype=torch.long), "floating-point input, got torch.int64"),
        (torch.zeros(1, 4), r"more than 1 value per channel when training, got .*\(1, 4\)"),
        (torch.zeros(1, 4, 1, 1), "more than 1 value per channel when training"),
        (torch.zeros(4, 0), r"at least one channel, got input of shape \(4, 0\)"),
    ],
)
def test_a_wrong_input_is_named(x, words):
    with pytest.raises(ValueError, match=words):
        train(x)


def test_a_wrong_shape_of_parameters_or_statistics_is_named():
    x = correlated((9, 5))
    with pytest.raises(ValueError, match=r"weight must have shape \(5,\).*got \(4,\)"):
        train(x, torch.ones(4))
    with pytest.raises(ValueError, match=r"weight must .* \(5,\) or \(2, 4, 4\) .* got \(1, 5, 5"):
        train(x, torch.ones(1, 5, 5), group_size=4)
    with pytest.raises(ValueError, match=r"running_matrix must have shape \(2, 4, 4\).*got \(5, "):
        decorrelated_batch_norm(x, torch.zeros(5), torch.zeros(5, 5), group_size=4)


def test_what_is_missing_is_named():
    x = correlated((9, 4))
    with pytest.raises(ValueError, match="inference needs running_mean and running_matrix"):
        decorrelated_batch_norm(x)
    with pytest.raises(ValueError, match="give num_batches_tracked"):
        decorrelated_batch_norm(
            x, torch.zeros(4), torch.eye(4).expand(1, 4, 4), training=True, momentum=None
        )
