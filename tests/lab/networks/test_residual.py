"""Residual networks: what they are made of, and where a method's layers are."""

import torch
from built import CIFAR, IMAGENET, layers, on_meta
from torch import nn

from whitenorm import DecorrelatedBatchNorm2d
from whitenorm.lab.networks.build import build_model
from whitenorm.lab.networks.methods import make_method
from whitenorm.lab.networks.residual import ZeroPaddedShortcut

BN, DBN = make_method("bn"), make_method("dbn")


def test_resnet_first_places_the_method_in_the_stem_alone():
    method = make_method("dbn", group_size=8, affine=False)
    model = on_meta("resnet", method, placement="first", **CIFAR)
    placed = layers(model, DecorrelatedBatchNorm2d)
    assert list(placed) == ["stem.norm"]
    assert placed["stem.norm"].num_features == 16
    assert placed["stem.norm"].num_groups == 2
    assert not placed["stem.norm"].affine
    assert len(layers(model, nn.BatchNorm2d)) == 18
    assert len(layers(on_meta("resnet", method, **CIFAR), DecorrelatedBatchNorm2d)) == 19


def test_resnet_shortcut_a_subsamples_and_pads_with_zeros():
    x = torch.randn(2, 3, 5, 5)
    y = ZeroPaddedShortcut(3, 7, stride=2)(x)
    assert y.shape == (2, 7, 3, 3)
    assert torch.equal(y[:, :3], x[:, :, ::2, ::2])
    assert not y[:, 3:].any()
    model = on_meta("resnet", BN, **CIFAR)
    assert len(layers(model, ZeroPaddedShortcut)) == 2
    assert not [name for name, _ in model.named_parameters() if "shortcut" in name]


def test_wrn_stem_adds_the_method_after_the_first_convolution():
    model = on_meta("wrn", DBN, placement="stem", dropout=0.3, **CIFAR)
    placed = layers(model, DecorrelatedBatchNorm2d)
    assert list(placed) == ["stem.norm"]
    assert placed["stem.norm"].num_groups == 1
    assert [name for name, _ in model.stem.named_children()] == ["conv", "norm"]
    baseline = on_meta("wrn", BN, dropout=0.3, **CIFAR)
    assert len(layers(model, nn.BatchNorm2d)) == len(layers(baseline, nn.BatchNorm2d)) == 25
    assert [name for name, _ in baseline.stem.named_children()] == ["conv"]
    assert {m.p for m in layers(baseline, nn.Dropout).values()} == {0.3}


def test_wide_block_shares_its_preactivation_where_the_width_changes():
    torch.manual_seed(0)
    model = build_model("wrn", BN, num_classes=3, input_shape=(3, 8, 8), depth=10, widen=2).eval()
    first, x = model.blocks[0], torch.randn(2, 16, 8, 8)
    active = torch.relu(first.norm1(x))
    inner = first.conv2(torch.relu(first.norm2(first.conv1(active))))
    torch.testing.assert_close(first(x), inner + first.shortcut(active))


def test_imagenet_resnet_places_the_method_behind_the_max_pool():
    method = make_method("dbn", group_size=32)
    model = on_meta("imagenet-resnet", method, depth=18, stem="extra-conv", **IMAGENET)
    placed = layers(model, DecorrelatedBatchNorm2d)
    assert list(placed) == ["stem.extra.norm"]
    assert placed["stem.extra.norm"].num_groups == 2
    stem = ["conv", "norm", "activation", "pool", "extra"]
    assert [name for name, _ in model.stem.named_children()] == stem
    extra = [nn.Conv2d, DecorrelatedBatchNorm2d, nn.ReLU]
    assert [type(part) for part in model.stem.extra] == extra
    plain = on_meta("imagenet-resnet", method, depth=18, **IMAGENET)
    assert list(layers(plain, DecorrelatedBatchNorm2d)) == ["stem.norm"]


def test_imagenet_bottleneck_strides_in_its_3x3_convolution():
    model = on_meta("imagenet-resnet", BN, depth=50, **IMAGENET)
    convolutions = layers(model.blocks, nn.Conv2d)
    strided = {name: conv for name, conv in convolutions.items() if conv.stride == (2, 2)}
    assert {m.kernel_size[0] for name, m in strided.items() if "body" in name} == {3}
    assert len(strided) == 6  # with their shortcuts
