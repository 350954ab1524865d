"""The Fisher matrix, against gradients of every sample and class."""

import math

import pytest
import torch
from cases import assert_same_state, small_classifier, state
from torch import nn

from whitenorm import DecorrelatedBatchNorm1d
from whitenorm.diagnostics import (
    fisher_condition_numbers,
    fisher_last_layer,
    fisher_of_model,
)


def brute_force_fisher(model, x, bias):
    """Per-sample, per-class gradients; their outer products summed with p(y)."""
    layer = model[-1]
    total = 0
    for sample in x:
        log_p = model(sample[None]).log_softmax(1)[0]
        for y in range(len(log_p)):
            parameters = (layer.weight, layer.bias)
            weight, shift = torch.autograd.grad(log_p[y], parameters, retain_graph=True)
            g = torch.cat([weight, shift[:, None]], 1) if bias else weight
            total = total + log_p[y].exp().detach() * g.flatten().outer(g.flatten())
    return total / len(x)


@pytest.mark.parametrize("bias", [False, True])
def test_fisher_is_that_of_per_sample_per_class_gradients(bias):
    model, x = small_classifier()
    expected = brute_force_fisher(model, x, bias)
    torch.testing.assert_close(fisher_last_layer(model(x), model[:-1](x), bias), expected)
    torch.testing.assert_close(fisher_of_model(model, x, bias=bias), expected)
    assert expected.abs().max() > 1e-2  # the mistake not to repeat gives 1e-18


def test_fisher_in_parts_equals_fisher_at_once():
    logits, hidden = torch.randn(5000, 3), torch.randn(5000, 2)
    halves = [fisher_last_layer(logits[s], hidden[s]) for s in (slice(0, 1000), slice(1000, 5000))]
    expected = halves[0] * 0.2 + halves[1] * 0.8
    torch.testing.assert_close(fisher_last_layer(logits, hidden), expected)


def test_fisher_condition_numbers_leave_out_what_softmax_ignores():
    model, x = small_classifier()
    fisher = fisher_of_model(model, x)
    shift = torch.ones(4).double().repeat_interleave(6).diag() @ torch.eye(6).double().repeat(4, 1)
    assert (fisher @ shift).abs().max() < 1e-12  # 1 (x) e_d for the 6 elements of h
    numbers = fisher_condition_numbers(fisher, num_classes=4)
    eigenvalues = torch.linalg.eigvalsh(fisher).flip(0)
    assert eigenvalues[18:].abs().max() < 1e-12 < eigenvalues[17]
    assert numbers.at_smallest == pytest.approx(float(eigenvalues[0] / eigenvalues[17]))
    assert numbers.at_90_percent == pytest.approx(float(eigenvalues[0] / eigenvalues[15]))
    torch.testing.assert_close(numbers.eigenvalues, eigenvalues)


def test_a_dead_unit_makes_the_fisher_matrix_singular():
    model, x = small_classifier()
    with torch.no_grad():
        model[0].weight[2], model[0].bias[2] = 0, 0
    numbers = fisher_condition_numbers(fisher_of_model(model, x), num_classes=4)
    assert numbers.at_smallest == math.inf


def test_fisher_of_the_whitened_layer_is_where_its_parameters_are():
    """A linear map before the last linear layer: its output counts as the layer's input."""
    model, x = small_classifier()
    U = torch.randn(6, 6, dtype=torch.float64)
    whitened = nn.Sequential(model[0], nn.Tanh(), nn.Linear(6, 6, bias=False), model[2]).double()
    with torch.no_grad():
        whitened[2].weight.copy_(U)
    hidden = torch.tanh(model[0](x)) @ U.T
    torch.testing.assert_close(
        fisher_of_model(whitened, x), fisher_last_layer(model[2](hidden), hidden)
    )


def test_fisher_of_a_model_in_training_leaves_it_as_it_was():
    model = nn.Sequential(
        nn.Linear(5, 8),
        DecorrelatedBatchNorm1d(8),
        nn.BatchNorm1d(8),
        nn.Dropout(),
        nn.Linear(8, 3),
    )
    x = torch.randn(32, 5)
    before, random = state(model), torch.get_rng_state()
    in_train = fisher_of_model(model, x)
    assert_same_state(before, model)
    assert torch.equal(random, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not torch.allclose(in_train, fisher_of_model(model.eval(), x))


def test_fisher_errors_say_what_was_expected():
    with pytest.raises(ValueError, match=r"same N samples, got \(3, 2\) and \(4, 5\)"):
        fisher_last_layer(torch.zeros(3, 2), torch.zeros(4, 5))
    with pytest.raises(ValueError, match=r"4 classes .* shape \(6, 6\)"):
        fisher_condition_numbers(torch.eye(6), 4)
    model, x = small_classifier()
    with pytest.raises(ValueError, match=r"nn.Linear \(0, 2\), got 'classifier'"):
        fisher_of_model(model, x, layer="classifier")
