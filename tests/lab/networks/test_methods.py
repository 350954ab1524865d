"""The table of methods, and Natural Neural Networks against their definition."""

import pytest
import torch
from torch import nn

from whitenorm import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d
from whitenorm.lab.networks.build import build_model
from whitenorm.lab.networks.methods import (
    METHODS,
    Row,
    WhitenedLinear,
    make_method,
    reparameterise,
)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


# --- the table ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("shape", [(32, 12), (8, 12, 5, 5)])
def test_every_method_makes_a_layer_for_vectors_and_for_pictures(name, shape):
    method = make_method(name)
    assert method.name == name
    if method.norm is None:
        assert name in ("plain", "nnn")
        return
    x = torch.randn(shape)
    y = method.norm(12, len(shape) - 2)(x).detach()
    assert y.shape == x.shape
    assert y.mean().abs() < 1e-5
    assert y.var(correction=0).item() == pytest.approx(
        1, abs=0.2 if name == "dbn-newton" else 1e-3
    )


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("bn", {"eps": 0.1}, nn.BatchNorm1d(6, eps=0.1)),
        ("bn", {"affine": False, "momentum": 0.5}, nn.BatchNorm1d(6, momentum=0.5, affine=False)),
        ("dbn", {}, DecorrelatedBatchNorm1d(6)),
        ("dbn", {"group_size": None}, DecorrelatedBatchNorm1d(6, group_size=6)),
        ("dbn", {"affine": False}, DecorrelatedBatchNorm1d(6, affine=False)),
        ("dbn", {"running": "covariance"}, DecorrelatedBatchNorm1d(6, running="covariance")),
        ("dbn-pca", {"group_size": 3}, DecorrelatedBatchNorm1d(6, group_size=3, whitening="pca")),
        ("dbn-zca", {}, DecorrelatedBatchNorm1d(6)),
        ("dbn-cholesky", {}, DecorrelatedBatchNorm1d(6, whitening="cholesky")),
        (
            "dbn-newton",
            {"iterations": 7},
            DecorrelatedBatchNorm1d(6, whitening="newton", iterations=7),
        ),
    ],
)
def test_options_reach_the_layer(name, options, expected):
    assert repr(make_method(name, **options).norm(6, 0)) == repr(expected)


def test_the_options_of_a_method_hold_its_defaults_and_what_makes_it():
    assert make_method("nnn", interval=50).options == {"eps": 1.0, "interval": 50}
    assert make_method("dbn-pca").options["whitening"] == "pca"


@pytest.mark.parametrize(("dims", "shape"), [(0, (9, 6)), (2, (9, 6, 4, 5))])
def test_layer_norm_normalises_each_sample_over_all_of_it(dims, shape):
    x = torch.randn(shape) * 3 + 2
    layer = make_method("ln", eps=1e-3).norm(6, dims)
    expected = nn.functional.layer_norm(x, shape[1:], eps=1e-3)
    torch.testing.assert_close(layer(x), expected)


def test_unknown_methods_and_options_are_named_with_what_there_is():
    with pytest.raises(
        ValueError, match=r"unknown method 'gn'; there are plain, bn, ln, nnn, dbn"
    ):
        make_method("gn")
    with pytest.raises(ValueError, match=r"'bn' has no option 'group'; it has eps, momentum"):
        make_method("bn", group=2)
    with pytest.raises(ValueError, match=r"'plain' has no option 'eps'; it has none"):
        make_method("plain", eps=1)
    with pytest.raises(ValueError, match=r"'dbn-pca' has no option 'whitening'"):
        make_method("dbn-pca", whitening="zca")
    with pytest.raises(ValueError, match="interval must be a positive number of updates, got 0"):
        make_method("nnn", interval=0)
    with pytest.raises(ValueError, match="eps must be positive, got 0"):
        make_method("nnn", eps=0)
    with pytest.raises(ValueError, match="group_size must be a positive integer, got 0"):
        make_method("dbn", group_size=0).norm(4, 0)


def test_adding_a_method_takes_a_row(monkeypatch):
    row = Row("IN", {"eps": 1e-5}, lambda eps: {"norm": lambda c, _: nn.GroupNorm(c, c, eps=eps)})
    monkeypatch.setitem(METHODS, "instance", row)
    method = make_method("instance", eps=0.1)
    model = build_model("splain", method, num_classes=3, input_shape=(3, 8, 8), depth=8, width=4)
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert len(norms) == 7
    assert {norm.eps for norm in norms} == {0.1}
    assert model(torch.randn(2, 3, 8, 8)).shape == (2, 3)


def test_spatial_layers_are_two_dimensional():
    assert isinstance(make_method("dbn").norm(8, 2), DecorrelatedBatchNorm2d)
    assert isinstance(make_method("bn").norm(8, 2), nn.BatchNorm2d)


# --- Natural Neural Networks --------------------------------------------------------------------


def natural_network(dtype=torch.float32, **options):
    method = make_method("nnn", **options)
    model = build_model(
        "mlp", method, num_classes=5, input_shape=(20,), hidden=(16, 12), activation="relu"
    ).to(dtype)
    x = torch.randn(200, 20, dtype=dtype).cumsum(1) + 3
    return method, model, x


def layers(model):
    return [module for module in model.modules() if isinstance(module, WhitenedLinear)]


def test_every_linear_layer_of_the_network_is_whitened():
    _, model, _ = natural_network()
    assert [name for name, m in model.named_modules() if isinstance(m, WhitenedLinear)] == [
        "hidden.0.linear",
        "hidden.1.linear",
        "classifier",
    ]


@pytest.mark.parametrize("eps", [0.001, 1.0])
def test_reparameterisation_leaves_the_function_as_it_was(eps):
    _, model, x = natural_network()
    other = torch.randn(50, 20)
    before = model(x), model(other)
    for _ in range(3):
        reparameterise(model, x, eps)
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
    reparameterise(model, x, 0.1)
    for layer, (W, b) in zip(layers(model), canonical, strict=True):
        sample = inputs[layer].detach()
        c, U = layer.mean, layer.whitening
        torch.testing.assert_close(c, sample.mean(0))
        S = sample.T.cov(correction=0) + 0.1 * torch.eye(len(c)).double()
        torch.testing.assert_close(U @ S @ U.T, torch.eye(len(c)).double())
        torch.testing.assert_close(U @ U.T, (U @ U.T).diagonal().diag())  # L^-1/2 times a rotation
        torch.testing.assert_close(layer.linear.weight @ U, W)
        torch.testing.assert_close(layer.linear.bias - W @ c, b)


def test_whitened_input_is_white_after_reparameterisation():
    _, model, x = natural_network(torch.float64)
    reparameterise(model, x, 1e-9)
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
        before = [(m.whitening.clone(), m.linear.weight.clone()) for m in layers(model)]
        method.after_step(model, x, iteration)
        if any(
            not torch.equal(m.whitening, U)
            for m, (U, _) in zip(layers(model), before, strict=True)
        ):
            changed.append(iteration)
    assert changed == [3, 6]


def test_parameters_are_changed_in_place_so_that_an_optimiser_keeps_them():
    _, model, x = natural_network()
    identity = {name: (id(p), p.data_ptr()) for name, p in model.named_parameters()}
    reparameterise(model, x, 1.0)
    assert {name: (id(p), p.data_ptr()) for name, p in model.named_parameters()} == identity
    assert all(p.requires_grad for p in model.parameters())


def test_state_is_saved_and_loaded():
    _, model, x = natural_network()
    reparameterise(model, x, 1.0)
    _, other, _ = natural_network()
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(x), other(x))


def test_a_whitened_layer_needs_its_bias():
    with pytest.raises(ValueError, match="needs its bias"):
        WhitenedLinear(3, 2, bias=False)
