"""The table of networks: published parameter counts, shapes, gradients, weights, errors."""

import pytest
import torch
from built import CIFAR, IMAGENET, layers, on_meta
from torch import nn

from whitenorm.lab.networks.build import MODELS, build_model
from whitenorm.lab.networks.methods import make_method

BN, DBN = make_method("bn"), make_method("dbn")


def parameter_count(*args, **options):
    return sum(parameter.numel() for parameter in on_meta(*args, **options).parameters())


@pytest.mark.parametrize(
    ("name", "options", "count", "published"),
    [
        ("resnet", {"depth": 20}, 269_722, "0.27M"),
        ("resnet", {"depth": 32}, 464_154, "0.46M"),
        ("resnet", {"depth": 44}, 658_586, "0.66M"),
        ("resnet", {"depth": 56}, 853_018, "0.85M"),
        ("wrn", {"depth": 28, "widen": 10}, 36_479_194, "36.5M"),
        ("wrn", {"depth": 40, "widen": 10}, 55_841_754, "55.8M"),
        ("imagenet-resnet", {"depth": 18}, 11_689_512, "11.7M"),
        ("imagenet-resnet", {"depth": 34}, 21_797_672, "21.8M"),
        ("imagenet-resnet", {"depth": 50}, 25_557_032, "25.6M"),
        ("imagenet-resnet", {"depth": 101}, 44_549_160, "44.5M"),
    ],
)
def test_parameter_counts_are_the_published_ones(name, options, count, published):
    task = IMAGENET if name.startswith("imagenet") else CIFAR
    assert parameter_count(name, BN, **task, **options) == count
    digits = len(published.split(".")[1]) - 1
    assert f"{count / 1e6:.{digits}f}M" == published


def test_a_placed_norm_changes_the_count_by_its_own_parameters_alone():
    res20 = parameter_count("resnet", BN, **CIFAR)
    unscaled = make_method("dbn", affine=False)
    assert parameter_count("resnet", unscaled, placement="first", **CIFAR) == res20 - 32
    assert parameter_count("resnet", DBN, placement="first", **CIFAR) == res20
    wrn = parameter_count("wrn", BN, **CIFAR)
    assert parameter_count("wrn", DBN, placement="stem", **CIFAR) == wrn + 32
    res50 = parameter_count("imagenet-resnet", BN, **IMAGENET)
    extra = 64 * 64 * 9 + 2 * 64
    for method in (BN, DBN):
        twin = parameter_count("imagenet-resnet", method, stem="extra-conv", **IMAGENET)
        assert twin == res50 + extra


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("mlp", (20,), {"hidden": (16, 12)}),
        ("mlp", (1, 8, 8), {"hidden": [16], "activation": "trelu"}),
        ("vgg-a", (3, 32, 32), {"width": 4}),
        ("vgg-a", (3, 32, 32), {"width": 4, "norm_position": "after"}),
        ("vgg-a", (1, 64, 32), {"width": 4, "activation": "elu"}),
        ("splain", (3, 16, 16), {"depth": 8, "width": 6}),
        ("resnet", (3, 16, 16), {"depth": 8}),
        ("resnet", (3, 16, 16), {"depth": 8, "placement": "first"}),
        ("wrn", (3, 16, 16), {"depth": 10, "widen": 2, "dropout": 0.3}),
        ("wrn", (3, 16, 16), {"depth": 10, "widen": 1, "placement": "stem"}),
        ("imagenet-resnet", (3, 32, 32), {"depth": 18}),
        ("imagenet-resnet", (3, 32, 32), {"depth": 50, "stem": "extra-conv"}),
    ],
)
@pytest.mark.parametrize("method", ["plain", "bn", "ln", "dbn"])
def test_every_network_gives_logits_and_a_gradient_to_every_parameter(
    name, shape, options, method
):
    torch.manual_seed(0)
    model = build_model(name, make_method(method), num_classes=7, input_shape=shape, **options)
    assert isinstance(model.classifier, nn.Linear)
    y = model(torch.randn(16, *shape))
    assert y.shape == (16, 7)
    y.square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
    assert model.eval()(torch.randn(3, *shape)).isfinite().all()


def test_depth_counts_the_layers_with_weights():
    weighted = nn.Conv2d | nn.Linear
    for name, depth in (("resnet", 20), ("splain", 32)):
        assert len(layers(on_meta(name, BN, **CIFAR, depth=depth), weighted)) == depth
    wide = on_meta("wrn", BN, **CIFAR, depth=28, widen=10)
    assert len(layers(wide, nn.Conv2d)) == 28  # 3 of them shortcuts
    for depth in (18, 34, 50, 101):
        names = layers(on_meta("imagenet-resnet", BN, **IMAGENET, depth=depth), weighted)
        assert len([name for name in names if "shortcut" not in name]) == depth


def test_a_generator_decides_all_weights():
    def weights(seed, other):
        torch.manual_seed(other)
        generator = torch.Generator().manual_seed(seed)
        model = build_model("vgg-a", DBN, **CIFAR, width=4, generator=generator)
        return nn.utils.parameters_to_vector(model.parameters())

    assert torch.equal(weights(0, other=0), weights(0, other=1))
    assert not torch.equal(weights(0, other=0), weights(1, other=0))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lenet", {}, "unknown model 'lenet'; there are mlp, vgg-a, splain, resnet, wrn"),
        ("mlp", {"depth": 3}, "model 'mlp' has no option 'depth'; it has hidden, activation"),
        ("mlp", {"activation": "swish"}, "activation must be one of 'relu', .*, got 'swish'"),
        ("vgg-a", {"norm_position": "both"}, "norm_position must be one of 'before', 'after'"),
        ("vgg-a", {"input_shape": (3, 16, 16)}, "32x32 at least, got shape .3, 16, 16."),
        ("resnet", {"depth": 21}, r"depth must be 6n\+2 \(8, 20, 32, 44, ...\), got 21"),
        ("resnet", {"placement": "L1"}, "placement must be one of 'all', 'first', got 'L1'"),
        ("wrn", {"depth": 20}, r"depth must be 6n\+4 \(10, 22, 34, 46, ...\), got 20"),
        ("imagenet-resnet", {"depth": 20}, "depth must be one of 18, 34, 50, 101, got 20"),
        ("imagenet-resnet", {"stem": "conv"}, "stem must be one of 'plain', 'extra-conv'"),
        ("resnet", {"input_shape": (64,)}, r"needs inputs \(C, H, W\), got shape \(64,\)"),
    ],
)
def test_errors_name_what_was_given_and_what_there_is(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_model(name, BN, **{**CIFAR, **options})


@pytest.mark.parametrize("name", [name for name in MODELS if name != "mlp"])
def test_natural_neural_networks_are_refused_where_they_would_do_nothing(name):
    with pytest.raises(ValueError, match="'nnn' changes linear layers alone"):
        build_model(name, make_method("nnn"), **CIFAR)
