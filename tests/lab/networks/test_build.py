"""The networks: published parameter counts, shapes, placement of the method's layers, start."""

import pytest
import torch
from torch import nn

from whitenorm import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, TranslatedReLU
from whitenorm.lab.networks.build import MODELS, build_model, parameter_count
from whitenorm.lab.networks.methods import make_method
from whitenorm.lab.networks.parts import initialise
from whitenorm.lab.networks.residual import ZeroPaddedShortcut

CIFAR = {"num_classes": 10, "input_shape": (3, 32, 32)}
IMAGENET = {"num_classes": 1000, "input_shape": (3, 224, 224)}
BN, DBN = make_method("bn"), make_method("dbn")


def on_meta(*args, **options):
    """Built without memory: only shapes count."""
    with torch.device("meta"):
        return build_model(*args, **options)


def norms(model, kind):
    return {name: m for name, m in model.named_modules() if isinstance(m, kind)}


# --- parameter counts ---------------------------------------------------------------------------


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
    model = on_meta(name, BN, **task, **options)
    assert parameter_count(model) == count
    digits = len(published.split(".")[1]) - 1
    assert f"{count / 1e6:.{digits}f}M" == published


def test_a_placed_norm_changes_the_count_by_its_own_parameters_alone():
    res20 = parameter_count(on_meta("resnet", BN, **CIFAR))
    unscaled = make_method("dbn", affine=False)
    assert parameter_count(on_meta("resnet", unscaled, placement="first", **CIFAR)) == res20 - 32
    assert parameter_count(on_meta("resnet", DBN, placement="first", **CIFAR)) == res20
    wrn = parameter_count(on_meta("wrn", BN, **CIFAR))
    assert parameter_count(on_meta("wrn", DBN, placement="stem", **CIFAR)) == wrn + 32
    res50 = parameter_count(on_meta("imagenet-resnet", BN, **IMAGENET))
    extra = 64 * 64 * 9 + 2 * 64
    twin = on_meta("imagenet-resnet", BN, stem="extra-conv", **IMAGENET)
    assert parameter_count(twin) == res50 + extra
    assert parameter_count(
        on_meta("imagenet-resnet", DBN, stem="extra-conv", **IMAGENET)
    ) == parameter_count(twin)


# --- shapes and training ------------------------------------------------------------------------


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
    for name, options in (("resnet", {"depth": 20}), ("splain", {"depth": 32})):
        model = on_meta(name, BN, **CIFAR, **options)
        layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        assert len(layers) == options["depth"]
    model = on_meta("wrn", BN, **CIFAR, depth=28, widen=10)
    assert sum(isinstance(m, nn.Conv2d) for m in model.modules()) == 28  # 3 of them shortcuts
    for depth in (18, 34, 50, 101):
        model = on_meta("imagenet-resnet", BN, **IMAGENET, depth=depth)
        main = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        assert len([n for n in main if "shortcut" not in n]) == depth


# --- where the method's layers are --------------------------------------------------------------


def test_mlp_normalises_between_linear_and_activation_and_keeps_biases():
    model = on_meta(
        "mlp", make_method("dbn", group_size=None), num_classes=38, input_shape=(1024,),
        hidden=(128, 64, 48, 48),
    )  # fmt: skip
    for layer, width in zip(model.hidden, (128, 64, 48, 48), strict=True):
        assert [type(part) for part in layer] == [nn.Linear, DecorrelatedBatchNorm1d, nn.ReLU]
        assert layer.norm.num_features == layer.norm.group_size == width
        assert layer.linear.bias is not None
    assert model.classifier.weight.shape == (38, 48)


def test_vgg_a_has_a_norm_after_each_convolution_and_bn_in_its_classifier():
    model = on_meta("vgg-a", DBN, **CIFAR)
    placed = norms(model, DecorrelatedBatchNorm2d)
    widths = [64, 128, 256, 256, 512, 512, 512, 512]
    assert list(placed) == [f"features.{i}.norm" for i in range(8)]
    assert [norm.num_features for norm in placed.values()] == widths
    assert [norm.num_groups for norm in placed.values()] == [width // 16 for width in widths]
    assert list(norms(model, nn.modules.batchnorm._BatchNorm)) == ["head.norm"]
    assert all(unit.conv.bias is None for unit in model.features)
    assert [name for name, m in model.named_modules() if isinstance(m, nn.MaxPool2d)] == [
        f"features.{i}.pool" for i in (0, 1, 3, 5, 7)
    ]
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
    placed = norms(model, DecorrelatedBatchNorm2d)
    assert len(placed) == len(model.features) == depth - 1
    assert {norm.num_groups for norm in placed.values()} == {3}
    assert {unit.conv.out_channels for unit in model.features} == {42}
    n = (depth - 2) // 6
    strided = [i for i, unit in enumerate(model.features) if unit.conv.stride == (2, 2)]
    assert strided == [1 + 2 * n, 1 + 4 * n]


def test_resnet_first_places_the_method_in_the_stem_alone():
    method = make_method("dbn", group_size=8, affine=False)
    model = on_meta("resnet", method, placement="first", **CIFAR)
    placed = norms(model, DecorrelatedBatchNorm2d)
    assert list(placed) == ["stem.norm"]
    assert placed["stem.norm"].num_features == 16
    assert placed["stem.norm"].num_groups == 2
    assert not placed["stem.norm"].affine
    assert len(norms(model, nn.BatchNorm2d)) == 18
    assert len(norms(on_meta("resnet", method, **CIFAR), DecorrelatedBatchNorm2d)) == 19


def test_resnet_shortcut_a_subsamples_and_pads_with_zeros():
    x = torch.randn(2, 3, 5, 5)
    y = ZeroPaddedShortcut(3, 7, stride=2)(x)
    assert y.shape == (2, 7, 3, 3)
    assert torch.equal(y[:, :3], x[:, :, ::2, ::2])
    assert not y[:, 3:].any()
    model = on_meta("resnet", BN, **CIFAR)
    assert len(norms(model, ZeroPaddedShortcut)) == 2
    assert not [name for name, _ in model.named_parameters() if "shortcut" in name]


def test_wrn_stem_adds_the_method_after_the_first_convolution():
    model = on_meta("wrn", DBN, placement="stem", dropout=0.3, **CIFAR)
    placed = norms(model, DecorrelatedBatchNorm2d)
    assert list(placed) == ["stem.norm"]
    assert placed["stem.norm"].num_groups == 1
    assert [name for name, _ in model.stem.named_children()] == ["conv", "norm"]
    baseline = on_meta("wrn", BN, dropout=0.3, **CIFAR)
    assert len(norms(model, nn.BatchNorm2d)) == len(norms(baseline, nn.BatchNorm2d)) == 25
    assert [name for name, _ in baseline.stem.named_children()] == ["conv"]
    assert {m.p for m in baseline.modules() if isinstance(m, nn.Dropout)} == {0.3}


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
    placed = norms(model, DecorrelatedBatchNorm2d)
    assert list(placed) == ["stem.extra.norm"]
    assert placed["stem.extra.norm"].num_groups == 2
    stem = ["conv", "norm", "activation", "pool", "extra"]
    assert [name for name, _ in model.stem.named_children()] == stem
    assert [type(part) for part in model.stem.extra] == [
        nn.Conv2d,
        DecorrelatedBatchNorm2d,
        nn.ReLU,
    ]
    plain = on_meta("imagenet-resnet", method, depth=18, **IMAGENET)
    assert list(norms(plain, DecorrelatedBatchNorm2d)) == ["stem.norm"]


def test_imagenet_bottleneck_strides_in_its_3x3_convolution():
    model = on_meta("imagenet-resnet", BN, depth=50, **IMAGENET)
    strided = [
        (name, m.kernel_size[0])
        for name, m in model.blocks.named_modules()
        if isinstance(m, nn.Conv2d) and m.stride == (2, 2)
    ]
    assert {kernel for name, kernel in strided if "body" in name} == {3}
    assert len(strided) == 6  # with their shortcuts


def test_translated_relu_can_be_the_activation():
    model = on_meta("mlp", DBN, num_classes=2, input_shape=(4,), hidden=(5,), activation="trelu")
    assert isinstance(model.hidden[0].activation, TranslatedReLU)


# --- initialisation -----------------------------------------------------------------------------


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


def test_a_generator_decides_all_weights():
    def weights(seed, other):
        torch.manual_seed(other)
        generator = torch.Generator().manual_seed(seed)
        model = build_model("vgg-a", DBN, **CIFAR, width=4, generator=generator)
        return nn.utils.parameters_to_vector(model.parameters())

    assert torch.equal(weights(0, other=0), weights(0, other=1))
    assert not torch.equal(weights(0, other=0), weights(1, other=0))


def test_unknown_scheme():
    with pytest.raises(ValueError, match="scheme must be 'lecun' or 'he', got 'orthogonal'"):
        initialise(nn.Linear(1, 1), "orthogonal")


# --- errors -------------------------------------------------------------------------------------


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
