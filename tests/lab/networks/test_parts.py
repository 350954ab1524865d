"""The parts of networks: activations, units, and the initial weights."""

import pytest
import torch
from built import CIFAR
from torch import nn

from whitenorm import TranslatedReLU
from whitenorm.lab.networks.build import build_model
from whitenorm.lab.networks.methods import make_method
from whitenorm.lab.networks.parts import ACTIVATIONS, activation_layer, conv_unit, initialize

BN, DBN = make_method("bn"), make_method("dbn")


def test_a_unit_has_only_the_parts_that_it_is_given():
    bare = conv_unit(None, 3, 4, stride=2)
    assert [name for name, _ in bare.named_children()] == ["conv"]
    assert bare.conv.bias is not None
    assert bare(torch.randn(2, 3, 8, 8)).shape == (2, 4, 4, 4)
    unit = conv_unit(BN.norm, 3, 4, kernel=1, activation=activation_layer("elu"))
    assert [type(part) for part in unit] == [nn.Conv2d, nn.BatchNorm2d, nn.ELU]
    assert unit.conv.bias is None


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_keeps_the_shape(name):
    x = torch.randn(4, 3, 5, 5)
    assert activation_layer(name)(3)(x).shape == x.shape


def test_translated_relu_can_be_the_activation():
    model = build_model(
        "mlp", DBN, num_classes=2, input_shape=(4,), hidden=(5,), activation="trelu"
    )
    assert isinstance(model.hidden[0].activation, TranslatedReLU)


@pytest.mark.parametrize(
    ("name", "options"), [("mlp", {"hidden": (300, 200)}), ("vgg-a", {}), ("splain", {"depth": 8})]
)
def test_lecun_initialisation_where_the_paper_says_so(name, options):
    torch.manual_seed(0)
    model = build_model(name, make_method("plain"), **CIFAR, **options)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            fan_in = module.weight[0].numel()
            expected = pytest.approx(fan_in**-0.5, rel=6 * module.weight.numel() ** -0.5)
            assert module.weight.std(correction=0).item() == expected
            assert not module.bias.any()


def test_he_initialisation_of_residual_networks():
    torch.manual_seed(0)
    model = build_model("resnet", BN, **CIFAR)
    conv = model.blocks[8].body[0].conv
    assert conv.weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)
    assert model.classifier.weight.abs().max().item() == pytest.approx(64**-0.5, rel=0.05)
    assert not model.classifier.bias.any()


def test_unknown_scheme():
    with pytest.raises(ValueError, match="must be one of 'lecun', 'he', 'uniform', got 'ortho"):
        initialize(nn.Linear(1, 1), "orthogonal")
