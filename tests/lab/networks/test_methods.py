"""The table of methods: what each puts into a network."""

import pytest
import torch
from torch import nn

from whitenorm import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, GroupWhitening
from whitenorm.lab.networks.build import build_model
from whitenorm.lab.networks.methods import METHODS, Row, make_method


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("shape", [(32, 64), (8, 64, 5, 5)])
def test_every_method_makes_a_layer_for_vectors_and_for_pictures(name, shape):
    method = make_method(name)
    assert method.name == name
    if method.norm is None:
        assert name in ("plain", "nnn")
        return
    x = torch.randn(shape)
    y = method.norm(64, len(shape) - 2)(x).detach()
    assert y.shape == x.shape
    assert y.mean().abs() < 1e-5
    # Shrunk, as group whitening is by default, variances are 1 in part.
    assert y.var(correction=0).item() == pytest.approx(1, abs=0.3 if name == "gw" else 1e-3)


def as_in_the_paper(**options):
    return DecorrelatedBatchNorm1d(6, **{"running": "whitening", "shrinkage": 0.0, **options})


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("bn", {"eps": 0.1}, nn.BatchNorm1d(6, eps=0.1)),
        ("bn", {"affine": False, "momentum": 0.5}, nn.BatchNorm1d(6, momentum=0.5, affine=False)),
        ("dbn", {}, as_in_the_paper()),
        ("dbn", {"group_size": None}, as_in_the_paper(group_size=6)),
        ("dbn", {"affine": False}, as_in_the_paper(affine=False)),
        ("dbn", {"running": "covariance"}, as_in_the_paper(running="covariance")),
        ("dbn", {"shrinkage": "auto"}, as_in_the_paper(shrinkage="auto")),
        ("dbn-pca", {"group_size": 3}, as_in_the_paper(group_size=3, whitening="pca")),
        ("dbn", {"whitening": "cholesky"}, as_in_the_paper(whitening="cholesky")),
        (
            "dbn",
            {"whitening": "newton", "iterations": 7},
            as_in_the_paper(whitening="newton", iterations=7),
        ),
    ],
)
def test_options_reach_the_layer(name, options, expected):
    assert repr(make_method(name, **options).norm(6, 0)) == repr(expected)


@pytest.mark.parametrize(("dims", "shape"), [(0, (9, 6)), (2, (9, 6, 4, 5))])
def test_layer_norm_normalises_each_sample_over_all_of_it(dims, shape):
    x = torch.randn(shape) * 3 + 2
    layer = make_method("ln", eps=1e-3).norm(6, dims)
    expected = nn.functional.layer_norm(x, shape[1:], eps=1e-3)
    torch.testing.assert_close(layer(x), expected)


def test_group_methods_are_the_layers_with_their_own_defaults():
    gn, gw = (make_method(name).norm(16, 2) for name in ("gn", "gw"))
    assert repr(gn) == repr(nn.GroupNorm(8, 16))
    assert repr(gw) == repr(GroupWhitening(8, 16))
    options = {"num_groups": 4, "eps": 0.1, "affine": False}
    assert repr(make_method("gn", **options).norm(16, 0)) == repr(nn.GroupNorm(4, 16, 0.1, False))
    whitening = make_method("gw", **options, shrinkage=0.0).norm(16, 0)
    assert repr(whitening) == repr(GroupWhitening(4, 16, 0.1, False, shrinkage=0.0))


@pytest.mark.parametrize("name", ["gn", "gw"])
def test_group_methods_take_no_statistics_of_a_batch(name):
    layer, x = make_method(name).norm(16, 2), torch.randn(5, 16, 4, 4)
    torch.testing.assert_close(layer(x)[:1], layer(x[:1]))
    torch.testing.assert_close(layer.eval()(x), layer.train()(x))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("group", {}, "unknown method 'group'; there are plain, bn, ln, nnn, dbn"),
        ("bn", {"group": 2}, "'bn' has no option 'group'; it has eps, momentum"),
        ("plain", {"eps": 1}, "'plain' has no option 'eps'; it has none"),
        ("dbn-pca", {"whitening": "zca"}, "'dbn-pca' has no option 'whitening'"),
        ("nnn", {"interval": 0}, "interval must be a positive number of updates, got 0"),
        ("nnn", {"eps": 0}, "eps must be positive, got 0"),
        ("dbn", {"group_size": 0}, "group_size must be a positive integer, got 0"),
    ],
)
def test_errors_name_what_was_given_and_what_there_is(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_method(name, **options).norm(4, 0)


def test_adding_a_method_takes_a_row(monkeypatch):
    row = Row({"eps": 1e-5}, lambda eps: {"norm": lambda c, _: nn.GroupNorm(c, c, eps=eps)})
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
