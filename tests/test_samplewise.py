"""Whitening without a batch: each sample by itself, against plain float64."""

import copy
import inspect
import pickle
import warnings

import numpy as np
import onnxruntime
import pytest
import torch
from cases import WHITENINGS, correlated, tied
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.export import Dim

import whitenorm
from whitenorm import GroupWhitening, InstanceWhitening2d, decorrelated_batch_norm

# What the tools of others warn of when they are used as their documentation says.
TOOLS = pytest.mark.filterwarnings(
    r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated",
    "ignore:.*should not be instantiated:DeprecationWarning",
    r"ignore:.*torch\.jit\.script(_method)?. is deprecated:DeprecationWarning",
    "ignore:.*torch._prims_common.check. is deprecated:FutureWarning",
)

SHAPES = {
    "NC": (3, 48),
    "NCL": (3, 12, 9),
    "NCHW": (3, 12, 5, 4),
    "NCDHW": (2, 12, 3, 4, 2),
    "one sample": (1, 12, 5, 4),
}
EACH_SHAPE = pytest.mark.parametrize("shape", list(SHAPES.values()), ids=list(SHAPES))


def random_parameters(layer):
    with torch.no_grad():
        for i, parameter in enumerate(layer.parameters()):
            parameter.copy_(correlated((2, *parameter.shape), i)[0])
    return layer


def group_whitening(*args, **options):
    options = {"shrinkage": 0.0, "dtype": torch.float64, **options}
    return random_parameters(GroupWhitening(*args, **options))


def instance_whitening(*args, **options):
    options = {"shrinkage": 0.0, "dtype": torch.float64, "affine": True, **options}
    return random_parameters(InstanceWhitening2d(*args, **options))


LAYERS = {
    "groups": group_whitening(4, 12),
    "groups, plain": group_whitening(4, 12, affine=False),
    "instance": instance_whitening(12, group_size=5),
    "instance, plain": instance_whitening(12, group_size=5, affine=False),
    "instance, matrix": instance_whitening(12, group_size=5, affine="matrix"),
}
EACH_LAYER = pytest.mark.parametrize("layer", list(LAYERS.values()), ids=list(LAYERS))


# --- the published formulas ---------------------------------------------------------------------


def whitened(X, eps):
    """S^(-1/2) (X - mu 1^T) of variables in rows, by autograd through the decomposition."""
    centred = X - X.mean(1, keepdim=True)
    S = centred @ centred.T / X.shape[1] + eps * torch.eye(len(X)).double()
    eigenvalues, D = torch.linalg.eigh(S)
    return D @ torch.diag(eigenvalues**-0.5) @ D.T @ centred


def reference(layer, x, weight, bias):
    outputs = []
    for sample in x:
        channels = (len(sample), *[1] * (sample.dim() - 1))
        if isinstance(layer, GroupWhitening):
            y = whitened(sample.reshape(layer.num_groups, -1), layer.eps).reshape(sample.shape)
            if weight is not None:
                y = weight.view(channels) * y
        else:
            parts = [whitened(part.flatten(1), layer.eps) for part in sample.split(5)]
            if weight is not None and weight.dim() == 1:
                parts = [w[:, None] * p for w, p in zip(weight.split(5), parts, strict=True)]
            elif weight is not None:
                parts = [G[: len(p), : len(p)] @ p for G, p in zip(weight, parts, strict=True)]
            y = torch.cat(parts).reshape(sample.shape)
        outputs.append(y if bias is None else y + bias.view(channels))
    return torch.stack(outputs)


def assert_agrees(layer, x):
    dy = correlated(x.shape, 9)
    parameters = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    leaf, exact = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = layer(leaf)
    expected = reference(layer, exact, *(parameters or (None, None)))
    torch.testing.assert_close(y, expected)
    found = torch.autograd.grad(y, [leaf, *layer.parameters()], dy)
    torch.testing.assert_close(found, torch.autograd.grad(expected, [exact, *parameters], dy))


@EACH_SHAPE
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("groups", [1, 3, 4])
def test_group_whitening_is_the_published_formula_in_values_and_gradients(shape, affine, groups):
    layer = group_whitening(groups, shape[1], 1e-3, affine)
    assert_agrees(layer, correlated(shape))


@EACH_LAYER
def test_both_layers_are_their_formulas_for_any_memory_format(layer):
    x = correlated((3, 12, 5, 4))
    assert_agrees(layer, x)
    assert_agrees(layer, x.contiguous(memory_format=torch.channels_last))
    assert_agrees(layer, x.transpose(2, 3))


# --- the definitions ----------------------------------------------------------------------------


@EACH_SHAPE
@pytest.mark.parametrize("whitening", WHITENINGS)
def test_the_groups_of_every_sample_have_the_identity_as_covariance(shape, whitening):
    options = {"affine": False, "whitening": whitening, "iterations": 40}
    y = group_whitening(4, shape[1], 1e-9, **options)(correlated(shape))
    for sample in y.flatten(1):
        groups = sample.view(4, -1)
        torch.testing.assert_close(groups.mean(1), torch.zeros(4).double())
        torch.testing.assert_close(
            groups.cov(correction=0), torch.eye(4).double(), atol=1e-4, rtol=0
        )


@pytest.mark.parametrize("group_size", [1, 4, 5, 64])
def test_the_channels_of_every_sample_have_the_identity_as_covariance(group_size):
    layer = instance_whitening(12, 1e-9, affine=False, group_size=group_size)
    for sample in layer(correlated((3, 12, 6, 6))):
        for part in sample.split(group_size):
            covariance = part.flatten(1).cov(correction=0).view(len(part), len(part))
            torch.testing.assert_close(
                covariance, torch.eye(len(part)).double(), atol=1e-4, rtol=0
            )


@EACH_LAYER
def test_a_sample_does_not_depend_on_the_others(layer):
    """Neither its output nor its gradient, nor if another is no number."""
    x = correlated((3, 12, 5, 4))
    torch.testing.assert_close(layer(x)[1:2], layer(x[1:2]))
    leaf = x.clone().requires_grad_()
    layer(leaf)[1].pow(3).sum().backward()
    assert not leaf.grad[::2].any()
    spoilt = x.clone()
    spoilt[0] = torch.nan
    y = layer(spoilt)
    assert y[0].isnan().all()
    torch.testing.assert_close(y[1:], layer(x)[1:])


@EACH_LAYER
def test_training_and_evaluation_are_the_same_and_leave_no_statistics(layer):
    layer = copy.deepcopy(layer)
    x = correlated((2, 12, 5, 4))
    assert torch.equal(layer.train()(x), layer.eval()(x))
    assert not list(layer.buffers())


@EACH_SHAPE
def test_shrunk_to_the_diagonal_it_is_group_norm(shape):
    ours = group_whitening(4, shape[1], shrinkage=1.0)
    theirs = nn.GroupNorm(4, shape[1]).double()
    theirs.load_state_dict(ours.state_dict())
    a, b = correlated(shape).requires_grad_(), correlated(shape).requires_grad_()
    torch.testing.assert_close(ours(a), theirs(b))
    for layer, x in ((ours, a), (theirs, b)):
        layer(x).pow(3).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)


def test_one_channel_at_a_time_is_instance_norm():
    ours = instance_whitening(6, group_size=1)
    theirs = nn.InstanceNorm2d(6, affine=True).double()
    theirs.load_state_dict(ours.state_dict())
    x = correlated((2, 6, 5, 4))
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("shrinkage", [0.0, 0.3, "auto", "bounded"])
def test_a_sample_is_whitened_as_a_batch_that_holds_it_alone(shrinkage):
    x = correlated((3, 12, 5, 4))
    layer = instance_whitening(12, affine=False, group_size=5, shrinkage=shrinkage)
    options = {"training": True, "group_size": 5, "shrinkage": shrinkage}
    alone = [decorrelated_batch_norm(sample.unsqueeze(0), **options) for sample in x]
    torch.testing.assert_close(layer(x), torch.cat(alone))


def test_the_arguments_are_group_norms_in_their_order():
    theirs = list(inspect.signature(nn.GroupNorm.__init__).parameters.values())[:7]
    ours = list(inspect.signature(GroupWhitening.__init__).parameters.values())
    assert [p.name for p in ours[:7]] == [p.name for p in theirs]
    assert [p.default for p in ours[3:7]] == [p.default for p in theirs[3:]]
    assert all(p.kind is p.KEYWORD_ONLY for p in ours[7:])


# --- gradients ----------------------------------------------------------------------------------

TIED = tied().T.reshape(1, 4, 4, 2)  # 4 groups, or 4 channels, of 8 elements each
HARD = {
    "distinct eigenvalues": correlated((2, 4, 3, 3)),
    "equal eigenvalues": torch.cat([TIED, -2 * TIED]),
    "a constant": torch.cat([correlated((1, 3, 3, 3)), torch.ones(1, 1, 3, 3).double()], 1),
    "fewer elements than variables": correlated((2, 4, 1, 2)),
}


@pytest.mark.filterwarnings("ignore:a sample of 2 elements in each of")
@pytest.mark.parametrize("x", list(HARD.values()), ids=list(HARD))
@pytest.mark.parametrize(
    "layer",
    [
        group_whitening(4, 4, 1e-2),
        group_whitening(2, 4, 1e-2, whitening="cholesky"),
        instance_whitening(4, 1e-2, group_size=3),
        instance_whitening(4, 1e-2, affine="matrix", group_size=3),
        instance_whitening(4, 1e-2, affine=False, whitening="newton", shrinkage=0.3),
    ],
    ids=["groups", "groups, cholesky", "instance", "instance, matrix", "instance, newton"],
)
def test_gradients_are_exact(x, layer):
    names = [name for name, _ in layer.named_parameters()]

    def function(x, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), x)

    inputs = [x, *layer.parameters()]
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs, fast_mode=True)


@EACH_LAYER
def test_gradients_of_each_sample_by_torch_func_are_those_of_backward(layer):
    x, parameters = correlated((3, 12, 5, 4)), dict(layer.named_parameters())
    detached = {name: p.detach() for name, p in parameters.items()}

    def loss(x, parameters):
        return torch.func.functional_call(layer, parameters, x.unsqueeze(0)).pow(3).sum()

    found = torch.func.vmap(torch.func.grad(loss, (0, 1)), (0, None))(x, detached)
    for i, sample in enumerate(x):
        leaf = sample.clone().requires_grad_()
        expected = torch.autograd.grad(loss(leaf, parameters), [leaf, *parameters.values()])
        torch.testing.assert_close(found[0][i], expected[0])
        for name, gradient in zip(parameters, expected[1:], strict=True):
            torch.testing.assert_close(found[1][name][i], gradient)


@TOOLS
@EACH_LAYER
def test_forward_mode_is_the_jacobian_times_the_tangent(layer):
    x, v = correlated((2, 12, 3, 3)), correlated((2, 12, 3, 3), 1)
    J = torch.autograd.functional.jacobian(layer, x)
    _, found = torch.func.jvp(layer, (x,), (v,))
    torch.testing.assert_close(found, torch.tensordot(J, v, 4))


# --- dtypes, formats, states --------------------------------------------------------------------


@EACH_LAYER
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("way", ["input", "autocast", "model"])
def test_half_precision_rounds_results_alone(layer, dtype, way):
    layer = copy.deepcopy(layer).to(dtype if way == "model" else torch.float32)
    x, dy = correlated((2, 12, 8, 8)).to(dtype).requires_grad_(), correlated((2, 12, 8, 8), 1)
    dy = dy.to(dtype)
    with torch.autocast("cpu", dtype=dtype, enabled=way == "autocast"):
        y = layer(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    assert y.dtype == dx.dtype == dtype
    exact = x.detach().double().requires_grad_()
    expected = copy.deepcopy(layer).double()(exact)
    (expected_dx,) = torch.autograd.grad(expected, exact, dy.double())
    for value, right in ((y, expected), (dx, expected_dx)):
        assert (value - right).norm() <= 2 * torch.finfo(dtype).eps * right.norm()


@EACH_LAYER
def test_the_output_is_laid_out_as_the_input_and_an_in_place_relu_may_follow(layer):
    x = correlated((3, 12, 5, 4))
    for memory_format in (torch.contiguous_format, torch.channels_last):
        leaf = x.clone(memory_format=memory_format).requires_grad_()
        y = layer(leaf)
        assert y.is_contiguous(memory_format=memory_format)
        (found,) = torch.autograd.grad(nn.ReLU(inplace=True)(y).pow(2).sum(), leaf)
        (expected,) = torch.autograd.grad(layer(leaf).relu().pow(2).sum(), leaf)
        torch.testing.assert_close(found, expected)


@EACH_LAYER
def test_values_of_any_size_give_finite_outputs_and_gradients(layer):
    layer = copy.deepcopy(layer).float()
    for scale in (0.0, 1e-15, 1e15):
        x = (scale * correlated((2, 12, 3, 3))).float().requires_grad_()
        layer(x).sum().backward()
        assert layer(x).isfinite().all()
        assert x.grad.isfinite().all()


@EACH_LAYER
def test_the_layer_survives_copies_pickles_and_meta(layer):
    x = correlated((2, 12, 5, 4))
    options = {"affine": layer.affine, "dtype": torch.float64, "device": "meta", "shrinkage": 0.0}
    if isinstance(layer, GroupWhitening):
        fresh = GroupWhitening(4, 12, **options)
    else:
        fresh = InstanceWhitening2d(12, group_size=5, **options)
    fresh.load_state_dict(layer.state_dict(), assign=True)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), fresh):
        assert torch.equal(other(x), layer(x))
    other.reset_parameters()
    if layer.affine == "matrix":
        assert torch.equal(other.weight, torch.eye(5).double().expand(3, 5, 5))


@EACH_LAYER
def test_an_empty_batch_stays_empty(layer):
    assert layer(torch.empty(0, 12, 5, 4).double()).shape == (0, 12, 5, 4)


# --- graphs -------------------------------------------------------------------------------------


@TOOLS
@pytest.mark.parametrize("name", ["groups", "instance, matrix"])
def test_compiled_is_eager_in_one_graph_for_any_batch_size(name):
    torch.compiler.reset()
    eager, graphs, counts = LAYERS[name], [], []
    other = copy.deepcopy(eager)

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(other, fullgraph=True, backend=backend, dynamic=True)
    for samples in (3, 2, 5):
        x, dy = correlated((samples, 12, 5, 4)), correlated((samples, 12, 5, 4), 1)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        y = compiled(b)
        torch.testing.assert_close(y, eager(a))
        found = torch.autograd.grad(y, [b, *other.parameters()], dy)
        expected = torch.autograd.grad(eager(a), [a, *eager.parameters()], dy)
        torch.testing.assert_close(found, expected)
        counts.append(len(graphs))
    assert counts[0] == counts[-1]


@TOOLS
@EACH_LAYER
def test_an_exported_program_computes_the_same_for_any_batch_size(layer):
    x, other = correlated((3, 12, 5, 4)), correlated((5, 12, 5, 4), 1)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: Dim("batch")},))
    for batch in (x, other):
        torch.testing.assert_close(program.module()(batch), layer(batch))


@TOOLS
@pytest.mark.parametrize("kind", ["groups", "instance"])
def test_onnxruntime_computes_the_same_where_whitening_is_by_products_alone(kind, tmp_path):
    options = {"whitening": "newton", "dtype": torch.float32}
    if kind == "groups":
        layer = group_whitening(4, 12, **options)
    else:
        layer = instance_whitening(12, group_size=5, **options)
    layer.eval()  # which changes nothing, but is asked for
    x, other = (correlated((n, 12, 5, 4), dtype=torch.float32) for n in (3, 5))
    program = torch.onnx.export(
        layer, (x,), dynamo=True, dynamic_shapes=({0: Dim("batch")},), verbose=False
    )
    path = tmp_path / "model.onnx"
    program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in (x, other):
        (y,) = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
        np.testing.assert_allclose(y, layer(batch).detach().numpy(), rtol=1e-4, atol=1e-4)


@EACH_LAYER
def test_a_traced_graph_holds_the_layer_as_one_call(layer):
    x = correlated((2, 12, 5, 4))
    for model in (layer, nn.Sequential(nn.ReLU(), layer)):
        traced = torch.fx.symbolic_trace(model)
        assert [node.op for node in traced.graph.nodes].count("call_function") == 1
        torch.testing.assert_close(traced(x), model(x))


def test_folding_leaves_the_layer_where_it_is():
    layer = GroupWhitening(4, 12)
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3), layer, nn.Conv2d(12, 8, 3), whitenorm.DecorrelatedBatchNorm2d(8)
    ).eval()
    folded, x = whitenorm.fold(model), torch.randn(2, 3, 8, 8)
    assert type(folded[1]) is GroupWhitening
    assert folded.fold_report.folded == {"3": "2"}
    torch.testing.assert_close(folded(x), model(x), rtol=1e-4, atol=1e-4)


# --- errors and warnings ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape", "words"),
    [
        (GroupWhitening(2, 8), (8,), r"shape \(N, 8, ...\), got \(8,\)"),
        (GroupWhitening(2, 8), (2, 6, 3), r"shape \(N, 8, ...\), got \(2, 6, 3\); num_channels"),
        (GroupWhitening(8, 8), (2, 8), r"more than 1 value a group .*\(2, 8\) in 8 groups; use f"),
        (GroupWhitening(8, 8), (2, 8, 1, 1), "more than 1 value a group"),
        (InstanceWhitening2d(8), (2, 8), r"4D input of shape \(N, 8, H, W\), got \(2, 8\)"),
        (InstanceWhitening2d(8), (2, 6, 3, 3), r"got \(2, 6, 3, 3\); num_features"),
        (InstanceWhitening2d(8), (2, 8, 1, 1), r"more than 1 position.*whitenorm\.GroupWhitening"),
    ],
)
def test_a_wrong_input_is_named(layer, shape, words):
    with pytest.raises(ValueError, match=words):
        layer(torch.zeros(shape))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_groups": 0}, "num_groups must be a positive integer, got 0"),
        ({"num_groups": 2.0}, "num_groups must be a positive integer, got 2.0"),
        ({"num_channels": -1}, "num_channels must be a positive integer, got -1"),
        ({"num_groups": 3}, "num_groups must divide num_channels, got num_groups=3 and num_chan"),
        ({"affine": "matrix"}, "affine must be True or False, got 'matrix'"),
        ({"affine": 1}, "affine must be True or False, got 1"),
        ({"eps": -1.0}, "eps must not be negative"),
        ({"whitening": "svd"}, "whitening must be one of 'zca'"),
        ({"shrinkage": 2}, "shrinkage must be .* got 2"),
        ({"iterations": 0}, "iterations must be a positive integer"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_at_construction(options, words):
    with pytest.raises(ValueError, match=words):
        GroupWhitening(**{"num_groups": 2, "num_channels": 8, **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_features": 0}, "num_features must be a positive integer, got 0"),
        ({"affine": 0.1}, "affine must be True, False or 'matrix', got 0.1"),
        ({"group_size": 0}, "group_size must be a positive integer, got 0"),
    ],
    ids=str,
)
def test_a_wrong_option_of_instance_whitening_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        InstanceWhitening2d(**{"num_features": 8, **options})


@pytest.mark.parametrize(
    ("layer", "shape", "words"),
    [
        (GroupWhitening(8, 16, shrinkage=0.0), (2, 16), "2 elements .* 8 .* num_groups <= 2"),
        (InstanceWhitening2d(8, shrinkage=0.0), (2, 8, 2, 2), "4 elements .* group_size <= 4"),
    ],
    ids=["groups", "instance"],
)
def test_too_few_elements_warn_once_a_layer(layer, shape, words):
    with pytest.warns(UserWarning, match=words):
        layer(torch.randn(shape))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(torch.randn(shape))
        GroupWhitening(8, 16)(torch.randn(2, 16))


def test_repr_names_every_option():
    assert repr(GroupWhitening(4, 8, whitening="newton")) == (
        "GroupWhitening(4, 8, eps=1e-05, affine=True, whitening='newton', shrinkage='bounded', "
        "iterations=5)"
    )
    assert repr(InstanceWhitening2d(8, affine="matrix", group_size=4)) == (
        "InstanceWhitening2d(8, eps=1e-05, affine='matrix', group_size=4, whitening='zca', "
        "shrinkage='bounded')"
    )
