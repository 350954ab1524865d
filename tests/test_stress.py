"""Random layers and batches against plain float64: no error is larger than the docs promise."""

from dataclasses import replace

import pytest
import reference
import stress
import torch
from cases import correlated

pytestmark = pytest.mark.filterwarnings("ignore:a batch of .* samples a channel cannot show")


def assert_promise_is_kept(cases, record_property):
    outcomes = [stress.outcome(case) for case in cases]
    for dtype in stress.PROMISES:
        found = [outcome for outcome in outcomes if outcome.case.dtype == dtype]
        worst = max(found, key=lambda outcome: outcome.error)
        record_property(f"largest error of {len(found)} cases in {dtype}", str(worst))
    broken = [str(outcome) for outcome in outcomes if not outcome.kept]
    assert not broken, "\n".join(broken)


def test_a_hundred_random_cases_are_as_exact_as_promised(record_property):
    assert_promise_is_kept([stress.draw(seed) for seed in range(0, 1000, 10)], record_property)


@pytest.mark.slow
def test_a_thousand_random_cases_are_as_exact_as_promised(record_property):
    assert_promise_is_kept([stress.draw(seed) for seed in range(1000)], record_property)


ILL_CONDITIONED = replace(
    stress.draw(611),
    parameters=torch.float32,
    layout="contiguous",
    gradient_layout="contiguous",
    whitening="zca",
    eps=1e-8,
    momentum=0.1,
    running="whitening",
    scale=0.2,
    rotated=True,
    shrinkage=0.0,
)


@pytest.mark.parametrize(
    ("shape", "group_size", "dtype", "condition", "far"),
    [
        ((60000, 4, 2, 2), 4, torch.float32, 9.9e3, 3.9),
        ((200000, 2), 2, torch.float32, 9.9e3, 3.9),
        ((40000, 8), 8, torch.float32, 9.9e3, 3.9),
        ((66090, 8), 8, torch.float32, 2e3, 1e5),
        ((200000, 2), 2, torch.bfloat16, 9.9e3, 3.9),
        ((262144, 4), 4, torch.float32, 9.9e3, 3.9),
        ((40000, 8), 8, torch.bfloat16, 9.9e3, 3.9),
        ((40000, 8), 8, torch.float16, 9.9e3, 3.9),
    ],
    ids=str,
)
def test_long_sums_over_few_channels_lose_no_digits(shape, group_size, dtype, condition, far):
    case = replace(
        ILL_CONDITIONED,
        shape=shape,
        group_size=group_size,
        dtype=dtype,
        condition=condition,
        far=far,
    )
    found = stress.outcome(case)
    assert found.kept, str(found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("running", ["whitening", "covariance"])
def test_a_half_precision_layer_scales_in_float32_in_evaluation(dtype, running):
    """What cancels in W (x - mean) must not be rounded to half precision before."""
    case = replace(
        ILL_CONDITIONED,
        shape=(256, 16, 4, 4),
        group_size=16,
        dtype=dtype,
        parameters=dtype,
        affine=True,
        momentum=1.0,
        running=running,
        condition=1e4,
        far=0.0,
    )
    errors = stress.outcome(case).errors
    for name in ("output in evaluation", "weight gradient in evaluation"):
        assert errors[name] <= torch.finfo(dtype).eps, name


@pytest.mark.parametrize("shape", [(64, 6), (5, 6, 7, 3)], ids=str)
def test_what_is_expected_is_what_the_papers_algorithms_give(shape):
    x, dy = correlated(shape).requires_grad_(), correlated(shape, 1)
    y, mean, _, W = stress.whitened(x, 1e-5, "zca")
    (gradient,) = torch.autograd.grad(y, x, dy)
    expected, expected_mean, matrices = reference.dbn(x.detach(), 6, 1e-5)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(mean, expected_mean)
    torch.testing.assert_close(W, matrices[0])
    torch.testing.assert_close(gradient, reference.dbn_gradient(x.detach(), dy, 6, 1e-5))


def test_the_draw_holds_every_kind_of_case():
    cases = [stress.draw(seed) for seed in range(0, 1000, 10)]
    assert {len(case.shape) for case in cases} == {2, 3, 4, 5}
    assert {case.dtype for case in cases} == set(stress.PROMISES)
    assert {case.layout for case in cases} == set(stress.LAYOUTS)
    assert {case.whitening for case in cases} == set(stress.MATRICES)
    assert {case.shrinkage for case in cases} == {0.0, 0.3, "auto"}
    assert {case.affine for case in cases} == {True, False, "matrix"}
    assert any(case.shape[1] % case.group_size and case.group_size > 1 for case in cases)
    assert max(torch.Size(case.shape).numel() for case in cases) > 2**20
    assert min(torch.Size(case.shape).numel() / case.shape[1] for case in cases) == 2
