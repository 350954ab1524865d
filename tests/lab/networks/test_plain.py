"""Networks without shortcuts: what they are made of, and where a method's layers are."""

import pytest
from built import CIFAR, layers, on_meta
from torch import nn

from whitenorm import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d
from whitenorm.lab.networks.methods import make_method

DBN = make_method("dbn")


def test_mlp_normalises_between_linear_and_activation_and_keeps_biases():
    method, widths = make_method("dbn", group_size=None), (128, 64, 48, 48)
    model = on_meta("mlp", method, num_classes=38, input_shape=(1024,), hidden=widths)
    for layer, width in zip(model.hidden, widths, strict=True):
        assert [type(part) for part in layer] == [nn.Linear, DecorrelatedBatchNorm1d, nn.ReLU]
        assert layer.norm.num_features == layer.norm.group_size == width
        assert layer.linear.bias is not None
    assert model.classifier.weight.shape == (38, 48)


def test_vgg_a_has_a_norm_after_each_convolution_and_bn_in_its_classifier():
    model = on_meta("vgg-a", DBN, **CIFAR)
    placed = layers(model, DecorrelatedBatchNorm2d)
    widths = [64, 128, 256, 256, 512, 512, 512, 512]
    assert list(placed) == [f"features.{i}.norm" for i in range(8)]
    assert [norm.num_features for norm in placed.values()] == widths
    assert [norm.num_groups for norm in placed.values()] == [width // 16 for width in widths]
    assert list(layers(model, nn.modules.batchnorm._BatchNorm)) == ["head.norm"]
    assert all(unit.conv.bias is None for unit in model.features)
    pools = [f"features.{i}.pool" for i in (0, 1, 3, 5, 7)]
    assert list(layers(model, nn.MaxPool2d)) == pools
    assert model.head.linear.weight.shape == (512, 512)


def test_vgg_a_after_the_nonlinearity_normalises_what_the_next_convolution_sees():
    model = on_meta("vgg-a", DBN, norm_position="after", **CIFAR)
    widths = [3, 64, 128, 256, 256, 512, 512, 512]
    for unit, width in zip(model.features, widths, strict=True):
        names = [name for name, _ in unit.named_children()]
        assert names[:3] == ["norm", "conv", "activation"]
        assert unit.norm.num_features == unit.conv.in_channels == width
        assert unit.conv.bias is not None


def test_vgg_a_without_normalisation_has_none():
    model = on_meta("vgg-a", make_method("plain"), **CIFAR)
    assert not [name for name, _ in model.named_modules() if name.endswith("norm")]
    assert all(unit.conv.bias is not None for unit in model.features)


@pytest.mark.parametrize("depth", [20, 44])
def test_splain_has_one_width_no_shortcuts_and_a_norm_after_every_convolution(depth):
    model = on_meta("splain", make_method("dbn", group_size=14), depth=depth, width=42, **CIFAR)
    placed = layers(model, DecorrelatedBatchNorm2d)
    assert len(placed) == len(model.features) == depth - 1
    assert {norm.num_groups for norm in placed.values()} == {3}
    assert {unit.conv.out_channels for unit in model.features} == {42}
    n = (depth - 2) // 6
    strided = [i for i, unit in enumerate(model.features) if unit.conv.stride == (2, 2)]
    assert strided == [1 + 2 * n, 1 + 4 * n]
