"""Optimizers and schedules: rows of tables that check their options."""

import pytest
import torch

from whitenorm.lab.training.optim import learning_rate, make_optimiser


def test_schedules_follow_the_position():
    def rates(schedule, iterations):
        return [learning_rate(schedule, 8.0, i, iterations_per_epoch=10) for i in iterations]

    assert rates({"name": "constant"}, [0, 1000]) == [8, 8]
    assert rates({"name": "halve", "interval": 40}, [0, 39, 40, 80]) == [8, 8, 4, 2]
    steps = {"name": "steps", "at": [8, 12], "factor": 0.5}
    assert rates(steps, [79, 80, 119, 120]) == [8, 4, 4, 2]
    with pytest.raises(ValueError, match="unknown schedule 'cosine'; there are constant, halve"):
        rates({"name": "cosine"}, [0])


def test_optimisers_take_their_options():
    parameter = [torch.nn.Parameter(torch.zeros(1))]
    adam = make_optimiser({"name": "adam", "lr": 0.1, "betas": [0.8, 0.9]}, parameter)
    assert isinstance(adam, torch.optim.Adam)
    assert adam.defaults["betas"] == (0.8, 0.9)
    with pytest.raises(ValueError, match="unknown optimiser 'lion'; there are sgd, adam"):
        make_optimiser({"name": "lion", "lr": 0.1}, parameter)


def test_an_option_that_a_row_has_not_or_needs_is_named():
    parameter = [torch.nn.Parameter(torch.zeros(1))]
    with pytest.raises(ValueError, match="optimiser 'sgd' has no option 'betas'; it has lr, mom"):
        make_optimiser({"name": "sgd", "lr": 0.1, "betas": [0.8, 0.9]}, parameter)
    with pytest.raises(ValueError, match=r"schedule 'halve' needs interval: give schedule\."):
        learning_rate({"name": "halve"}, 1.0, 0, 1)
