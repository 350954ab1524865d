"""Shrinkage: from the paper's whitening to BatchNorm, and an estimate of how far to go."""

import pytest
import torch
from cases import HARD, TIE_FREE, correlated, covariance
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from whitenorm import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, decorrelated_batch_norm
from whitenorm import whitening_matrix as whitening_of
from whitenorm.shrinkage import kept_share, shrink


def train(x, **options):
    return decorrelated_batch_norm(x, training=True, **options)


def estimate(x):
    """Schaefer and Strimmer's r of samples (m, k), from torch's own correlations."""
    squared = torch.corrcoef(x.T)[~torch.eye(x.shape[1], dtype=torch.bool)] ** 2
    r = ((1 - squared) ** 2).sum() / (len(x) - 1) / squared.sum()
    return min(1.0, float(r))


@pytest.mark.parametrize("whitening", TIE_FREE)
@pytest.mark.parametrize("shrinkage", [0.3, "auto", "bounded"])
def test_the_output_is_whitened_by_the_covariance_drawn_to_its_diagonal(whitening, shrinkage):
    x = correlated((40, 5))
    r = shrinkage if isinstance(shrinkage, float) else max(estimate(x), 0.05)
    assert 0 < r < 1
    S = covariance(x)
    W = whitening_of((1 - r) * S + r * torch.diag(S.diagonal()), 1e-12, whitening)
    expected = (x - x.mean(0)) @ W.T
    y = train(x, shrinkage=shrinkage, whitening=whitening, eps=1e-12)
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("shape", [(64, 10), (8, 10, 5, 3)])
def test_full_shrinkage_is_batch_norm_in_training_and_inference(shape):
    x = correlated(shape)
    batch_norm = (nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d)(10).double()
    layer = DecorrelatedBatchNorm1d if len(shape) == 2 else DecorrelatedBatchNorm2d
    layer = layer(10, group_size=4, shrinkage=1, running="covariance").double()
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    for norm, each in ((batch_norm, a), (layer, b)):
        norm(each).pow(3).sum().backward()
    torch.testing.assert_close(b.grad, a.grad)
    torch.testing.assert_close(layer.eval()(x), batch_norm.eval()(x))


def test_no_shrinkage_is_the_paper():
    x = correlated((40, 6))
    assert torch.equal(train(x, shrinkage=0.0), train(x))
    assert torch.equal(train(x, shrinkage=0), train(x))


@pytest.mark.parametrize("samples", [5, 20, 300])
def test_the_estimate_is_the_published_formula(samples):
    x = correlated((samples, 6))
    r = 1 - kept_share(covariance(x).unsqueeze(0), 0.0, "auto", samples)
    torch.testing.assert_close(float(r), estimate(x))


def test_the_estimate_tends_to_0_with_samples_and_to_1_without_correlations():
    generator = torch.Generator().manual_seed(0)

    def kept(x):
        S = covariance(x).unsqueeze(0)
        return float(kept_share(S, 1e-5, "auto", x.shape[0]))

    many = torch.randn(100_000, 6, generator=generator, dtype=torch.float64)
    assert kept(many.cumsum(1)) > 0.999
    few = torch.randn(50, 32, generator=generator, dtype=torch.float64)
    assert kept(few) < 0.1


def test_the_bounded_estimate_is_at_least_a_twentieth():
    many, few = correlated((5000, 6)).cumsum(1), correlated((9, 6))
    assert estimate(many) < 0.05 < estimate(few) < 1
    for x, r in ((many, 0.05), (few, estimate(few))):
        kept = kept_share(covariance(x).unsqueeze(0), 0.0, "bounded", len(x))
        torch.testing.assert_close(float(kept), 1 - r)


def test_the_bounded_estimate_bounds_the_gain_however_many_samples():
    """32 channels from 9 inputs: without it, directions of no variance are amplified 316 times."""
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(9, 32, generator=generator, dtype=torch.float64)
    x = torch.randn(10_000, 9, generator=generator, dtype=torch.float64) @ mixing
    S = covariance(x / x.std(0)).unsqueeze(0)
    gains = [
        torch.linalg.matrix_norm(whitening_of(shrink(S, kept_share(S, 1e-5, how, 10_000))), 2)
        for how in (0.0, "bounded")
    ]
    assert gains[0] > 300
    assert gains[1] < 4.6


def test_each_group_has_an_estimate_of_its_own():
    noise, chain = torch.randn(60, 4).double(), correlated((60, 4)).cumsum(1)
    both = train(torch.cat([noise, chain], 1), group_size=4, shrinkage="auto")
    alone = [train(part, group_size=4, shrinkage="auto") for part in (noise, chain)]
    torch.testing.assert_close(both, torch.cat(alone, 1))


@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("whitening", TIE_FREE)
def test_gradients_of_any_order_are_exact_for_a_given_shrinkage(case, whitening):
    x = HARD[case].clone().requires_grad_()

    def whitened(x):
        return train(x, shrinkage=0.3, whitening=whitening, eps=1e-2)

    assert gradcheck(whitened, x)
    assert gradgradcheck(whitened, x)


@pytest.mark.parametrize("create_graph", [False, True])
def test_the_estimate_counts_as_a_constant_in_the_derivative(create_graph):
    x, dy = correlated((12, 5)).requires_grad_(), correlated((12, 5), seed=1)
    constant = estimate(x.detach())
    expected = torch.autograd.grad(train(x, shrinkage=constant, eps=1e-12), x, dy)
    y = train(x, shrinkage="auto", eps=1e-12)
    found = torch.autograd.grad(y, x, dy, create_graph=create_graph)
    torch.testing.assert_close(found[0].detach(), expected[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", HARD)
def test_automatic_shrinkage_is_finite_on_hard_data(case, dtype):
    x = HARD[case].to(dtype, copy=True).requires_grad_()
    y = train(x, shrinkage="auto")
    y.float().pow(3).sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


def test_a_batch_smaller_than_a_group_has_a_bounded_gain():
    """Without shrinkage, directions that the batch doesn't show are blown up to 1 / sqrt(eps)."""
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)).double()
    gains = {}
    for shrinkage in (0.0, "auto"):
        S = covariance(x).unsqueeze(0)
        W = whitening_of(shrink(S, kept_share(S, 1e-5, shrinkage, 8)))
        gains[shrinkage] = torch.linalg.matrix_norm(W, 2).item()
    assert gains[0.0] > 300
    assert gains["auto"] < 5


def test_the_running_covariance_is_what_was_whitened():
    """So that inference shrinks as training did."""
    x = correlated((24, 6))
    layer = DecorrelatedBatchNorm1d(6, momentum=1.0, running="covariance", shrinkage="auto")
    layer.double()(x)
    S, r = x.T.cov(), estimate(x)
    expected = (1 - r) * S + r * torch.diag(S.diagonal())
    torch.testing.assert_close(layer.running_covariance[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shrinkage", [-0.1, 1.1, "all", None, float("nan")])
def test_what_is_no_shrinkage_is_refused(shrinkage):
    with pytest.raises(ValueError, match=r"'auto', 'bounded' or a number from 0 to 1, got"):
        DecorrelatedBatchNorm1d(4, shrinkage=shrinkage)
