"""Natural Neural Networks against their definition."""

import pytest
import torch
from torch import nn

from whitenorm.lab.networks.build import build_model
from whitenorm.lab.networks.methods import make_method
from whitenorm.lab.networks.natural import WhitenedLinear, reparameterize


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def natural_network(dtype=torch.float32, **options):
    method = make_method("nnn", **options)
    model = build_model("mlp", method, num_classes=5, input_shape=(20,), hidden=(16, 12)).to(dtype)
    x = torch.randn(200, 20, dtype=dtype).cumsum(1) + 3
    return method, model, x


def layers(model):
    return [module for module in model.modules() if isinstance(module, WhitenedLinear)]


def test_every_linear_layer_of_the_network_is_whitened():
    _, model, _ = natural_network()
    names = [name for name, m in model.named_modules() if isinstance(m, WhitenedLinear)]
    assert names == ["hidden.0.linear", "hidden.1.linear", "classifier"]


@pytest.mark.parametrize("eps", [0.001, 1.0])
def test_reparameterisation_leaves_the_function_as_it_was(eps):
    _, model, x = natural_network()
    other = torch.randn(50, 20)
    before = model(x), model(other)
    for _ in range(3):
        reparameterize(model, x, eps)
    assert (model(x) - before[0]).abs().max() < 1e-5
    assert (model(other) - before[1]).abs().max() < 1e-5


def test_reparameterisation_is_the_published_one():
    """y = V U (x - c) + d; U = L^-1/2 D^T of S + eps I; W = V U and b = d - W c stay."""
    _, model, x = natural_network(torch.float64)
    with torch.no_grad():
        for layer in layers(model):
            layer.mean.normal_()
            layer.whitening.normal_()
    inputs = {}
    for layer in layers(model):
        layer.register_forward_pre_hook(lambda layer, args: inputs.update({layer: args[0]}))
    model(x)
    inputs = dict(inputs)  # before anything changes
    canonical = [(m.linear.weight @ m.whitening, m.linear.bias, m.mean) for m in layers(model)]
    canonical = [(W.detach(), (d - W @ c).detach()) for W, d, c in canonical]
    reparameterize(model, x, 0.1)
    for layer, (W, b) in zip(layers(model), canonical, strict=True):
        sample = inputs[layer].detach()
        c, U = layer.mean, layer.whitening
        torch.testing.assert_close(c, sample.mean(0))
        S = sample.T.cov(correction=0) + 0.1 * torch.eye(len(c)).double()
        torch.testing.assert_close(U @ S @ U.T, torch.eye(len(c)).double())
        torch.testing.assert_close(U @ U.T, (U @ U.T).diagonal().diag())  # L^-1/2 times a rotation
        torch.testing.assert_close(layer.linear.weight @ U, W)
        torch.testing.assert_close(layer.linear.bias - W @ c, b)


def test_whitened_input_is_white_after_reparameterization():
    _, model, x = natural_network(torch.float64)
    reparameterize(model, x, 1e-9)
    seen = []
    model.hidden[0].linear.linear.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        output = model(x)
    torch.testing.assert_close(model(x), output)  # with gradients, V U is multiplied first
    torch.testing.assert_close(seen[0].T.cov(correction=0), torch.eye(20).double())


def test_it_happens_every_interval_updates_and_the_layer_learns_in_between():
    method, model, x = natural_network(interval=3)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    target = torch.randint(5, (200,))
    changed = []
    for iteration in range(1, 8):
        nn.functional.cross_entropy(model(x), target).backward()
        optimiser.step()
        optimiser.zero_grad()
        before = [m.whitening.clone() for m in layers(model)]
        method.after_iteration(model, x, iteration)
        if not all(map(torch.equal, (m.whitening for m in layers(model)), before)):
            changed.append(iteration)
    assert changed == [3, 6]


def test_parameters_are_changed_in_place_so_that_an_optimiser_keeps_them():
    _, model, x = natural_network()
    identity = {name: (id(p), p.data_ptr()) for name, p in model.named_parameters()}
    reparameterize(model, x, 1.0)
    assert {name: (id(p), p.data_ptr()) for name, p in model.named_parameters()} == identity
    assert all(p.requires_grad for p in model.parameters())


def test_state_is_saved_and_loaded():
    _, model, x = natural_network()
    reparameterize(model, x, 1.0)
    _, other, _ = natural_network()
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(x), other(x))
