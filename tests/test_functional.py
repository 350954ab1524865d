"""Training and inference of batch whitening: what comes out, and what flows back."""

import pytest
import reference
import torch
from cases import HARD, SHAPES, WHITENINGS, colouring, correlated, covariance
from torch.autograd import gradcheck, gradgradcheck

from whitenorm import decorrelated_batch_norm, whitening_matrix

EPS = 1e-5


def train(x, weight=None, bias=None, **options):
    return decorrelated_batch_norm(x, None, None, weight, bias, training=True, **options)


def input_gradient(x, dy, **options):
    x = x.clone().requires_grad_()
    train(x, **options).backward(dy)
    return x.grad


def parameters(affine, channels, size):
    """Weight and bias, as many as there are, with values of their own."""
    weight, bias = correlated((2, channels), seed=1)
    if affine == "matrix":
        weight = colouring(channels, size)
    return [weight, bias] if affine else []


AFFINE = pytest.mark.parametrize(
    "affine", [False, True, "matrix"], ids=["plain", "affine", "matrix"]
)


# --- what comes out -----------------------------------------------------------------------------


@pytest.mark.parametrize("whitening", WHITENINGS)
@pytest.mark.parametrize("shape", [shape for _, shape in SHAPES.values()], ids=list(SHAPES))
@pytest.mark.parametrize("group_size", [1, 3, 4, 5, 12, 64])
def test_every_group_has_mean_zero_and_identity_covariance(whitening, shape, group_size):
    y = train(correlated(shape), group_size=group_size, whitening=whitening, iterations=40)
    for group in reference.split(y, group_size):
        k = group.shape[1]
        torch.testing.assert_close(group.movedim(1, 0).flatten(1).mean(1), y.new_zeros(k))
        torch.testing.assert_close(covariance(group), torch.eye(k).double(), atol=1e-2, rtol=0)


@pytest.mark.parametrize("whitening", WHITENINGS)
def test_covariance_is_exactly_that_of_the_regularised_whitening(whitening):
    """With a visible eps, W (S - eps I) W^T: an eps added twice, or left out, would show."""
    x, eps = correlated((50, 4)), 0.3
    W = whitening_matrix(covariance(x), eps, whitening)
    y = train(x, group_size=4, eps=eps, whitening=whitening)
    torch.testing.assert_close(covariance(y), W @ covariance(x) @ W.mT)


@pytest.mark.parametrize("whitening", WHITENINGS)
@pytest.mark.parametrize("channels", [12, 14])
@pytest.mark.parametrize("affine", [True, "matrix"], ids=["affine", "matrix"])
def test_a_grouped_layer_is_the_concatenation_of_independent_ones(whitening, channels, affine):
    x = correlated((8, channels, 3, 3))
    weight, bias = parameters(affine, channels, 4)
    weights = weight.split(4 if affine is True else 1)
    if affine == "matrix":
        weights = (*weights[:3], *[w[:, :2, :2] for w in weights[3:]])
    dy = correlated(x.shape, seed=7)
    whole = x.clone().requires_grad_()
    parts = x.clone().requires_grad_()
    train(whole, weight, bias, group_size=4, whitening=whitening).backward(dy)
    outputs = [
        train(part, w, b, group_size=64, whitening=whitening)
        for part, w, b in zip(parts.split(4, 1), weights, bias.split(4), strict=True)
    ]
    torch.cat(outputs, 1).backward(dy)
    torch.testing.assert_close(
        train(x, weight, bias, group_size=4, whitening=whitening), torch.cat(outputs, 1)
    )
    torch.testing.assert_close(whole.grad, parts.grad)


def test_affine_scales_and_shifts_the_whitened_channels():
    x, (weight, bias) = correlated((50, 4)), correlated((2, 4), seed=1)
    plain = train(x, group_size=4)
    torch.testing.assert_close(train(x, weight, bias, group_size=4), plain * weight + bias)


# --- a matrix instead of a scale ----------------------------------------------------------------


def coloured(x, matrices, size):
    """Each group's samples times its matrix, of which a smaller group uses a corner."""
    parts = []
    for part, G in zip(reference.split(x, size), matrices, strict=True):
        k = part.shape[1]
        parts.append(reference.unsamples(G[:k, :k] @ reference.samples(part), part))
    return torch.cat(parts, 1)


@pytest.mark.parametrize("shape", [shape for _, shape in SHAPES.values()], ids=list(SHAPES))
@pytest.mark.parametrize("size", [3, 5, 12])
def test_a_matrix_colours_what_the_papers_algorithm_whitened(shape, size):
    """In values and gradients: dx is the whitening's for G^T g, dG the sum of g y^T."""
    channels, x, dy = shape[1], correlated(shape), correlated(shape, seed=1)
    weight, bias = parameters("matrix", channels, size)
    white, *_ = reference.dbn(x, size, EPS)
    inputs = [t.clone().requires_grad_() for t in (x, weight, bias)]
    y = train(*inputs, group_size=size)
    y.backward(dy)
    expected = coloured(white, weight, size) + bias.view(-1, *[1] * (x.dim() - 2))
    torch.testing.assert_close(y, expected)
    dx = reference.dbn_gradient(x, coloured(dy, weight.mT, size), size, EPS)
    torch.testing.assert_close(inputs[0].grad, dx)
    pairs = zip(reference.split(dy, size), reference.split(white, size), strict=True)
    for found, (g, part) in zip(inputs[1].grad, pairs, strict=True):
        k = part.shape[1]
        expected = reference.samples(g) @ reference.samples(part).T
        torch.testing.assert_close(found[:k, :k], expected)
        assert not found[k:].any(), "what a smaller group doesn't use has no gradient"
        assert not found[:, k:].any()
    torch.testing.assert_close(inputs[2].grad, reference.samples(dy).sum(1))


@pytest.mark.parametrize("whitening", WHITENINGS)
@pytest.mark.parametrize("shrinkage", [0.0, 0.3, "auto"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_diagonal_matrix_is_a_scale(whitening, shrinkage, training):
    """In values and in the gradients of input, scale and shift."""
    x, (scale, bias), dy = (
        correlated((7, 5, 3, 2)),
        correlated((2, 5), 1),
        correlated((7, 5, 3, 2)),
    )
    padded = torch.cat([scale, torch.ones(1).double()])
    statistics = correlated((1, 5))[0], colouring(5, 3, seed=2)

    def results(weight):
        inputs = [t.clone().requires_grad_() for t in (x, weight, bias)]
        y = decorrelated_batch_norm(
            inputs[0],
            *(statistics if not training else (None, None)),
            *inputs[1:],
            training,
            group_size=3,
            whitening=whitening,
            running="whitening",
            shrinkage=shrinkage,
        )
        return y, *torch.autograd.grad(y, inputs, dy)

    found, expected = results(torch.diag_embed(padded.view(2, 3))), results(scale)
    gradient = found[2].diagonal(dim1=1, dim2=2).flatten()[:5]
    torch.testing.assert_close((*found[:2], gradient, found[3]), expected)


# --- against the paper's algorithms -------------------------------------------------------------


@pytest.mark.parametrize("shape", [shape for _, shape in SHAPES.values()], ids=list(SHAPES))
@pytest.mark.parametrize("group_size", [3, 5, 12])
def test_forward_and_backward_agree_with_the_papers_algorithms(shape, group_size):
    x, dy = correlated(shape), correlated(shape, seed=1)
    expected, *_ = reference.dbn(x, group_size, EPS)
    torch.testing.assert_close(train(x, group_size=group_size), expected)
    expected = reference.dbn_gradient(x, dy, group_size, EPS)
    torch.testing.assert_close(input_gradient(x, dy, group_size=group_size), expected)


@pytest.mark.parametrize("whitening", ["zca", "pca", "cholesky"])
def test_backward_agrees_with_autograd_through_the_decomposition(whitening):
    def plain(x):
        centred = x - x.mean(0)
        S = centred.T @ centred / x.shape[0] + EPS * torch.eye(x.shape[1], dtype=x.dtype)
        if whitening == "cholesky":
            return torch.linalg.solve_triangular(
                torch.linalg.cholesky(S), centred.T, upper=False
            ).T
        sigma, D = torch.linalg.eigh(S)
        sigma, D = sigma.flip(-1), D.flip(-1)
        D = D * torch.where(D[0] < 0, -1.0, 1.0)
        W = torch.diag(sigma**-0.5) @ D.T
        return centred @ (W if whitening == "pca" else D @ W).T

    x, dy = correlated((40, 6)).requires_grad_(), correlated((40, 6), seed=1)
    torch.testing.assert_close(train(x, group_size=6, whitening=whitening), plain(x))
    (expected,) = torch.autograd.grad(plain(x), x, dy)
    torch.testing.assert_close(
        input_gradient(x.detach(), dy, group_size=6, whitening=whitening), expected
    )


# --- gradcheck ----------------------------------------------------------------------------------


def gradient_cases():
    for name, x in HARD.items():
        for whitening in WHITENINGS:
            if whitening != "pca" or name in ("distinct eigenvalues", "feature maps"):
                yield pytest.param(x, whitening, id=f"{name}-{whitening}")


@pytest.mark.parametrize(("x", "whitening"), list(gradient_cases()))
@AFFINE
def test_gradients_of_training_are_exact(x, whitening, affine):
    inputs = [x, *parameters(affine, 4, 4)]

    def function(*inputs):
        return train(*inputs, eps=1e-2, group_size=4, whitening=whitening)

    inputs = [t.clone().requires_grad_() for t in inputs]
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs, fast_mode=affine == "matrix")


@pytest.mark.parametrize("x", list(HARD.values()), ids=list(HARD))
@AFFINE
def test_gradients_of_inference_are_exact(x, affine):
    mean, matrix = correlated((1, 4))[0], correlated((1, 4, 4))
    inputs = [x, *parameters(affine, 4, 4)]

    def function(x, weight=None, bias=None):
        return decorrelated_batch_norm(x, mean, matrix, weight, bias, group_size=4)

    inputs = [t.clone().requires_grad_() for t in inputs]
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("affine", [True, "matrix"], ids=["affine", "matrix"])
def test_gradients_are_exact_with_a_remainder_and_channels_last(affine):
    x = correlated((3, 5, 2, 2)).contiguous(memory_format=torch.channels_last)
    inputs = [x, *parameters(affine, 5, 3)]
    inputs = [t.clone(memory_format=torch.preserve_format).requires_grad_() for t in inputs]

    def function(*inputs):
        return train(*inputs, eps=1e-2, group_size=3)

    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("wanted", ["x", "weight", "bias"])
@pytest.mark.parametrize("affine", [True, "matrix"], ids=["affine", "matrix"])
def test_gradients_of_any_one_input_alone(wanted, affine):
    tensors = dict(
        zip(("x", "weight", "bias"), [correlated((9, 4)), *parameters(affine, 4, 16)], strict=True)
    )
    leaf = tensors[wanted].clone().requires_grad_()
    everything = {name: t.clone().requires_grad_() for name, t in tensors.items()}
    dy = correlated((9, 4), seed=3)
    train(**{**tensors, wanted: leaf}).backward(dy)
    train(**everything).backward(dy)
    torch.testing.assert_close(leaf.grad, everything[wanted].grad)


def test_a_gradient_penalty_trains():
    x = correlated((16, 4)).requires_grad_()
    weight = torch.ones(4, dtype=torch.float64, requires_grad=True)
    (dx,) = torch.autograd.grad(train(x, weight).pow(3).sum(), x, create_graph=True)
    dx.pow(2).sum().backward()
    assert x.grad.abs().max() > 0
    assert weight.grad.isfinite().all()
