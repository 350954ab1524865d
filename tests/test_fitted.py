"""Whitening fitted to data: its definition, one pass over batches, its inverse, other forms."""

import copy
import pickle

import pytest
import replica_jobs as jobs
import torch
from cases import WHITENINGS, correlated, covariance
from replicas import run_replicas
from torch import fx, nn
from torch.nn import functional as F

from whitenorm import FittedWhitening, fit_whitening

COMPILERS_WARN = pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning",
    r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated",
)


def assert_close(found, expected, tolerance=1e-10):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def identity(size):
    return torch.eye(size, dtype=torch.float64)


def spectrum(x):
    """Mean, eigenvalues and eigenvectors of the covariance, the largest first, by two passes."""
    x = x.double().movedim(1, 0).flatten(1)
    mean = x.mean(1)
    centred = x - mean.unsqueeze(1)
    values, vectors = torch.linalg.eigh(centred @ centred.T / x.shape[1])
    return mean, values.flip(0), vectors.flip(1)


INPUTS = {
    "NC": correlated((96, 6)),
    "NC, not contiguous": correlated((96, 12))[:, ::2],
    "NCL": correlated((16, 6, 9)),
    "NCHW": correlated((8, 6, 5, 4)),
    "channels last": correlated((8, 6, 5, 4)).contiguous(memory_format=torch.channels_last),
}
EACH_INPUT = pytest.mark.parametrize("x", INPUTS.values(), ids=INPUTS)


@EACH_INPUT
@pytest.mark.parametrize("whitening", WHITENINGS)
def test_whitened_data_has_mean_zero_and_the_identity_as_covariance(x, whitening):
    y = fit_whitening(x, whitening=whitening, eps=0.0, iterations=40)(x)
    assert y.shape == x.shape
    assert_close(y.movedim(1, 0).flatten(1).mean(1), torch.zeros(6, dtype=torch.float64))
    assert_close(covariance(y), identity(6))


def test_each_matrix_is_the_published_one():
    x, eps = correlated((96, 6)), 0.1
    mean, values, vectors = spectrum(x)
    scaled = vectors / (values + eps).sqrt()
    zca = fit_whitening(x, eps=eps)
    assert_close(zca.mean, mean)
    assert_close(zca.matrix, scaled @ vectors.T)
    pca = fit_whitening(x, whitening="pca", eps=eps).matrix
    assert_close(pca, scaled.T * (pca * scaled.T).sum(1, keepdim=True).sign())
    factor = torch.linalg.cholesky(covariance(x) + eps * identity(6))
    assert_close(fit_whitening(x, whitening="cholesky", eps=eps).matrix, factor.inverse())


@pytest.mark.parametrize("far", [0.0, 1e6], ids=["near zero", "a million deviations away"])
@pytest.mark.parametrize(
    "sizes", [[1] * 900, [7, 893], [0, 899, 0, 1]], ids=["many", "unequal", "empty"]
)
def test_many_batches_count_as_one(far, sizes):
    drift = torch.linspace(0, 3, 900, dtype=torch.float64).view(-1, 1, 1)
    x = correlated((900, 5, 4)) + drift + far
    mean, values, vectors = spectrum(x)
    found = fit_whitening(x.split(sizes), eps=0.0)
    assert_close(found.mean, mean)
    assert_close(found.matrix, vectors / values.sqrt() @ vectors.T, 2e-11)


def test_float32_data_is_added_up_in_float64():
    x = correlated((3000, 12, 16), dtype=torch.float32) + 100
    noise = correlated((3000, 1, 16), seed=1, dtype=torch.float32)[:, 0]
    x[:, 1] = x[:, 0] + 1e-3 * noise  # float32 sums would hardly tell these features apart
    mean, values, vectors = spectrum(x)
    found = fit_whitening(x.split(1500), eps=0.0)
    assert found.matrix.dtype == torch.float32
    assert_close(found.mean, mean.float(), 2e-7)
    assert_close(found.matrix, (vectors / values.sqrt() @ vectors.T).float(), 2e-7)


def test_batches_are_inputs_or_start_with_them():
    x, labels = correlated((60, 5)), torch.zeros(60)
    expected = fit_whitening(x).matrix
    pairs = list(zip(x.split(20), labels.split(20), strict=True))
    for batches in (pairs, [list(pair) for pair in pairs], iter(x.split(7)), (b for b in pairs)):
        assert_close(fit_whitening(batches).matrix, expected)


def test_batches_that_carry_gradients_leave_none_behind():
    x = correlated((60, 5)).requires_grad_()
    found = fit_whitening(x * 2)
    assert not any(buffer.requires_grad for buffer in found.buffers())
    assert not list(found.parameters())


def test_shrinkage_draws_the_covariance_towards_its_diagonal():
    x = correlated((60, 5))
    S = covariance(x)
    S = 0.7 * S + 0.3 * S.diagonal().diag()
    found = fit_whitening(x, eps=0.0, shrinkage=0.3).matrix
    assert_close(found @ S @ found.T, identity(5))
    scale = covariance(x).diagonal().rsqrt()
    assert_close(fit_whitening(x, eps=0.0, shrinkage=1).matrix, scale.diag())


def test_components_are_those_of_largest_variance():
    x = correlated((96, 6))
    _, values, vectors = spectrum(x)
    found = fit_whitening(x, whitening="pca", eps=0.0, components=2)
    y = found(x)
    assert y.shape == (96, 2)
    assert_close(covariance(y), identity(2))
    cosines = F.normalize(found.matrix, dim=1) @ vectors[:, :2]
    assert_close(cosines.abs(), identity(2))
    assert_close(found.matrix.norm(dim=1), values[:2].rsqrt())


# --- the inverse ---------------------------------------------------------------------------------


@EACH_INPUT
@pytest.mark.parametrize("whitening", WHITENINGS)
def test_the_inverse_inverts(x, whitening):
    found = fit_whitening(x, whitening=whitening)
    assert_close(found.inverse()(found(x)), x)
    assert_close(found.inverse().inverse()(x), found(x))


def test_the_inverse_of_some_components_is_the_nearest_point_that_they_span():
    x = correlated((96, 6, 2))
    mean, _, vectors = spectrum(x)
    found = fit_whitening(x, whitening="pca", components=4)
    back = found.inverse()(found(x))
    centred = (x - mean.view(-1, 1)).movedim(1, -1)
    expected = (centred @ vectors[:, :4] @ vectors[:, :4].T + mean).movedim(-1, 1)
    assert_close(back, expected)
    y = correlated((9, 4))
    assert_close(found(found.inverse()(y)), y)
    assert_close(found.inverse().inverse()(x), found(x))


def test_the_inverse_of_features_on_very_different_scales_keeps_its_digits():
    x = correlated((96, 6)) * torch.logspace(-2, 3, 6, dtype=torch.float64)
    found = fit_whitening(x, whitening="pca", eps=0.0)
    error = (found.inverse()(found(x)) - x).abs() / x.std(0)
    assert error.max() < 1e-8


# --- other forms ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"whitening": "pca", "components": 4}], ids=str)
def test_linear_and_convolution_compute_the_same(options):
    rows, maps = correlated((96, 6)), correlated((8, 6, 5, 4))
    found = fit_whitening(rows, **options)
    for module in (found, found.inverse()):
        x, pictures = rows[:, : module.in_features], maps[:, : module.in_features]
        assert_close(module.as_linear()(x), module(x))
        assert_close(module.as_conv()(pictures), module(pictures))
        assert module.as_linear().weight.requires_grad


@pytest.mark.parametrize(("kernel", "stride"), [(2, 1), ((2, 3), (2, 1))])
def test_a_whitening_of_patches_is_a_convolution(kernel, stride):
    pictures = correlated((20, 3, 8, 9))
    patches = F.unfold(pictures, kernel, stride=stride)
    found = fit_whitening(patches)
    y = found.as_conv(kernel, stride)(pictures)
    assert_close(y.flatten(2), found(patches))


def test_the_state_survives():
    x = correlated((96, 6))
    found = fit_whitening(x, whitening="pca", components=3)
    loaded = FittedWhitening(6, 3, dtype=torch.float64)
    loaded.load_state_dict(found.state_dict())
    for module in (loaded, copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert torch.equal(module(x), found(x))
    with pytest.raises(RuntimeError, match="size mismatch for matrix"):
        FittedWhitening(6).load_state_dict(found.state_dict())
    assert repr(found) == "FittedWhitening(6, 3)"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_output_has_the_inputs_dtype(dtype):
    x = correlated((96, 6, 4))
    found = fit_whitening(x)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 0.1)
    for module in (found, copy.deepcopy(found).to(dtype), fit_whitening(x.to(dtype))):
        y = module(x.to(dtype))
        assert y.dtype == dtype
        torch.testing.assert_close(y.double(), found(x), atol=tolerance, rtol=tolerance)
    assert fit_whitening(x.to(dtype)).matrix.dtype == torch.promote_types(dtype, torch.float32)


def test_autocast_costs_no_digits():
    x = correlated((96, 6, 4), dtype=torch.float32)
    found = fit_whitening(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fit_whitening(x).matrix, found.matrix)
        y = found(x)
    assert torch.equal(y, found(x))


@EACH_INPUT
def test_the_output_keeps_the_memory_format(x):
    expected = torch.empty_like(x).stride() if x.dim() > 2 else (6, 1)
    assert fit_whitening(x)(x).stride() == expected


def test_gradients_reach_the_input():
    x = correlated((5, 6, 2)).requires_grad_()
    found = fit_whitening(correlated((96, 6)), whitening="pca", components=3)
    assert torch.autograd.gradcheck(found, x)


@COMPILERS_WARN
@pytest.mark.parametrize("shape", [(8, 6), (8, 6, 5, 4)], ids=str)
def test_compiled_exported_and_traced_it_computes_the_same(shape):
    torch.compiler.reset()
    x = correlated(shape)
    found = fit_whitening(correlated((96, 6)), whitening="pca", components=3)
    expected = found(x)
    compiled = torch.compile(found, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), expected)
    batch = torch.export.Dim("batch", min=1, max=999)
    program = torch.export.export(found, (x,), dynamic_shapes=({0: batch},))
    assert_close(program.module()(x[:3]), expected[:3])
    assert_close(fx.symbolic_trace(nn.Sequential(found, nn.ReLU()))(x), expected.relu())


def test_replicas_fit_to_all_their_batches_whatever_their_number():
    expected = fit_whitening(jobs.embeddings([30])[0])
    for results in run_replicas(jobs.fit, 2):
        for found in results:
            assert_close(found["mean"], expected.mean)
            assert_close(found["matrix"], expected.matrix)


# --- data that says little -----------------------------------------------------------------------


@pytest.mark.parametrize("whitening", WHITENINGS)
def test_constant_and_repeated_features_stay_finite(whitening):
    x = correlated((96, 6))
    x[:, 1], x[:, 4] = 7.0, x[:, 0]
    found = fit_whitening(x, whitening=whitening)
    y = found(x)
    assert y.isfinite().all()
    assert_close(found.inverse()(y), x, 1e-8)
    if whitening == "zca":
        assert_close(y[:, 1], torch.zeros(96, dtype=torch.float64))
    if whitening != "newton":
        with pytest.raises(ValueError, match="eps=0 needs covariances that can be inverted"):
            fit_whitening(x, whitening=whitening, eps=0.0)


def test_fewer_samples_than_features_are_whitened_as_far_as_they_vary():
    x = correlated((4, 6))
    with pytest.warns(UserWarning, match="4 samples cannot show how 6 features vary") as warned:
        y = fit_whitening(x, whitening="pca", eps=1e-12)(x)
    assert warned[0].filename == __file__
    assert_close(covariance(y), torch.tensor([1.0, 1, 1, 0, 0, 0]).double().diag(), 1e-8)
    fit_whitening(x, shrinkage="auto")
    y = fit_whitening(x, whitening="pca", eps=1e-12, components=3)(x)
    assert_close(covariance(y), identity(3), 1e-8)


NOT_A_NUMBER = correlated((9, 4))
NOT_A_NUMBER[3, 2] = torch.nan


@pytest.mark.parametrize(
    ("batches", "options", "message"),
    [
        ([], {}, "batches is empty; give one batch"),
        ([{"x": torch.ones(9, 4)}], {}, "tuples or lists that start with one, got dict"),
        ([()], {}, "tuples or lists that start with one, got tuple"),
        ([torch.ones(0, 4)], {}, "can't be fitted to 0 samples"),
        ([torch.ones(1, 4)], {}, "can't be fitted to 1 samples"),
        ([torch.ones(4)], {}, r"expected input of shape \(N, C, ...\), got shape \(4,\)"),
        ([torch.ones(9, 4).int()], {}, "floating-point input, got torch.int32"),
        ([torch.ones(9, 4), torch.ones(9, 5)], {}, r"first has 4, another has shape \(9, 5\)"),
        ([correlated((9, 4)), NOT_A_NUMBER], {}, "hold NaN, inf"),
        ([correlated((9, 4))], {"whitening": "svd"}, "whitening must be one of .* got 'svd'"),
        ([correlated((9, 4))], {"eps": -1.0}, "eps must not be negative"),
        ([correlated((9, 4))], {"components": 2}, "use whitening='pca', or components=None"),
        *[
            ([correlated((9, 4))], {"whitening": "pca", "components": c}, "a positive integer or")
            for c in (0, 2.0, True)
        ],
        (
            [correlated((9, 4))],
            {"whitening": "pca", "components": 5},
            "components=5 is more than the 4 features have",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_fitted_is_an_error_that_says_why(batches, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fit_whitening(batches, **options)


def test_an_input_that_does_not_fit_is_an_error_that_says_why():
    found = fit_whitening(correlated((96, 6)))
    for x in (torch.ones(4, 5), torch.ones(6)):
        with pytest.raises(ValueError, match=r"expected input of shape \(N, 6, ...\), got shape"):
            found(x)
    with pytest.raises(ValueError, match=r"floating-point input, got torch\.int64"):
        found(torch.ones(4, 6, dtype=torch.int64))
    with pytest.raises(ValueError, match="6 features aren't patches of 2 x 2 pixels"):
        found.as_conv(2)
