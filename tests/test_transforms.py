"""torch.func, forward mode and batched gradients: all of them agree with plain backward passes."""

import copy
import weakref

import pytest
import torch
from cases import HARD, TIE_FREE, WHITENINGS, colouring, correlated
from torch import nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.autograd.functional import jacobian
from torch.func import functional_call, stack_module_state, vmap

from whitenorm import DecorrelatedBatchNorm1d, decorrelated_batch_norm, whitening_matrix
from whitenorm.whitening import WHITENINGS as TABLE
from whitenorm.whitening import Whitening

# torch's own formulas of forward mode are compiled so when they are first needed.
pytestmark = pytest.mark.filterwarnings(r"ignore:`torch\.jit\.script` is deprecated")


def train(x, weight=None, bias=None, **options):
    return decorrelated_batch_norm(x, None, None, weight, bias, training=True, **options)


def inputs_of(shape, seed=0, matrix=False):
    """A batch, and a scale (or a matrix for each group of 3) and a shift for its channels."""
    x, (weight, bias) = correlated(shape, seed), correlated((2, shape[1]), seed + 1)
    return x, colouring(shape[1], 3, seed + 2) if matrix else weight, bias


MATRIX = pytest.mark.parametrize("matrix", [False, True], ids=["scale", "matrix"])


def pushed_forward(function, inputs, tangents):
    """J v, from a Jacobian that plain backward passes give row by row."""
    pairs = zip(jacobian(function, inputs), tangents, strict=True)
    return sum(torch.tensordot(J, v, v.dim()) for J, v in pairs)


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


SHAPES = {"rows": (9, 5), "maps": (3, 5, 2, 2)}
SHRINKAGES = [0.0, 0.3, "auto"]


@pytest.mark.parametrize("shrinkage", SHRINKAGES)
@pytest.mark.parametrize("shape", list(SHAPES.values()), ids=list(SHAPES))
@pytest.mark.parametrize("whitening", WHITENINGS)
@MATRIX
def test_forward_mode_is_the_jacobian_times_the_tangents(whitening, shape, shrinkage, matrix):
    def function(*inputs):
        return train(*inputs, group_size=3, whitening=whitening, shrinkage=shrinkage)

    inputs, tangents = inputs_of(shape, 0, matrix), inputs_of(shape, 2, matrix)
    expected = pushed_forward(function, inputs, tangents)
    y, dy = torch.func.jvp(function, inputs, tangents)
    same(y, function(*inputs))
    same(dy, expected)
    with forward_ad.dual_level():
        duals = map(forward_ad.make_dual, inputs, tangents)
        same(forward_ad.unpack_dual(function(*duals)).tangent, expected)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # by torch itself
@pytest.mark.parametrize("whitening", WHITENINGS)
def test_a_linearized_layer_is_its_forward_mode(whitening):
    layer = nn.Sequential(layer_of(whitening=whitening, iterations=2), nn.Tanh())
    x, v = correlated((9, 5)), correlated((9, 5), 1)
    y, push = torch.func.linearize(layer, x)
    same(y, layer(x))
    same(push(v), pushed_forward(layer, (x,), (v,)))


@pytest.mark.parametrize("wanted", [0, 1, 2], ids=["x", "weight", "bias"])
@MATRIX
def test_forward_mode_takes_the_tangent_of_any_one_input_alone(wanted, matrix):
    inputs, tangents = list(inputs_of((9, 5), 0, matrix)), inputs_of((9, 5), 2, matrix)

    def function(t):
        return train(*inputs[:wanted], t, *inputs[wanted + 1 :], group_size=3)

    _, dy = torch.func.jvp(function, (inputs[wanted],), (tangents[wanted],))
    same(dy, pushed_forward(function, (inputs[wanted],), (tangents[wanted],)))


@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("whitening", TIE_FREE)
def test_derivatives_of_every_mode_are_exact_on_hard_data(case, whitening):
    x = HARD[case].clone().requires_grad_()

    def function(x):
        return train(x, eps=1e-2, group_size=3, whitening=whitening)

    batched = {"check_batched_grad": True, "fast_mode": True}
    assert gradcheck(
        function, x, check_forward_ad=True, check_batched_forward_grad=True, **batched
    )
    assert gradgradcheck(function, x, check_fwd_over_rev=True, **batched)


@pytest.mark.parametrize("whitening", WHITENINGS)
@MATRIX
def test_second_derivatives_agree_whichever_mode_comes_first(whitening, matrix):
    """In float64, with affine parameters, a remainder, and maps whose channels lie last."""
    x, weight, bias = inputs_of((3, 5, 2, 1), 0, matrix)
    x = x.contiguous(memory_format=torch.channels_last)

    def loss(x, weight):
        return train(x, weight, bias, group_size=3, whitening=whitening).pow(3).sum()

    def second(outer, inner):
        return outer(inner(loss, (0, 1)), (0, 1))(x, weight)

    forward, reverse = torch.func.jacfwd, torch.func.jacrev
    expected = second(reverse, reverse)
    for found in (
        torch.func.hessian(loss, (0, 1))(x, weight),
        second(reverse, forward),
        second(forward, forward),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("shrinkage", SHRINKAGES)
def test_gradients_pass_through_tangents(shrinkage):
    """As in a penalty on J v, by plain autograd."""
    x, v = correlated((9, 5)), correlated((9, 5), 1)

    def tangent(x):
        with forward_ad.dual_level():
            y = train(forward_ad.make_dual(x, v), group_size=3, shrinkage=shrinkage)
            return forward_ad.unpack_dual(y).tangent

    assert shrinkage == "auto" or gradcheck(tangent, x.clone().requires_grad_())
    leaf = x.clone().requires_grad_()
    tangent(leaf).pow(2).sum().backward()
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("whitening", TIE_FREE)
def test_the_whitening_matrix_has_derivatives_of_every_mode_at_a_tie(whitening):
    def function(S):
        return whitening_matrix((S + S.mT) / 2, 1e-3, whitening, 6)

    S = (2 * torch.eye(3, dtype=torch.float64)).expand(2, 3, 3).clone().requires_grad_()
    assert gradcheck(function, S, check_forward_ad=True, check_batched_forward_grad=True)
    assert gradgradcheck(function, S, check_fwd_over_rev=True, check_batched_grad=True)


def test_a_whitening_of_ones_own_has_forward_mode_by_its_vjp(monkeypatch):
    def matrix(S, eps, iterations):
        W = torch.diag_embed(S.diagonal(dim1=-2, dim2=-1).rsqrt())
        return W, S

    def vjp(S, W, F, dW, iterations):
        variance = S.diagonal(dim1=-2, dim2=-1)
        return torch.diag_embed(dW.diagonal(dim1=-2, dim2=-1) * variance**-1.5 / -2)

    monkeypatch.setitem(TABLE, "diagonal", Whitening(matrix, vjp))
    x, v = correlated((9, 5)), correlated((9, 5), 1)
    batch_norm = nn.BatchNorm1d(5, affine=False, track_running_stats=False)
    found = torch.func.jvp(lambda x: train(x, group_size=3, whitening="diagonal"), (x,), (v,))
    same(found, torch.func.jvp(batch_norm, (x,), (v,)))


# --- batches of batches, and of gradients -------------------------------------------------------


@pytest.mark.parametrize("whitening", WHITENINGS)
@MATRIX
def test_vmap_is_a_loop_over_batches(whitening, matrix):
    """Also where the mean of some is far from zero."""
    x = torch.stack([correlated((9, 5)), correlated((9, 5), 1) + 1e3])
    weight = correlated((2, 2, 3, 3) if matrix else (2, 5), 2)

    def whitened(x, weight):
        return train(x, weight, group_size=3, whitening=whitening)

    expected = torch.stack([whitened(*each) for each in zip(x, weight, strict=True)])
    torch.testing.assert_close(vmap(whitened)(x, weight), expected)
    expected = torch.stack([whitened(each, weight[0]) for each in x])
    torch.testing.assert_close(vmap(whitened, (0, None))(x, weight[0]), expected)


@pytest.mark.parametrize("shrinkage", SHRINKAGES)
@pytest.mark.parametrize("shape", list(SHAPES.values()), ids=list(SHAPES))
@pytest.mark.parametrize("whitening", WHITENINGS)
def test_jacobians_are_those_of_plain_backward_passes(whitening, shape, shrinkage):
    def function(x):
        return train(x, group_size=3, whitening=whitening, shrinkage=shrinkage)

    x = correlated(shape)
    expected = jacobian(function, x)
    same(torch.func.jacrev(function)(x), expected)
    same(torch.func.jacfwd(function)(x), expected)
    same(jacobian(function, x, vectorize=True), expected)
    same(jacobian(function, x, vectorize=True, strategy="forward-mode"), expected)


@pytest.mark.parametrize("create_graph", [False, True])
@MATRIX
def test_batched_gradients_are_a_loop_over_gradients(create_graph, matrix):
    inputs = [t.requires_grad_() for t in inputs_of((9, 5), 0, matrix)]
    y, dys = train(*inputs, group_size=3), correlated((4, 9, 5), 5)
    loop = [torch.autograd.grad(y, inputs, dy, retain_graph=True) for dy in dys]
    expected = tuple(map(torch.stack, zip(*loop, strict=True)))
    batched = torch.autograd.grad(
        y, inputs, dys, retain_graph=True, is_grads_batched=True, create_graph=create_graph
    )
    same(batched, expected)
    same(vmap(lambda dy: torch.autograd.grad(y, inputs, dy, retain_graph=True))(dys), expected)


def test_the_gradient_by_torch_func_is_autograds():
    x, dy = correlated((9, 5)).requires_grad_(), correlated((9, 5), seed=1)
    (expected,) = torch.autograd.grad(train(x, group_size=3), x, dy)
    same(torch.func.grad(lambda x: (train(x, group_size=3) * dy).sum())(x.detach()), expected)


# --- layers with state --------------------------------------------------------------------------


def layer_of(running="whitening", **options):
    return DecorrelatedBatchNorm1d(5, group_size=3, running=running, dtype=torch.double, **options)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("running", ["whitening", "covariance"])
def test_an_ensemble_is_a_loop_over_its_models(running, training, momentum):
    """Outputs, gradients of the stacked parameters, and the running statistics after it."""
    layers = [layer_of(running, momentum=momentum) for _ in range(3)]
    for seed, layer in enumerate(layers):
        layer(correlated((20, 5), seed))
        layer.weight.data = correlated((1, 5), seed)[0]
        layer.train(training)
    base = layer_of(running, momentum=momentum).train(training)
    parameters, _ = stack_module_state(layers)
    parameters = {name: t.detach() for name, t in parameters.items()}
    states = [dict(copy.deepcopy(layer).state_dict()) for layer in layers]
    buffers = {
        name: torch.stack([state[name] for state in states])
        for name in states[0]
        if name not in parameters
    }
    x = torch.stack([correlated((9, 5), seed) for seed in range(5, 8)])

    def loss(parameters, buffers, x):
        y = functional_call(base, (parameters, buffers), (x,))
        return y.pow(3).sum(), y

    gradients, y = vmap(torch.func.grad(loss, has_aux=True))(parameters, buffers, x)
    expected = [layer(each) for layer, each in zip(layers, x, strict=True)]
    same(y, torch.stack(expected))
    for i, layer in enumerate(layers):
        expected[i].pow(3).sum().backward()
        for name, parameter in layer.named_parameters():
            same(gradients[name][i], parameter.grad)
        for name, buffer in buffers.items():
            torch.testing.assert_close(buffer[i], layer.state_dict()[name])
    copy.deepcopy(base)(x[0])  # nothing of the transform is left in the module


def test_running_statistics_move_in_forward_mode():
    layer, x, v = layer_of(), correlated((20, 5)), correlated((20, 5), 1)
    other = copy.deepcopy(layer)
    other(x)
    with forward_ad.dual_level():
        layer(forward_ad.make_dual(x, v))
    torch.testing.assert_close(dict(layer.state_dict()), dict(other.state_dict()))


def test_running_statistics_move_where_a_transform_is_given_them():
    layer, x = layer_of(), correlated((20, 5))
    buffers = {name: t.clone() for name, t in layer.named_buffers()}

    def loss(x, buffers):
        return functional_call(layer, buffers, (x,)).pow(3).sum(), buffers

    _, moved = torch.func.grad(loss, has_aux=True)(x, buffers)
    layer(x)
    torch.testing.assert_close(moved, dict(layer.named_buffers()))


@pytest.mark.parametrize(
    "transformed",
    [
        lambda layer, x: vmap(layer)(x.expand(2, 20, 5)),
        lambda layer, x: torch.func.jvp(layer, (x,), (x,)),
        lambda layer, x: torch.func.grad(lambda x: layer(x).sum())(x),
    ],
    ids=["vmap", "jvp", "grad"],
)
def test_running_statistics_that_a_transform_does_not_know_are_an_error(transformed):
    layer, x = layer_of(), correlated((20, 5))
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(RuntimeError, match="functional_call"):
        transformed(layer, x)
    torch.testing.assert_close(dict(layer.state_dict()), dict(before))


@pytest.mark.filterwarnings("ignore")  # torch.compile's own
@MATRIX
def test_a_compiled_step_of_torch_func_is_the_eager_one(matrix):
    torch.compiler.reset()
    x, weight, bias = inputs_of((9, 5), 0, matrix)

    def step(x, weight):
        return torch.func.grad(lambda *t: train(*t, bias, group_size=3).pow(3).sum(), (0, 1))(
            x, weight
        )

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    same(compiled(x, weight), step(x, weight))


def test_the_backward_pass_alone_keeps_the_input_alive():
    """And what was kept for forward mode doesn't."""
    x = correlated((9, 5)).requires_grad_()
    hidden = x * 2
    alive = weakref.ref(hidden)
    y = train(hidden)
    del hidden
    y.sum().backward()
    assert y.grad_fn is not None
    assert alive() is None
