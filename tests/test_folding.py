import copy
import io
import logging
import warnings
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from architectures import ARCHITECTURES, build, correlate, outputs, sample
from cases import Listed
from torch import fx, nn
from torch.nn.utils import parametrizations

from whitenorm import (
    DecorrelatedBatchNorm1d,
    DecorrelatedBatchNorm2d,
    DecorrelatedBatchNorm3d,
    folding,
)
from whitenorm.convert import convert_batchnorm
from whitenorm.folding import ChannelAffine, FoldReport, fold, fold_weights
from whitenorm.modules import DecorrelatedBatchNorm


def relative(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def trained(model, seed=0):
    """The model in inference mode, in float64, with statistics as of correlated channels."""
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (nn.modules.batchnorm._BatchNorm, DecorrelatedBatchNorm)):
            for tensor in (module.running_mean, module.weight, module.bias):
                if tensor is not None:
                    nn.init.normal_(tensor)
            if getattr(module, "running_var", None) is not None:
                nn.init.uniform_(module.running_var, 0.1, 3)
    return correlate(model.double().eval(), seed)


def check(model, x, folded, *, example=False):
    """Folds, and asserts that the outputs are the same and how many layers were merged."""
    result = fold(model, x if example else None)
    assert relative(result(x), model(x)) < 1e-9
    assert len(result.fold_report.folded) == folded, result.fold_report
    return result


def reasons(model):
    return list(model.fold_report.kept.values())


# --- networks of others -------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["traced", "example"])
@pytest.mark.parametrize("kind", ["batchnorm", "converted", "whitened", "whitened, covariance"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_folded_network_computes_the_same(name, kind, way):
    architecture, model, x = ARCHITECTURES[name], build(name), sample(name, 2)
    expected = architecture.norms
    if kind != "batchnorm":
        convert_batchnorm(model, running="covariance" if "cov" in kind else "whitening")
    if kind.startswith("whitened"):
        correlate(model)
        expected -= architecture.depthwise
    if way == "traced" and not architecture.traces:
        expected = 0
    with torch.no_grad():
        folded = fold(model, x if way == "example" else None)
        assert relative(outputs(folded, x), outputs(model, x)) < 1e-4
        report = folded.fold_report
        assert (len(report.folded), len(report.kept)) == (
            expected,
            architecture.norms - expected,
        ), report
        affine = sum(isinstance(m, ChannelAffine) for m in folded.modules())
        assert affine == (0 if kind == "batchnorm" else len(report.kept))
        assert not any(isinstance(m, DecorrelatedBatchNorm) for m in folded.modules())

        model, x = model.double().eval(), x.double()
        folded = fold(model, x if way == "example" else None)
        assert relative(outputs(folded, x), outputs(model, x)) < 1e-9


def test_a_network_that_does_not_trace_says_so_and_how_to_go_on():
    report = fold(build("mobilenet-v2")).fold_report
    assert len(report.kept) == ARCHITECTURES["mobilenet-v2"].norms
    for name, why in report.kept.items():
        assert repr(name.rpartition(".")[0]) in why
        assert "doesn't trace (TypeError: int() argument" in why
        assert why.endswith("give example_inputs")


# --- the algebra --------------------------------------------------------------------------------

LAYERS = {
    "linear": (nn.Linear(5, 12), DecorrelatedBatchNorm1d, (7, 5)),
    "linear, no bias": (nn.Linear(5, 12, bias=False), DecorrelatedBatchNorm1d, (7, 5)),
    "conv 1d": (nn.Conv1d(5, 12, 3, padding=1), DecorrelatedBatchNorm1d, (7, 5, 6)),
    "conv 2d": (nn.Conv2d(5, 12, 3, stride=2), DecorrelatedBatchNorm2d, (3, 5, 7, 6)),
    "conv 2d, no bias": (nn.Conv2d(5, 12, 3, bias=False), DecorrelatedBatchNorm2d, (3, 5, 7, 6)),
    "conv 2d, circular": (
        nn.Conv2d(5, 12, 3, padding=1, padding_mode="circular"),
        DecorrelatedBatchNorm2d,
        (3, 5, 7, 6),
    ),
    "conv 2d, groups": (nn.Conv2d(6, 12, 3, groups=3), DecorrelatedBatchNorm2d, (3, 6, 7, 6)),
    "conv 3d": (nn.Conv3d(5, 12, 2, dilation=2), DecorrelatedBatchNorm3d, (2, 5, 4, 5, 4)),
    "transposed 1d": (nn.ConvTranspose1d(5, 12, 3), DecorrelatedBatchNorm1d, (7, 5, 6)),
    "transposed 2d": (
        nn.ConvTranspose2d(5, 12, 3, stride=2, padding=1, output_padding=1),
        DecorrelatedBatchNorm2d,
        (3, 5, 4, 3),
    ),
    "transposed 2d, groups": (
        nn.ConvTranspose2d(6, 12, 3, groups=3, bias=False),
        DecorrelatedBatchNorm2d,
        (3, 6, 4, 3),
    ),
    "transposed 3d": (nn.ConvTranspose3d(5, 12, 2), DecorrelatedBatchNorm3d, (2, 5, 3, 2, 3)),
}


@pytest.mark.parametrize("affine", [True, "matrix"], ids=["scale", "matrix"])
@pytest.mark.parametrize("running", ["whitening", "covariance"])
@pytest.mark.parametrize("group_size", [1, 2, 4])
@pytest.mark.parametrize(("layer", "norm", "shape"), LAYERS.values(), ids=LAYERS)
def test_every_kind_of_layer_takes_the_norm_after_it(
    layer, norm, shape, group_size, running, affine
):
    norm = norm(12, group_size=group_size, running=running, affine=affine)
    model = trained(nn.Sequential(copy.deepcopy(layer), norm, nn.ReLU()))
    folded = check(model, torch.randn(shape, dtype=torch.float64), folded=1)
    assert type(folded[0]) is type(layer)
    assert isinstance(folded[1], nn.Identity)
    assert folded.fold_report == FoldReport({"1": "0"}, {})


@pytest.mark.parametrize("affine", [True, "matrix"], ids=["scale", "matrix"])
@pytest.mark.parametrize(("layer", "norm", "shape"), LAYERS.values(), ids=LAYERS)
def test_the_remainder_of_the_channels_is_folded_too(layer, norm, shape, affine):
    if getattr(layer, "groups", 1) > 1:
        return
    model = trained(nn.Sequential(copy.deepcopy(layer), norm(12, group_size=5, affine=affine)))
    check(model, torch.randn(shape, dtype=torch.float64), folded=1)


def test_a_norm_without_scale_and_shift_is_folded():
    model = trained(nn.Sequential(nn.Linear(3, 6), DecorrelatedBatchNorm1d(6, affine=False)))
    check(model, torch.randn(4, 3, dtype=torch.float64), folded=1)


def test_weights_of_groups_that_whitening_mixes_cannot_be_folded():
    weight, matrix = torch.randn(12, 2, 3, 3), torch.ones(3, 4, 4)
    fold_weights(weight, None, torch.zeros(12), matrix, groups=3)
    with pytest.raises(ValueError, match=r"mixes channels of different groups.*12 channels in 6"):
        fold_weights(weight, None, torch.zeros(12), matrix, groups=6)
    fold_weights(weight, None, torch.zeros(12), torch.eye(4).expand(3, 4, 4), groups=6)


def test_weights_that_do_not_fit_the_statistics_are_an_error():
    with pytest.raises(ValueError, match=r"matrix must have shape \(ceil\(12 / k\), k, k\)"):
        fold_weights(torch.randn(12, 2), None, torch.zeros(12), torch.ones(2, 4, 4))
    with pytest.raises(ValueError, match=r"mean must have shape \(12,\), got \(3,\)"):
        fold_weights(torch.randn(12, 2), None, torch.zeros(3), torch.ones(3, 4, 4))
    statistics = torch.zeros(12), torch.ones(3, 4, 4)
    with pytest.raises(ValueError, match=r"gamma must have shape \(12,\) or \(3, 4, 4\), got"):
        fold_weights(torch.randn(12, 2), None, *statistics, torch.ones(2, 6, 6))


def test_what_the_last_group_does_not_use_has_no_effect():
    weight, mean = torch.randn(5, 2), torch.randn(5)
    matrix = torch.randn(2, 4, 4)
    other, gamma = matrix.clone(), torch.randn(2, 4, 4)
    other_gamma = gamma.clone()
    for t in (other, other_gamma):
        t[1, 1:] = t[1, :, 1:] = 99
    for first, second in ((None, None), (gamma, other_gamma)):
        for a, b in zip(
            fold_weights(weight, None, mean, matrix, first),
            fold_weights(weight, None, mean, other, second),
            strict=True,
        ):
            assert torch.equal(a, b)


def test_folding_is_done_in_float64_and_returned_in_the_dtype_of_the_weight():
    torch.manual_seed(0)
    weight, mean, matrix = torch.randn(8, 9), torch.randn(8), torch.randn(1, 8, 8)
    exact, _ = fold_weights(weight.double(), None, mean.double(), matrix.double())
    assert torch.equal(fold_weights(weight, None, mean, matrix)[0], exact.float())
    folded, bias = fold_weights(weight.bfloat16(), None, mean, matrix)
    assert folded.dtype == bias.dtype == torch.bfloat16


# --- what can't be merged stays, and the report says why ----------------------------------------


class Model(nn.Module):
    """conv -> norm, with room to spoil it."""

    def __init__(self, conv=None, norm=None):
        super().__init__()
        self.conv = conv or nn.Conv2d(4, 8, 3, padding=1)
        self.norm = norm or DecorrelatedBatchNorm2d(8, group_size=4)
        self.other = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        return self.other(F.relu(self.norm(self.conv(x))))


class UsedElsewhere(Model):
    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y


class Returned(Model):
    def forward(self, x):
        y = self.conv(x)
        return torch.stack([self.norm(y), y])


class CalledTwice(Model):
    def forward(self, x):
        return self.norm(self.conv(x)) + self.conv(x * 2)


class NormTwice(Model):
    def forward(self, x):
        return self.norm(self.conv(x)) + self.norm(self.other(self.conv(-x)))


class TwoNorms(Model):
    def __init__(self):
        super().__init__()
        self.second = DecorrelatedBatchNorm2d(8, group_size=4)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + self.second(y)


class AfterRelu(Model):
    def forward(self, x):
        return self.norm(F.relu(self.conv(x)))


class Turned(Model):
    def forward(self, x):
        return self.norm(self.conv(x).mT)


class WeightRead(Model):
    def forward(self, x):
        return self.norm(self.conv(x)) * self.conv.weight.sum()


class Optional(Model):
    """Only a call without the optional argument has something between."""

    def forward(self, x, mask=None):
        y = self.conv(x)
        if mask is None:
            y = F.relu(y)
        return self.norm(y)


class Standardized(nn.Conv2d):
    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias, padding=1)


class Scaled(nn.Conv2d):
    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight, bias) ** 3


class Activated(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x).relu()


def tied():
    model = Model(nn.Conv2d(8, 8, 1))
    model.other.weight = model.conv.weight
    return nn.Sequential(nn.Conv2d(4, 8, 1), model)


def registered_twice():
    model = Model()
    model.alias = model.conv
    return model


def norm_registered_twice():
    model = Model()
    model.alias = model.norm
    return model


def hooked(which, kind="forward"):
    model = Model()
    module = getattr(model, which)
    if kind == "forward":
        module.register_forward_hook(lambda module, args, output: output * 2)
    else:
        module.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    return model


def hook_between():
    block = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1))
    block.register_forward_hook(lambda module, args, output: None)
    return nn.Sequential(block, DecorrelatedBatchNorm2d(8))


def coloured_depthwise():
    """Whitening that mixes nothing, as of a fresh layer, and a matrix that does."""
    model = depthwise()
    model.norm = DecorrelatedBatchNorm2d(8, group_size=4, affine="matrix")
    nn.init.normal_(model.norm.weight)
    return model


def depthwise():
    return Model(nn.Conv2d(4, 8, 3, padding=1, groups=4))


CASES = {
    "output used elsewhere": (UsedElsewhere, "'conv', has an output that is used elsewhere"),
    "output returned": (Returned, "'conv', has an output that is used elsewhere"),
    "layer called twice": (CalledTwice, "'conv', is used more than once"),
    "norm called twice": (NormTwice, "it is used more than once"),
    "two norms": (TwoNorms, "'conv', has an output that is used elsewhere"),
    "something between": (AfterRelu, "not the output of a Linear or a convolution"),
    "a view between": (Turned, "not the output of a Linear or a convolution"),
    "between in a branch": (Optional, "not the output of a Linear or a convolution"),
    "weight read": (WeightRead, "'conv', has parameters that are read from outside"),
    "weight tied": (tied, "shares its weight with another module"),
    "layer registered twice": (registered_twice, "'conv', is used more than once"),
    "norm registered twice": (norm_registered_twice, "it is used more than once"),
    "hook on the layer": (lambda: hooked("conv"), "'conv', can't be changed: it has hooks"),
    "hook on the norm": (lambda: hooked("norm", "pre"), "it has hooks"),
    "hook between": (hook_between, "hooks on '0' see what is between it and '0.0'"),
    "parametrization": (
        lambda: Model(parametrizations.weight_norm(nn.Conv2d(4, 8, 3, padding=1))),
        "'conv', can't be changed: it has parametrizations",
    ),
    "own forward": (
        lambda: Model(Standardized(4, 8, 3)),
        "'conv', is a Standardized, which has a forward of its own",
    ),
    "own _conv_forward": (lambda: Model(Scaled(4, 8, 3)), "'conv', is a Scaled, which has a"),
    "norm with own forward": (lambda: Model(norm=Activated(8)), "Activated has a forward"),
    "no running statistics": (
        lambda: Model(norm=DecorrelatedBatchNorm2d(8, group_size=4, track_running_stats=False)),
        "no running statistics",
    ),
    "groups mixed": (depthwise, "'conv', is a convolution in 4 groups, and whitening 4 channels"),
    "groups mixed by a matrix": (coloured_depthwise, "'conv', is a convolution in 4 groups"),
    "a matrix and something between": (
        lambda: nn.Sequential(nn.ReLU(), DecorrelatedBatchNorm2d(4, 1e-5, 0.1, "matrix")),
        "not the output of a Linear or a convolution",
    ),
}


@pytest.mark.parametrize("example", [False, True], ids=["traced", "example"])
@pytest.mark.parametrize(("build", "why"), CASES.values(), ids=CASES)
def test_what_cannot_be_merged_stays_with_a_reason(build, why, example):
    model = trained(build())
    folded = check(model, torch.randn(9, 4, 5, 5, dtype=torch.float64), folded=0, example=example)
    assert all(why in reason for reason in reasons(folded)), folded.fold_report
    assert len(reasons(folded)) == (2 if build is TwoNorms else 1)


class Masked(Model):
    """Only a call with the optional argument has something between."""

    def forward(self, x, mask=None):
        y = self.conv(x)
        return self.norm(y if mask is None else y * mask)


def test_what_an_optional_argument_would_put_between_is_seen():
    model, x = trained(Masked()), torch.randn(9, 4, 5, 5, dtype=torch.float64)
    folded = check(model, x, folded=0)
    mask = torch.rand(5, 5, dtype=torch.float64)
    assert relative(folded(x, mask), model(x, mask)) < 1e-9


@dataclass
class Result:
    features: torch.Tensor


class Shows(Model):
    """Returns the features beside the output."""

    def __init__(self, wrap):
        super().__init__()
        self.wrap = wrap

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y), self.wrap(y)


WRAPS = {"tensor": lambda y: y, "list": lambda y: [y], "dict": lambda y: {"features": y}}


@pytest.mark.parametrize("example", [False, True], ids=["traced", "example"])
@pytest.mark.parametrize("wrap", [*WRAPS.values(), Result], ids=[*WRAPS, "dataclass"])
def test_features_that_the_model_returns_are_kept(wrap, example):
    model, x = trained(Shows(wrap)), torch.randn(9, 4, 5, 5, dtype=torch.float64)
    report = fold(model, x if example else None).fold_report
    assert "'conv', has an output that is used elsewhere" in report.kept["norm"]


@pytest.mark.parametrize("example", [False, True], ids=["traced", "example"])
def test_the_unspoilt_model_is_merged(example):
    x = torch.randn(9, 4, 5, 5, dtype=torch.float64)
    for norm in (None, nn.BatchNorm2d(8), DecorrelatedBatchNorm2d(8, whitening="pca")):
        check(trained(Model(norm=norm)), x, folded=1, example=example)


def test_a_dbn_that_stays_becomes_an_affine_map_and_a_batchnorm_stays():
    x = torch.randn(9, 4, 5, 5, dtype=torch.float64)
    folded = check(trained(AfterRelu()), x, folded=0)
    assert type(folded.norm) is ChannelAffine
    folded = check(trained(AfterRelu(norm=nn.BatchNorm2d(8))), x, folded=0)
    assert type(folded.norm) is nn.BatchNorm2d


def test_a_dbn_with_hooks_stays_as_it_is_and_its_hooks_run():
    model = trained(hooked("norm"))
    folded = check(model, torch.randn(9, 4, 5, 5, dtype=torch.float64), folded=0)
    assert type(folded.norm) is DecorrelatedBatchNorm2d


def test_a_diagonal_whitening_is_folded_into_a_depthwise_convolution():
    norm = convert_batchnorm(nn.BatchNorm2d(8))
    model = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), norm).double().eval()
    check(model, torch.randn(2, 8, 5, 5, dtype=torch.float64), folded=1)


@pytest.mark.parametrize("shape", [(6, 11), (6, 11, 3), (2, 11, 3, 4), (2, 11, 3, 2, 2)])
@pytest.mark.parametrize("group_size", [1, 4, 11, 16])
def test_the_affine_map_is_the_layer_in_inference(shape, group_size):
    kinds = [DecorrelatedBatchNorm1d, DecorrelatedBatchNorm1d]
    kinds += [DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d]
    layer = trained(kinds[len(shape) - 2](11, group_size=group_size))
    x = torch.randn(shape, dtype=torch.float64)
    folded = fold(layer)
    assert type(folded) is ChannelAffine
    assert torch.allclose(folded(x), layer(x), atol=1e-12)
    assert list(folded.fold_report.kept) == [""]


# --- Linear: its features are channels in 2D inputs only ----------------------------------------


@pytest.mark.parametrize("example", [False, True], ids=["traced", "example"])
def test_a_linear_on_sequences_is_never_merged_wrongly(example):
    model = trained(nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6)))
    x = torch.randn(4, 6, 3, dtype=torch.float64)  # the norm's channels are the 6 positions
    if example:
        assert "not channels" in reasons(check(model, x, folded=0, example=True))[0]
    else:
        folded = fold(model)
        with pytest.raises(AssertionError, match=r"shape \(N, C\) only; fold with example_inputs"):
            folded(x)


def test_a_2d_norm_is_not_merged_into_a_linear():
    model = trained(nn.Sequential(nn.Linear(3, 6), nn.BatchNorm2d(6)))
    check(model, torch.randn(4, 6, 5, 3, dtype=torch.float64), folded=0)


# --- code that doesn't trace --------------------------------------------------------------------


class Untraceable(nn.Module):
    """Branches on its input."""

    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner or nn.Identity()

    def forward(self, x):
        return self.inner(x) if x.sum() > 1e9 or x.shape[0] > 0 else x


def block():
    return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), DecorrelatedBatchNorm2d(4), nn.ReLU())


def test_neighbours_in_a_sequential_are_found_beside_a_module_that_does_not_trace():
    model = trained(nn.Sequential(*block(), Untraceable(), *block()))
    check(model, torch.randn(9, 4, 5, 5, dtype=torch.float64), folded=2)


class Unit(nn.Module):
    """Convolution, norm and ReLU, called by code of its own."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.act = block()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


def test_parts_of_a_model_that_does_not_trace_are_folded():
    body = nn.Sequential(Unit(), Untraceable(nn.Sequential(Unit(), Untraceable(Unit()))))
    model = trained(Untraceable(nn.Sequential(body, Unit())))
    check(model, torch.randn(9, 4, 5, 5, dtype=torch.float64), folded=4)


class Units(nn.Module):
    """Calls the elements of a ModuleList, between code that doesn't trace."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([block(), Untraceable(Unit())])
        self.conv, self.norm = nn.Conv2d(4, 4, 3), DecorrelatedBatchNorm2d(4)

    def forward(self, x, **options):
        for each in self.blocks:
            x = each(x)
        return self.norm(self.conv(x))


def test_each_part_is_seen_once():
    check(trained(Units()), torch.randn(9, 4, 5, 5, dtype=torch.float64), folded=3)
    model = trained(Untraceable(Units()))
    check(model, torch.randn(9, 4, 5, 5, dtype=torch.float64), folded=3)


class TakesApart(nn.Module):
    """Adds something between the elements of a Sequential, in code that doesn't trace."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*block())

    def forward(self, x):
        conv, norm, act = self.layers
        return act(norm(conv(x) + x)) if x.sum() < 1e9 else x


def test_a_sequential_inside_code_that_does_not_trace_is_not_trusted():
    model, x = trained(TakesApart()), torch.randn(9, 4, 5, 5, dtype=torch.float64)
    folded = check(model, x, folded=0)
    assert reasons(folded)[0].endswith("give example_inputs")
    check(model, x, folded=0, example=True)
    model = trained(Untraceable(block()))
    check(model, x, folded=0)
    check(model, x, folded=1, example=True)


class DirectlyCalled(nn.Module):
    """Calls a norm itself, in code that doesn't trace."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3), DecorrelatedBatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.conv(x)) if x.shape[0] > 0 else x


def test_what_cannot_be_seen_is_not_merged_without_example_inputs():
    model, x = trained(DirectlyCalled()), torch.randn(9, 4, 5, 5, dtype=torch.float64)
    folded = check(model, x, folded=0)
    assert "the model, which calls it, doesn't trace (TraceError" in reasons(folded)[0]
    check(model, x, folded=1, example=True)


def test_example_inputs_may_be_a_tensor_a_tuple_or_keywords():
    model, x = trained(DirectlyCalled()), torch.randn(9, 4, 5, 5, dtype=torch.float64)
    for example in (x, (x,), {"x": x}):
        assert len(fold(model, example).fold_report.folded) == 1


def test_a_norm_that_the_example_does_not_reach_stays():
    class Skips(DirectlyCalled):
        def forward(self, x):
            return super().forward(x) if x.shape[0] > 5 else x

    model, x = trained(Skips()), torch.randn(9, 4, 5, 5, dtype=torch.float64)
    folded = fold(model, x[:2])
    assert reasons(folded) == ["it was not called on the example inputs"]
    assert relative(folded(x), model(x)) < 1e-9


# --- the copy -----------------------------------------------------------------------------------


def test_the_model_is_left_as_it_was():
    model = trained(Model())
    before = copy.deepcopy(model.state_dict())
    fold(model)
    fold(model, torch.randn(2, 4, 5, 5, dtype=torch.float64))
    assert type(model.norm) is DecorrelatedBatchNorm2d
    assert not hasattr(model, "fold_report")
    assert not model.conv._forward_hooks
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_the_copy_is_the_same_class_with_the_same_names_and_shares_nothing():
    model = trained(Model())
    folded = fold(model)
    assert type(folded) is Model
    assert [n for n, _ in folded.named_modules()] == [n for n, _ in model.named_modules()]
    ours = {t.data_ptr() for t in folded.state_dict().values()}
    assert not ours & {t.data_ptr() for t in model.state_dict().values()}


def test_the_copy_is_in_inference_mode_and_keeps_what_was_set_otherwise():
    model = trained(nn.Sequential(*block(), nn.Dropout(0.5)))
    model[3].train()  # Monte-Carlo dropout
    assert [m.training for m in fold(model)] == [False, False, False, True]


def test_requires_grad_is_kept():
    model = trained(Model())
    assert fold(model).conv.bias.requires_grad
    model.requires_grad_(False)
    assert not any(p.requires_grad for p in fold(model).parameters())


def test_the_copy_can_be_folded_traced_copied_and_saved():
    model = trained(nn.Sequential(nn.Linear(4, 8), DecorrelatedBatchNorm1d(8), nn.ReLU()))
    x = torch.randn(3, 4, dtype=torch.float64)
    folded = fold(model)
    buffer = io.BytesIO()
    torch.save(folded, buffer)
    buffer.seek(0)
    for other in (
        fold(folded),
        fx.symbolic_trace(folded),
        copy.deepcopy(folded),
        torch.load(buffer, weights_only=False),
    ):
        assert relative(other(x), model(x)) < 1e-9


class Remembers(Model):
    def forward(self, x):
        self.seen = self.conv(x)
        return self.norm(self.seen)


def test_tracing_leaves_nothing_behind():
    seen = []
    model = trained(nn.Sequential(Remembers(), nn.ReLU()))
    model[0].register_forward_hook(lambda module, args, output: seen.append(output))
    folded = fold(model)
    assert not hasattr(folded[0], "seen")
    assert not hasattr(model[0], "seen")
    assert seen == []


def test_a_checkpoint_loaded_in_inference_mode_is_what_gets_folded():
    def make(seed):
        norm = DecorrelatedBatchNorm1d(6, running="covariance")
        torch.manual_seed(seed)
        return trained(nn.Sequential(nn.Linear(4, 6), norm), seed)

    model, source = make(0), make(1)
    model.load_state_dict(source.state_dict())
    x = torch.randn(5, 4, dtype=torch.float64)
    assert relative(fold(model)(x), source(x)) < 1e-9


def test_the_report_can_be_read_and_is_logged(caplog):
    model = trained(nn.Sequential(*block(), DecorrelatedBatchNorm2d(4)))
    with caplog.at_level(logging.INFO, "whitenorm"):
        report = fold(model).fold_report
    assert report.folded == {"1": "0"}
    expected = (
        "merged 1 of 2 normalizations\n"
        "  kept '3': its input is not the output of a Linear or a convolution"
    )
    assert str(report) == expected
    assert expected in caplog.text


# --- bad input ----------------------------------------------------------------------------------


def test_a_model_in_training_mode_is_an_error():
    model = trained(Model())
    with pytest.raises(ValueError, match=r"Model is in training mode: call model\.eval\(\) first"):
        fold(model.train())
    model.eval()
    model.norm.train()
    with pytest.raises(ValueError, match="DecorrelatedBatchNorm2d 'norm' is in training mode"):
        fold(model)


# --- what is hard to see ------------------------------------------------------------------------


@pytest.mark.parametrize("example", [False, True], ids=["traced", "example"])
def test_a_layer_in_a_plain_list_is_merged_there_too(example):
    model, x = trained(Listed(*block())), torch.randn(9, 4, 5, 5, dtype=torch.float64)
    check(model, x, folded=1, example=example)


def test_a_folded_model_that_computes_something_else_is_not_handed_out(monkeypatch):
    model, x = trained(block()), torch.randn(9, 4, 5, 5, dtype=torch.float64)
    fold(model, x)
    monkeypatch.setattr(folding, "_merge", lambda layer, norm: nn.Identity())  # forgets the norm
    with pytest.raises(RuntimeError, match="computes something else on the example inputs"):
        fold(model, x)


def test_a_script_module_inside_a_model_is_left_alone():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        inner = torch.jit.trace(block().double().eval(), torch.randn(2, 4, 5, 5).double())
    model = trained(nn.Sequential(*block(), inner, *block()))
    check(model, torch.randn(9, 4, 5, 5, dtype=torch.float64), folded=2)
