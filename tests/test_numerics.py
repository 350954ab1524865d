"""Accuracy in float32 and below, and inputs that make other implementations return NaN."""

import pytest
import reference
import torch
from accuracy import compare_with_float64, forward_backward, worst_channel
from cases import (
    HARD,
    TIE_FREE,
    WHITENINGS,
    assert_same_state,
    colouring,
    correlated,
    covariance,
    state,
)
from reference import samples

from whitenorm import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, whitening_matrix


@pytest.mark.parametrize("whitening", WHITENINGS)
@pytest.mark.parametrize("shape", [(4096, 32), (16, 32, 16, 16)], ids=["NC", "NCHW"])
@pytest.mark.parametrize("group_size", [16, 32])
def test_float32_survives_a_mean_a_thousand_times_the_deviation(whitening, shape, group_size):
    x = correlated(shape)
    mean, std = (
        statistic.view(-1, *[1] * (x.dim() - 2))
        for statistic in (samples(x).mean(1), samples(x).std(1))
    )
    x = ((x - mean) / std + 1000).float()
    errors = compare_with_float64(
        x, correlated(shape, 1).float(), group_size=group_size, whitening=whitening
    )
    assert max(errors) <= 1e-3


@pytest.mark.parametrize("shape", [(16, 32, 16, 16), (96, 32, 16, 16)], ids=["few", "many"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("far", [0.0, 3.9, 4.1, 1000.0])
def test_float32_is_accurate_wherever_the_mean_is(shape, memory_format, far):
    """On either side of where the mean is subtracted first, and with many samples as with few."""
    x = correlated(shape)
    mean, std = (s.view(-1, 1, 1) for s in (samples(x).mean(1), samples(x).std(1)))
    x = ((x - mean) / std + far).float().contiguous(memory_format=memory_format)
    dy = correlated(shape, 1).float().contiguous(memory_format=memory_format)
    assert max(compare_with_float64(x, dy)) <= (1e-5 if far < 100 else 1e-4)


def test_one_far_channel_does_not_hurt_the_others():
    x = correlated((96, 32, 16, 16)).float()
    x[:, 5] += 1e4
    assert max(compare_with_float64(x, correlated(x.shape, 1).float())) <= 1e-3


@pytest.mark.parametrize("whitening", ["zca", "cholesky"])
@pytest.mark.parametrize("shape", [(4096, 16), (16, 16, 16, 16)], ids=["NC", "NCHW"])
def test_float32_survives_channels_of_very_different_scale(whitening, shape):
    scale = torch.logspace(-3, 3, 16, dtype=torch.float64).view(-1, *[1] * (len(shape) - 2))
    x = (correlated(shape) * scale).float()
    errors = compare_with_float64(x, correlated(shape, 1).float(), eps=1e-9, whitening=whitening)
    assert max(errors) <= 1e-3


def test_float32_gradients_survive_nearly_equal_eigenvalues():
    """64 channels, eigenvalues 1e-6 apart: the usual formula is off by per cents in float32."""
    k, m = 64, 4096
    generator = torch.Generator().manual_seed(0)
    Q, _ = torch.linalg.qr(torch.randn(k, k, generator=generator, dtype=torch.float64))
    x, _ = torch.linalg.qr(
        correlated((m, k)) - correlated((m, k)).mean(0), mode="reduced"
    )  # orthonormal columns of mean zero
    eigenvalues = 1 + 1e-6 * torch.arange(k, dtype=torch.float64)
    x = (m**0.5 * x * eigenvalues.sqrt() @ Q.T).float()
    dy = correlated((m, k), 1).float()
    _, gradient = forward_backward(x, dy, group_size=k)
    expected = reference.dbn_gradient(x.double(), dy.double(), k, 1e-5)
    assert (gradient - expected).norm() / expected.norm() <= 1e-5


def test_nearly_singular_groups_are_whitened_as_float64_would():
    """Eigenvalues near eps under one near 16: float32 algebra knows them to 15% only."""
    common = correlated((16384, 16), 3)[:, :1]
    x = (common / common.std() + 3e-3 * correlated((16384, 16), 4)).float()
    dy = correlated((16384, 16), 1).float()
    assert max(compare_with_float64(x, dy, group_size=16)) <= 1.5e-2


@pytest.mark.parametrize("far", [slice(0, 16), slice(16, 20)], ids=["whole groups", "remainder"])
@pytest.mark.parametrize("shape", [(8, 20, 4, 4), (96, 20, 16, 16)], ids=["few", "many"])
def test_some_groups_may_be_far_and_others_not(shape, far):
    x = correlated(shape).float()
    x = x - samples(x).mean(1).view(-1, 1, 1).float()
    x[:, far] += 1e3
    assert max(compare_with_float64(x, correlated(shape, 1).float())) <= 1e-3


def batch_norm_error(x):
    """The relative error of torch's own BatchNorm on x, in the dtype of x."""
    layer = torch.nn.BatchNorm2d if x.dim() == 4 else torch.nn.BatchNorm1d
    y = layer(x.shape[1], dtype=x.dtype)(x)
    exact = samples(x.double())
    exact = exact - exact.mean(1, keepdim=True)
    exact = exact - exact.mean(1, keepdim=True)
    expected = exact / (exact.square().mean(1, keepdim=True) + 1e-5).sqrt()
    return ((samples(y.detach()) - expected).norm(dim=1) / expected.norm(dim=1)).max().item()


@pytest.mark.parametrize("shape", [(64, 8), (8, 8, 6, 6), (64, 16, 24, 24)], ids=str)
@pytest.mark.parametrize("far", [1e3, 1e5, 1e6])
def test_float64_is_as_good_as_batch_norm_wherever_the_mean_is(shape, far):
    x = correlated(shape) + far
    y, gradient = forward_backward(x, correlated(shape, 1), group_size=8)
    centred = x - samples(x).mean(1).view(-1, *[1] * (x.dim() - 2))
    expected, dx = forward_backward(centred, correlated(shape, 1), group_size=8)
    errors = worst_channel(y, expected), worst_channel(gradient, dx)
    assert max(errors) <= 100 * max(batch_norm_error(x), 1e-12)


@pytest.mark.parametrize("shape", [(64, 8), (8, 8, 6, 6), (64, 16, 24, 24)], ids=str)
@pytest.mark.parametrize("far", [1e3, 1e5])
def test_float32_is_accurate_with_few_samples_and_a_far_mean(shape, far):
    x = (correlated(shape) + far).float()
    assert max(compare_with_float64(x, correlated(shape, 1).float(), group_size=8)) <= 1e-3


@pytest.mark.parametrize("shape", [(2, 8, 1024, 1024), (4, 12, 400, 400)], ids=str)
def test_float32_is_accurate_on_large_maps(shape):
    """Sums over a million positions of an image, at a condition number of 1e4."""
    k = shape[1]
    generator = torch.Generator().manual_seed(0)
    Q, _ = torch.linalg.qr(torch.randn(k, k, generator=generator))
    mixing = Q @ torch.diag(torch.logspace(0, -2, k)) @ Q.T
    x = torch.einsum("ij,njhw->nihw", mixing, torch.randn(shape, generator=generator))
    dy = torch.randn(shape, generator=generator)
    assert max(compare_with_float64(x, dy, group_size=k)) <= 1e-3


@pytest.mark.parametrize("shape", [(8, 8, 4, 4), (64, 16, 32, 32)], ids=["few", "many"])
@pytest.mark.parametrize("scale", [1e18, 1e19, 1e25])
def test_values_whose_squares_are_too_large_for_float32_are_whitened(shape, scale):
    x, dy = correlated(shape), correlated(shape, 1)
    y, gradient = forward_backward((scale * x).float(), dy, group_size=8)
    expected, _ = forward_backward(x, dy, group_size=8, eps=0.0)
    assert worst_channel(y, expected) <= 1e-4
    assert gradient.isfinite().all()


FINITE = {
    "zeros": torch.zeros(8, 6, 2, 2),
    "constants": torch.arange(6.0).view(1, 6, 1, 1).expand(8, 6, 2, 2),
    "one sample repeated": correlated((1, 6, 1, 1), dtype=torch.float32).expand(8, 6, 2, 2),
    "one sample repeated, large": 1e8
    * correlated((1, 6, 1, 1), dtype=torch.float32).expand(8, 6, 2, 2),
    "fewer samples than channels": correlated((3, 6, 1, 1), dtype=torch.float32),
    "two samples": correlated((2, 6, 1, 1), dtype=torch.float32),
    "around 1e15": 1e15 * correlated((8, 6, 2, 2), dtype=torch.float32),
    "around 1e-15": 1e-15 * correlated((8, 6, 2, 2), dtype=torch.float32),
    "duplicates around 1e15": 1e15
    * correlated((8, 2, 2, 2), dtype=torch.float32).repeat(1, 3, 1, 1),
    "1e15 beside 1e-15": torch.cat(
        [
            1e15 * correlated((8, 3, 2, 2), dtype=torch.float32),
            1e-15 * correlated((8, 3, 2, 2), 1, dtype=torch.float32),
        ],
        1,
    ),
    "a channel constant at 1e15": torch.cat(
        [correlated((8, 5, 2, 2), dtype=torch.float32), torch.full((8, 1, 2, 2), 1e15)], 1
    ),
}


@pytest.mark.parametrize("x", list(FINITE.values()), ids=list(FINITE))
@pytest.mark.parametrize("whitening", WHITENINGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_finite_inputs_give_finite_outputs_and_gradients(x, whitening, dtype):
    y, gradient = forward_backward(x.to(dtype), correlated(x.shape, 1), whitening=whitening)
    assert y.isfinite().all()
    if whitening in TIE_FREE:  # PCA has no derivative at equal eigenvalues
        assert gradient.isfinite().all()


@pytest.mark.parametrize("whitening", WHITENINGS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("running", ["whitening", "covariance"])
@pytest.mark.parametrize("affine", [True, "matrix"], ids=["scale", "matrix"])
@pytest.mark.parametrize(
    ("memory_format", "rounding"),  # channels last, neighbours are multiplied together if finite
    [(torch.contiguous_format, 0), (torch.channels_last, 1e-6)],
    ids=["maps", "channels last"],
)
def test_a_batch_with_nan_or_inf_spoils_only_its_groups(
    whitening, bad, running, affine, memory_format, rounding
):
    options = {"group_size": 4, "whitening": whitening, "running": running}
    layer = DecorrelatedBatchNorm2d(10, affine=affine, **options)
    x = correlated((8, 10, 3, 3), dtype=torch.float32).contiguous(memory_format=memory_format)
    layer(x)
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    expected = layer(x)
    for name, buffer in layer.named_buffers():
        buffer.copy_(before[name])
    x[2, 5, 1, 1] = bad
    x.requires_grad_()
    y = layer(x)
    y.backward(torch.ones_like(y))
    assert y[:, 4:8].isnan().all()
    for others in (slice(4), slice(8, 10)):
        torch.testing.assert_close(y[:, others], expected[:, others], rtol=0, atol=rounding)
    assert x.grad[:, :4].isfinite().all()
    for name, buffer in layer.named_buffers():
        assert torch.equal(buffer, before[name]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("affine", [True, "matrix"], ids=["scale", "matrix"])
def test_half_precision_has_float32_statistics_and_its_own_dtype(
    dtype, training, memory_format, affine
):
    layer = DecorrelatedBatchNorm2d(32, affine=affine)
    with torch.no_grad():
        if affine == "matrix":
            layer.weight.add_(colouring(32, 16) / 4)
        layer.bias.fill_(5.0)  # so that rounding before it is added would show
    x = correlated((16, 32, 8, 8)).to(dtype).contiguous(memory_format=memory_format)
    layer(x.float())
    layer.train(training)
    dy = correlated(x.shape, 1).to(dtype)
    half, single = x.clone().requires_grad_(), x.float().requires_grad_()
    y = layer(half)
    assert y.dtype == dtype
    y.backward(dy)
    expected = layer(single)
    expected.backward(dy.float())
    assert half.grad.dtype == dtype
    # Not more than the rounding of the result itself: the inside is float32.
    assert (y != expected.to(dtype)).float().mean() <= 1e-3
    assert worst_channel(y, expected) <= torch.finfo(dtype).eps
    assert worst_channel(half.grad, single.grad) <= torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("affine", [True, "matrix"], ids=["scale", "matrix"])
def test_autocast_leaves_statistics_and_whitening_in_float32(dtype, training, affine):
    layer = DecorrelatedBatchNorm2d(32, affine=affine)
    torch.nn.init.normal_(layer.weight)
    x = correlated((16, 32, 8, 8), dtype=torch.float32).requires_grad_()
    layer(x)
    expected = layer.train(training)(x)
    with torch.autocast("cpu", dtype=dtype):
        y = layer(x)
        assert torch.equal(y, expected)
        if training:  # where backward inside autocast is float32 too
            (gradient,) = torch.autograd.grad(y.square().sum(), x)
        convolved = torch.nn.functional.conv2d(x, torch.ones(32, 32, 1, 1))
        assert layer(convolved).dtype == convolved.dtype == dtype
    if training:
        (expected_gradient,) = torch.autograd.grad(expected.square().sum(), x)
        torch.testing.assert_close(gradient, expected_gradient)


def test_a_model_moved_to_half_precision_works():
    layer = DecorrelatedBatchNorm2d(32).bfloat16()
    x = correlated((16, 32, 8, 8)).bfloat16()
    assert layer(x).dtype == torch.bfloat16
    assert layer.running_mean.dtype == torch.bfloat16
    assert layer.running_covariance.dtype == torch.float32
    assert layer.eval()(x).dtype == torch.bfloat16


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_parameters_may_be_more_precise_than_the_input(training):
    layer = DecorrelatedBatchNorm2d(32).double().train(training)
    x = correlated((16, 32, 8, 8), dtype=torch.float32).requires_grad_()
    y = layer(x)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == torch.float32
    assert layer.weight.grad.dtype == torch.float64


# --- eps = 0 ------------------------------------------------------------------------------------

SINGULAR = ["a channel of zero variance", "duplicated channels", "fewer samples than channels"]
EXACT = tuple(name for name in WHITENINGS if name != "newton")  # which stops before it divides
says_what_to_do = pytest.raises(ValueError, match=r"eps=0 .* singular .* eps > 0")


@pytest.mark.filterwarnings("ignore:a batch of 3 samples")
@pytest.mark.parametrize("case", SINGULAR)
@pytest.mark.parametrize("whitening", EXACT)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_singular_batch_is_an_error_where_eps_is_0(case, whitening, dtype):
    x = HARD[case].to(dtype)
    layer = DecorrelatedBatchNorm1d(4, eps=0.0, whitening=whitening, dtype=dtype, shrinkage=0.0)
    before = state(layer)
    with says_what_to_do:
        layer(x)
    assert_same_state(before, layer)
    with says_what_to_do:
        whitening_matrix(covariance(x).to(dtype), eps=0.0, whitening=whitening)
    assert layer(correlated((64, 4), dtype=dtype)).isfinite().all()


@pytest.mark.parametrize(
    "options",
    [{"group_size": 1}, {"shrinkage": 1.0}, {"shrinkage": "auto"}, {"shrinkage": "bounded"}],
    ids=str,
)
def test_with_shrinkage_eps_0_minds_only_channels_that_are_constant(options):
    layer = DecorrelatedBatchNorm1d(4, eps=0.0, **options)
    with says_what_to_do:
        layer(HARD["a channel of zero variance"].float())
    assert layer(HARD["duplicated channels"].float()).isfinite().all()
    scales = torch.tensor([1.0, 1e-3, 1e3, 1e-2])
    assert layer(correlated((64, 4), dtype=torch.float32) * scales).isfinite().all()


@pytest.mark.parametrize("whitening", WHITENINGS)
def test_channels_of_very_different_scale_are_not_singular(whitening):
    scales = torch.tensor([1.0, 1e-2, 1e2, 1e-1], dtype=torch.float64)
    options = {"whitening": whitening, "iterations": 60, "shrinkage": 0.0}
    layer = DecorrelatedBatchNorm1d(4, eps=0.0, **options, dtype=torch.float64)
    y = layer(correlated((64, 4)) * scales)
    torch.testing.assert_close(covariance(y), torch.eye(4).double(), rtol=1e-4, atol=1e-4)


def test_a_batch_that_is_not_finite_gives_nan_with_eps_0_too():
    layer = DecorrelatedBatchNorm1d(4, eps=0.0)
    assert layer(torch.full((8, 4), torch.nan)).isnan().all()


def test_a_singular_running_covariance_is_an_error_in_evaluation_where_eps_is_0():
    layer = DecorrelatedBatchNorm1d(4, eps=0.0, running="covariance", dtype=torch.float64)
    layer.running_covariance.copy_(covariance(HARD["duplicated channels"]))
    with says_what_to_do:
        layer.eval()
