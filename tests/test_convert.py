import copy
import logging

import pytest
import torch
from architectures import ARCHITECTURES, build, outputs, sample
from cases import Listed, correlated
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize
from transformers.models.rt_detr.modeling_rt_detr import RTDetrFrozenBatchNorm2d

from whitenorm import (
    DecorrelatedBatchNorm1d,
    DecorrelatedBatchNorm2d,
    DecorrelatedBatchNorm3d,
)
from whitenorm.convert import convert_batchnorm
from whitenorm.modules import DecorrelatedBatchNorm


def count(model, kind):
    return sum(isinstance(module, kind) for module in model.modules())


def relative(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def randomized(norm, seed=0):
    """A norm as after some training."""
    torch.manual_seed(seed)
    if norm.running_mean is not None:
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 1e-6, 3)
        norm.num_batches_tracked.fill_(7)
    if norm.weight is not None:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return norm


def network():
    return nn.ModuleDict(
        {
            "stem": nn.Sequential(nn.Conv2d(3, 20, 3), randomized(nn.BatchNorm2d(20))),
            "body": nn.Sequential(nn.Conv2d(20, 8, 3), randomized(nn.BatchNorm2d(8))),
            "head": nn.Sequential(nn.Linear(8, 6), randomized(nn.BatchNorm1d(6))),
        }
    )


def converted_names(model):
    return [n for n, m in model.named_modules() if isinstance(m, DecorrelatedBatchNorm)]


# --- networks of others -------------------------------------------------------------------------


@pytest.mark.parametrize("running", ["whitening", "covariance"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_converted_network_computes_what_it_computed_before(name, running):
    model, x = build(name), sample(name, 2)
    with torch.no_grad():
        before = outputs(model, x)
        converted = convert_batchnorm(model, running=running)
        assert converted is model
        assert count(model, _BatchNorm) == 0
        assert count(model, DecorrelatedBatchNorm) == ARCHITECTURES[name].norms
        assert relative(outputs(model, x), before) < 1e-5


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_converted_network_trains_and_every_parameter_has_a_finite_gradient(name):
    model, x = build(name).train(), sample(name, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    convert_batchnorm(model)
    before = {key: p.clone() for key, p in model.named_parameters()}
    outputs(model, x).square().mean().backward()
    for key, p in model.named_parameters():
        assert p.grad is not None, key
        assert p.grad.isfinite().all(), key
    optimizer.step()
    moved = [key for key, p in model.named_parameters() if not torch.equal(p, before[key])]
    assert {key.rsplit(".", 1)[0] for key in moved} >= set(converted_names(model))


# --- one layer ----------------------------------------------------------------------------------

LAYERS = {
    "1d": (nn.BatchNorm1d, DecorrelatedBatchNorm1d, (6, 10)),
    "1d with length": (nn.BatchNorm1d, DecorrelatedBatchNorm1d, (6, 10, 3)),
    "2d": (nn.BatchNorm2d, DecorrelatedBatchNorm2d, (6, 10, 3, 2)),
    "3d": (nn.BatchNorm3d, DecorrelatedBatchNorm3d, (6, 10, 3, 2, 2)),
}


@pytest.mark.parametrize(("old", "new", "shape"), LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"group_size": 4},
        {"group_size": 1},
        {"running": "covariance", "group_size": 4},
        {"running": "covariance", "whitening": "cholesky", "group_size": 4},
        {"running": "whitening"},
        {"running": "whitening", "whitening": "pca", "group_size": 4},
        {"running": "whitening", "whitening": "newton", "iterations": 7},
        {"shrinkage": "auto", "group_size": 4},
        {"affine": "matrix", "group_size": 4},
        {"affine": "matrix", "running": "whitening"},
    ],
    ids=str,
)
def test_a_layer_alone_is_converted_exactly(old, new, shape, options):
    norm = randomized(old(10, eps=1e-4, momentum=None)).double().eval()
    x = torch.randn(shape, dtype=torch.float64)
    expected = norm(x)
    layer = convert_batchnorm(norm, **options)
    assert type(layer) is new
    assert (layer.eps, layer.momentum, layer.num_batches_tracked) == (1e-4, None, 7)
    assert {key: getattr(layer, key) for key in options} == options
    assert torch.allclose(layer(x), expected, rtol=1e-12, atol=1e-12)


def test_group_size_one_trains_as_the_batchnorm_did():
    norm = randomized(nn.BatchNorm2d(5)).double()
    x = torch.randn(4, 5, 3, 3, dtype=torch.float64)
    expected = copy.deepcopy(norm)(x)
    layer = convert_batchnorm(norm, group_size=1)
    assert torch.allclose(layer(x), expected, atol=1e-12)


def test_a_converted_layer_whitens_in_training():
    norm = nn.BatchNorm1d(4, eps=1e-9, dtype=torch.float64)
    layer = convert_batchnorm(norm, shrinkage=0.0)
    y = layer(correlated((200, 4)))
    assert torch.allclose(y.T.cov(correction=0), torch.eye(4, dtype=y.dtype), atol=1e-6)


def test_syncbatchnorm_is_converted_for_inputs_of_any_number_of_dimensions():
    norm = randomized(nn.SyncBatchNorm(10)).double().eval()
    layer = convert_batchnorm(copy.deepcopy(norm), group_size=4)
    assert isinstance(layer, DecorrelatedBatchNorm)
    for shape in [(6, 10), (6, 10, 3), (6, 10, 3, 2), (6, 10, 3, 2, 2)]:
        x = torch.randn(shape, dtype=torch.float64)
        assert torch.allclose(layer(x), norm(x), atol=1e-12)


def test_syncbatchnorm_stays_synchronised_over_its_process_group():
    group = object()
    model = nn.Sequential(nn.SyncBatchNorm(4, process_group=group), nn.BatchNorm2d(4))
    convert_batchnorm(model)
    assert model[0].synchronized.process_group is group
    assert model[1].synchronized is None


def test_a_scale_becomes_the_diagonal_of_matrices_that_are_trained_on():
    norm = randomized(nn.BatchNorm1d(10)).double()
    scaled = convert_batchnorm(copy.deepcopy(norm), group_size=4)
    coloured = convert_batchnorm(norm, group_size=4, affine="matrix")
    assert coloured.bias is norm.bias
    x = correlated((64, 10))
    for layer in (scaled, coloured):
        layer(x).pow(3).sum().backward()
    torch.testing.assert_close(coloured(x), scaled(x))
    blocks = torch.block_diag(*coloured.weight.grad)[:10, :10]
    torch.testing.assert_close(blocks.diagonal(), scaled.weight.grad)
    assert blocks.count_nonzero() == 4 * 4 + 4 * 4 + 2 * 2
    norm.weight.requires_grad_(False)
    assert not convert_batchnorm(norm, affine="matrix").weight.requires_grad


def test_a_matrix_that_is_asked_for_starts_as_the_identity_where_there_was_no_scale():
    norm = nn.BatchNorm1d(4, affine=False).eval()
    x = torch.randn(6, 4)
    layer = convert_batchnorm(norm, affine="matrix")
    assert torch.equal(layer.weight, torch.eye(4).unsqueeze(0))
    assert torch.allclose(layer(x), norm(x), atol=1e-6)


@pytest.mark.parametrize("affine", [True, False, "diagonal"])
def test_no_other_scale_can_be_asked_for(affine):
    with pytest.raises(ValueError, match="affine must be 'matrix', or be left out"):
        convert_batchnorm(network(), affine=affine)


def test_a_layer_without_scale_and_shift_or_without_shift_is_converted():
    x = torch.randn(6, 4)
    for norm in (nn.BatchNorm1d(4, affine=False), randomized(nn.BatchNorm1d(4))):
        norm.bias = None
        expected = norm.eval()(x)
        layer = convert_batchnorm(norm)
        assert layer.affine == norm.affine
        assert layer.bias is None
        assert torch.allclose(layer(x), expected, atol=1e-6)


def test_a_layer_without_running_statistics_whitens_each_batch_and_says_so(caplog):
    norm = nn.BatchNorm1d(4, 1e-9, track_running_stats=False, dtype=torch.float64).eval()
    with caplog.at_level(logging.WARNING, "whitenorm"):
        layer = convert_batchnorm(nn.Sequential(norm), shrinkage=0.0)[0]
    assert "'0': no running statistics" in caplog.text
    y = layer(correlated((200, 4)))
    assert torch.allclose(y.T.cov(correction=0), torch.eye(4, dtype=y.dtype), atol=1e-6)


# --- what is kept -------------------------------------------------------------------------------


def test_parameters_and_buffers_are_the_same_objects():
    norm = randomized(nn.BatchNorm2d(8))
    layer = convert_batchnorm(norm)
    for name in ("weight", "bias", "running_mean", "num_batches_tracked"):
        assert getattr(layer, name) is getattr(norm, name), name


def test_an_optimizer_built_before_still_moves_the_parameters():
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8))
    optimizer = torch.optim.Adam(model.parameters())
    convert_batchnorm(model)
    before = model[1].weight.clone()
    model(torch.randn(32, 3)).pow(3).sum().backward()
    optimizer.step()
    assert not torch.equal(model[1].weight, before)


def test_training_mode_dtype_device_and_requires_grad_are_kept():
    model = nn.Sequential(nn.BatchNorm1d(4).eval(), nn.BatchNorm1d(4).double())
    model[0].weight.requires_grad_(False)
    model.append(nn.BatchNorm1d(4, device="meta"))
    convert_batchnorm(model)
    assert [m.training for m in model] == [False, True, True]
    assert not model[0].weight.requires_grad
    assert model[0].bias.requires_grad
    assert model[1].running_covariance.dtype == torch.float64
    assert {t.device.type for t in model[2].state_dict().values()} == {"meta"}


def test_a_half_precision_layer_keeps_its_dtype():
    norm = nn.BatchNorm2d(8).bfloat16().eval()
    x = torch.randn(2, 8, 3, 3, dtype=torch.bfloat16)
    layer = convert_batchnorm(norm)
    assert layer.running_mean.dtype == torch.bfloat16
    assert layer.running_covariance.dtype == torch.float32  # rounded, it would be none any more
    assert layer(x).dtype == torch.bfloat16
    assert torch.allclose(layer(x), norm(x), atol=0.05)


def test_hooks_go_on_working_and_can_be_removed():
    model, seen = nn.Sequential(nn.BatchNorm1d(4)), []
    handles = [
        model[0].register_forward_hook(lambda module, args, output: seen.append("forward")),
        model[0].register_forward_pre_hook(
            lambda module, args, kwargs: seen.append("before"), with_kwargs=True
        ),
        model[0].register_full_backward_hook(lambda module, gi, go: seen.append("backward")),
    ]
    convert_batchnorm(model)
    model(torch.randn(20, 4, requires_grad=True)).sum().backward()
    assert seen == ["before", "forward", "backward"]
    for handle in handles:
        handle.remove()
    model(torch.randn(20, 4))
    assert seen == ["before", "forward", "backward"]


def test_a_layer_used_in_several_places_stays_one_layer():
    norm = nn.BatchNorm1d(4)
    model = nn.ModuleDict({"a": nn.Sequential(norm, nn.ReLU(), norm), "b": norm})
    convert_batchnorm(model)
    assert isinstance(model["b"], DecorrelatedBatchNorm1d)
    assert model["a"][0] is model["a"][2] is model["b"]


def test_a_checkpoint_of_a_converted_model_loads_into_another():
    first, second = convert_batchnorm(network()), convert_batchnorm(network())
    for module in first.modules():
        if isinstance(module, DecorrelatedBatchNorm):
            module.running_covariance.add_(0.1)
    second.load_state_dict(first.state_dict())
    for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b)


# --- where --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "names"),
    [
        (None, ["stem.1", "body.1", "head.1"]),
        ("all", ["stem.1", "body.1", "head.1"]),
        ("first", ["stem.1"]),
        ("body.1", ["body.1"]),
        (["head.1", "stem.1"], ["stem.1", "head.1"]),
        ("b*", ["body.1"]),
        (("[bh]*", "stem.?"), ["stem.1", "body.1", "head.1"]),
        (lambda name, module: module.num_features < 10, ["body.1", "head.1"]),
        (lambda name, module: name.startswith("stem"), ["stem.1"]),
    ],
)
def test_where_chooses_the_layers(where, names, caplog):
    with caplog.at_level(logging.INFO, "whitenorm"):
        model = convert_batchnorm(network(), where=where)
    assert converted_names(model) == names
    assert f"replaced {len(names)} of 3 BatchNorm layers" in caplog.text


# --- subclasses ---------------------------------------------------------------------------------


class BatchNormAct2d(nn.BatchNorm2d):
    """As timm's: normalizes, then activates."""

    def __init__(self, num_features):
        super().__init__(num_features)
        self.act = nn.LeakyReLU()

    def forward(self, x):
        return self.act(super().forward(x))


class NamedBatchNorm2d(nn.BatchNorm2d):
    """A subclass that computes what its base does."""


def test_a_subclass_that_computes_the_same_is_converted():
    assert type(convert_batchnorm(NamedBatchNorm2d(4))) is DecorrelatedBatchNorm2d


def test_a_subclass_with_a_forward_of_its_own_is_refused_and_nothing_is_changed():
    model = nn.Sequential(nn.BatchNorm2d(4), BatchNormAct2d(4))
    with pytest.raises(TypeError, match=r"'1' \(BatchNormAct2d\) has a forward of its own.*adapt"):
        convert_batchnorm(model)
    assert type(model[0]) is nn.BatchNorm2d
    convert_batchnorm(model, where="0")
    assert type(model[0]) is DecorrelatedBatchNorm2d
    assert type(model[1]) is BatchNormAct2d


def test_a_forward_patched_onto_the_layer_is_refused():
    model = nn.Sequential(nn.BatchNorm2d(4))
    model[0].forward = lambda x: x
    with pytest.raises(TypeError, match="forward of its own"):
        convert_batchnorm(model)


def test_adapt_says_what_takes_the_place_of_a_subclass():
    model = nn.Sequential(randomized(nn.BatchNorm2d(4)), randomized(BatchNormAct2d(4))).eval()
    seen = []
    model[1].register_forward_hook(lambda module, args, output: seen.append(output))
    x = torch.randn(2, 4, 3, 3)
    expected = model(x)
    convert_batchnorm(model, adapt=lambda old, new: nn.Sequential(new, old.act))
    assert [type(m) for m in model] == [DecorrelatedBatchNorm2d, nn.Sequential]
    assert torch.allclose(model(x), expected, atol=1e-5)
    assert all(torch.allclose(output, expected, atol=1e-5) for output in seen)
    assert len(seen) == 2


# --- bad input ----------------------------------------------------------------------------------


def test_a_model_without_batchnorm_is_an_error():
    with pytest.raises(ValueError, match=r"Linear has no BatchNorm layer to convert; only"):
        convert_batchnorm(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"no BatchNorm layer .*not frozen"):
        convert_batchnorm(nn.Sequential(RTDetrFrozenBatchNorm2d(4)))


def test_converting_twice_says_that_the_layers_are_dbn_already():
    with pytest.raises(ValueError, match="3 of its layers are DBN already"):
        convert_batchnorm(convert_batchnorm(network()))


@pytest.mark.parametrize("where", ["conv*", ["stem.1", "frist"], [], lambda name, module: False])
def test_a_choice_that_matches_nothing_names_the_layers_there_are(where):
    model = network()
    with pytest.raises(ValueError, match=r"'stem\.1', 'body\.1', 'head\.1'"):
        convert_batchnorm(model, where=where)
    assert converted_names(model) == []


def test_the_pattern_that_matches_nothing_is_named():
    with pytest.raises(ValueError, match="'frist' matches no BatchNorm layer"):
        convert_batchnorm(network(), where=["stem.1", "frist"])


def test_a_long_list_of_names_is_cut_short():
    model = nn.Sequential(*[nn.BatchNorm1d(2) for _ in range(25)])
    with pytest.raises(ValueError, match=r"'19' and 5 more"):
        convert_batchnorm(model, where="x")


def test_a_choice_of_another_type_is_an_error():
    with pytest.raises(TypeError, match=r"where must be 'all', 'first'.*got \[1\]"):
        convert_batchnorm(network(), where=[1])


@pytest.mark.parametrize("option", ["eps", "momentum", "groups"])
def test_an_option_that_conversion_does_not_have_is_an_error(option):
    with pytest.raises(
        TypeError, match=f"no option '{option}'; it takes where, adapt, group_size"
    ):
        convert_batchnorm(network(), **{option: 1})


def test_a_wrong_value_of_an_option_is_an_error_and_nothing_is_changed():
    model = network()
    with pytest.raises(ValueError, match="group_size must be a positive integer, got 0"):
        convert_batchnorm(model, group_size=0)
    assert converted_names(model) == []


@pytest.mark.parametrize("whitening", ["pca", "newton"])
def test_a_whitening_that_cannot_keep_the_outputs_is_an_error(whitening):
    with pytest.raises(ValueError, match=rf"whitening='{whitening}' .*use 'zca' or 'cholesky'"):
        convert_batchnorm(network(), whitening=whitening)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_a_lazy_layer_must_have_seen_a_batch():
    model = nn.Sequential(nn.LazyBatchNorm2d())
    with pytest.raises(ValueError, match=r"'0' \(LazyBatchNorm2d\).*run a batch"):
        convert_batchnorm(model)
    model(torch.randn(2, 6, 3, 3))
    assert convert_batchnorm(model)[0].num_features == 6


def test_a_parametrized_layer_is_an_error():
    model = nn.Sequential(nn.BatchNorm1d(4))
    parametrize.register_parametrization(model[0], "weight", nn.Softplus())
    with pytest.raises(ValueError, match="parametrizations, which would be lost"):
        convert_batchnorm(model)


# --- references that torch doesn't know of ------------------------------------------------------


class KeepsMethod(nn.Module):
    """Calls a layer's forward by a reference of its own."""

    def __init__(self):
        super().__init__()
        self.norm = randomized(nn.BatchNorm2d(3))
        self.normalize = self.norm.forward

    def forward(self, x):
        return self.normalize(x)


@pytest.mark.parametrize("kind", ["in a list", "by a method"])
def test_a_layer_that_is_called_by_another_reference_is_replaced_there_too(kind):
    listed = Listed(nn.Conv2d(3, 8, 3), randomized(nn.BatchNorm2d(8)))
    model = listed if kind == "in a list" else KeepsMethod()
    model = convert_batchnorm(model, group_size=4, shrinkage=0.0)
    x = torch.randn(8, 3, 6, 6)
    group = model(x)[:, :3].transpose(0, 1).flatten(1)
    assert (torch.corrcoef(group) - torch.eye(3)).abs().max() < 0.05


# --- what is said -------------------------------------------------------------------------------


@pytest.mark.parametrize("running", ["whitening", "covariance"])
def test_a_batchnorm_that_divides_by_zero_is_an_error_and_the_model_stays(running):
    norm = nn.BatchNorm1d(4, eps=0.0)
    norm.running_var[2] = 0
    model = nn.Sequential(norm).eval()
    with pytest.raises(ValueError, match=r"'0' \(BatchNorm1d\) has eps=0 and .* variance of 0"):
        convert_batchnorm(model, running=running)
    assert model[0] is norm


def test_frozen_layers_are_named_with_what_freezes_both_kinds(caplog):
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    model[0].eval()
    model[2].eval()
    convert_batchnorm(model)
    (record,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert record.name == "whitenorm.convert"
    assert record.getMessage().startswith("'0', '2': ")
    assert "isinstance(m, (_BatchNorm, whitenorm.DecorrelatedBatchNorm))" in record.getMessage()
    assert [layer.training for layer in model] == [False, True, False]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_nothing_is_said_of_freezing_where_all_are_in_one_mode(training, caplog):
    convert_batchnorm(nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()).train(training))
    assert not [r for r in caplog.records if r.levelname == "WARNING"]
