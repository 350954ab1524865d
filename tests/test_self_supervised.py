"""Whitening of embeddings, and W-MSE: the published loss, in one process or several."""

from itertools import combinations

import pytest
import replica_jobs as jobs
import torch
from cases import TIE_FREE, WHITENINGS, correlated, covariance
from replicas import run_replicas

from whitenorm import decorrelated_batch_norm, whiten, whitening_mse


def assert_close(found, expected, tolerance=1e-10):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def identity(size):
    return torch.eye(size, dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def published_loss(views, cuts, w_eps=0.0):
    """W-MSE as its authors compute it: a loop over cuts, slices, views and pairs.

    Unbiased covariance, mixed with w_eps of the identity, inverse of its Cholesky factor.
    """
    total = 0
    for cut in cuts:
        whitened = [torch.zeros_like(view) for view in views]
        for rows in cut:
            for view, out in zip(views, whitened, strict=True):
                centred = view[rows] - view[rows].mean(0)
                S = centred.T @ centred / (len(rows) - 1)
                S = (1 - w_eps) * S + w_eps * identity(view.shape[1])
                out[rows] = centred @ torch.linalg.cholesky(S).inverse().T
        unit = [out / out.norm(dim=1, keepdim=True) for out in whitened]
        pairs = [(2 - 2 * (a * b).sum(1)).mean() for a, b in combinations(unit, 2)]
        total = total + sum(pairs) / len(pairs)
    return total / len(cuts)


def two_views(n=24, d=5, number=2):
    """Views of the same examples: what they share, and noise of each."""
    shared = correlated((n, d))
    return [
        (shared + 0.3 * correlated((n, d), seed)).requires_grad_() for seed in range(1, number + 1)
    ]


@pytest.mark.parametrize("w_eps", [0.0, 0.2])
@pytest.mark.parametrize(("slices", "repeats"), [(1, 1), (2, 1), (3, 4)])
@pytest.mark.parametrize("number", [2, 4])
def test_the_loss_and_its_gradients_are_the_published_ones(w_eps, slices, repeats, number):
    views = two_views(number=number)
    m = 24 // slices
    drawn = generator()
    cuts = [torch.randperm(24, generator=drawn).view(slices, m) for _ in range(repeats)]
    expected = published_loss(views, cuts, w_eps)
    eps = w_eps * (m - 1) / (m - w_eps * m)
    found = whitening_mse(*views, eps=eps, slices=slices, repeats=repeats, generator=generator())
    assert_close(found, expected)
    for a, b in zip(
        torch.autograd.grad(found, views), torch.autograd.grad(expected, views), strict=True
    ):
        assert_close(a, b, 1e-8)


@pytest.mark.parametrize("whitening", TIE_FREE)
def test_gradients_pass_gradcheck(whitening):
    def loss(*views):
        options = {"slices": 2, "group_size": 3, "shrinkage": 0.2}
        return whitening_mse(*views, whitening=whitening, generator=generator(), **options)

    assert torch.autograd.gradcheck(loss, two_views(12, 4))
    assert torch.autograd.gradgradcheck(loss, two_views(8, 3))


def test_equal_views_cost_nothing_and_unrelated_ones_about_two():
    z = correlated((4000, 5))
    assert_close(whitening_mse(z, z, z), torch.zeros((), dtype=torch.float64))
    assert abs(whitening_mse(z, correlated((4000, 5), 1)) - 2) < 0.1


def test_collapse_is_not_rewarded():
    """Without whitening, embeddings that hardly vary would have a loss near zero."""
    noise = [correlated((64, 5), seed) for seed in (1, 2)]
    collapsed = [(1 + 1e-3 * n).requires_grad_() for n in noise]
    assert whitening_mse(*collapsed, eps=1e-12) > 1.5
    constant = [torch.ones(64, 5, requires_grad=True) for _ in range(2)]
    loss = whitening_mse(*constant)
    assert loss == 2
    for grad in torch.autograd.grad(loss, constant):
        assert grad.isfinite().all()


@pytest.mark.parametrize("whitening", WHITENINGS)
def test_whitened_features_are_uncorrelated_over_samples(whitening):
    y = whiten(correlated((40, 6)), whitening=whitening, eps=0.0, iterations=40)
    assert_close(y.mean(0), torch.zeros(6, dtype=torch.float64))
    assert_close(covariance(y), identity(6))


def test_whitened_samples_are_uncorrelated_over_features():
    x = correlated((5, 40))
    y = whiten(x, axis=0, eps=0.0)
    assert_close(y, whiten(x.T, eps=0.0).T)
    assert_close(y @ y.T / 40, identity(5))
    assert_close(whiten(x, axis=-2, eps=0.0), y)
    y = whiten(x, axis=0, group_size=2, slices=4, generator=generator())
    assert_close(y, whiten(x.T, group_size=2, slices=4, generator=generator()).T)


def test_each_slice_is_whitened_by_itself_and_samples_keep_their_places():
    x = correlated((40, 4))
    y = whiten(x, slices=4, eps=0.0, generator=generator())
    for rows in torch.randperm(40, generator=generator()).view(4, 10):
        assert_close(y[rows], whiten(x[rows], eps=0.0))
    assert not torch.equal(y, whiten(x, slices=4, eps=0.0, generator=generator(1)))


def test_groups_of_features_are_whitened_by_themselves():
    x = correlated((40, 7))
    y = whiten(x, group_size=3, slices=2, generator=generator())
    order = torch.randperm(40, generator=generator())
    for rows in order.view(2, 20):
        expected = decorrelated_batch_norm(
            x[rows], training=True, group_size=3, whitening="cholesky"
        )
        assert_close(y[rows], expected)


def test_shuffled_groups_are_random_and_features_keep_their_places():
    x = correlated((40, 7))
    y = whiten(x, group_size=3, shuffle_groups=True, generator=generator())
    order = torch.randperm(7, generator=generator())
    assert_close(y[:, order], whiten(x[:, order], group_size=3))
    assert not torch.allclose(y, whiten(x, group_size=3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_digits_that_it_has(dtype):
    views = [view.detach().to(dtype).requires_grad_() for view in two_views(64, 8)]
    exact = [view.detach().double().requires_grad_() for view in views]
    loss, expected = whitening_mse(*views), whitening_mse(*exact)
    assert loss.dtype == torch.float32
    assert_close(loss.double(), expected, 1e-5)
    tolerance = 4 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5
    for a, b in zip(
        torch.autograd.grad(loss, views), torch.autograd.grad(expected, exact), strict=True
    ):
        assert a.dtype == dtype
        assert (a.double() - b).abs().max() < tolerance * b.abs().max()
    assert whiten(views[0]).dtype == dtype


def test_autocast_costs_no_digits():
    views = [view.detach().float() for view in two_views(64, 8)]
    expected = whitening_mse(*views), whiten(views[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(whitening_mse(*views), expected[0])
        assert torch.equal(whiten(views[0]), expected[1])


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("options", [{}, {"slices": 3, "repeats": 2}], ids=str)
def test_the_loss_compiles(options):
    torch.compiler.reset()
    views = two_views()
    compiled = torch.compile(whitening_mse, fullgraph=True, backend="aot_eager")
    losses = []
    for function in (whitening_mse, compiled):
        torch.manual_seed(0)
        loss = function(*views, **options)
        losses.append((loss, *torch.autograd.grad(loss, views)))
    for a, b in zip(*losses, strict=True):
        if options:  # a compiled permutation may be another one
            assert a.shape == b.shape
            assert b.isfinite().all()
        else:
            assert_close(a, b)


# --- replicas ------------------------------------------------------------------------------------


CASES = {
    "the whole batch": ([6, 8, 10], 1),
    "two slices": ([6, 6, 12], 2),
    "a replica without examples": ([0, 18, 6], 2),
}


@pytest.fixture(scope="module")
def replicas():
    return run_replicas(jobs.self_supervised, 3, CASES)


@pytest.mark.parametrize("case", CASES)
def test_the_loss_of_replicas_is_that_of_one_process_on_the_joint_batch(replicas, case):
    """A slice of the joint batch is one slice of each replica."""
    sizes, slices = CASES[case]
    results = [result[case] for result in replicas]
    views = [torch.cat(parts).requires_grad_() for parts in jobs.view_parts(sizes)]
    starts = torch.tensor([0, *sizes]).cumsum(0)
    cuts = []
    for i in range(2 if slices > 1 else 1):
        own = [
            start + result["orders"][i].view(slices, -1)
            for start, result in zip(starts, results, strict=False)
        ]
        cuts.append(torch.cat(own, 1))
    expected = published_loss(views, cuts)
    gradients = torch.autograd.grad(expected, views)
    for result in results:
        assert_close(result["loss"], expected.detach())
    for i, gradient in enumerate(gradients):
        found = torch.cat([result["gradients"][i] for result in results]) / len(sizes)
        assert_close(found, gradient, 1e-8)
    encoder = jobs.encoder()
    loss = whitening_mse(*[encoder(view) for view in views], eps=0.0)
    expected = torch.autograd.grad(loss, encoder.weight)[0]
    for result in results:
        assert_close(result["averaged by DDP"], expected, 1e-8)


def test_replicas_whiten_the_joint_batch_in_the_same_shuffled_groups(replicas):
    order = torch.randperm(7, generator=generator(0))  # the first replica's
    x = torch.cat(jobs.embeddings([5, 11, 0]))
    expected = whiten(x[:, order], group_size=3)[:, order.argsort()]
    assert_close(torch.cat([result["whitened"] for result in replicas]), expected)


# --- errors --------------------------------------------------------------------------------------

Z = correlated((24, 5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: whiten(Z, axis=2), "axis must be 0 or 1, got 2"),
        (lambda: whiten(Z[0]), r"embeddings of shape \(N, D\) .* got shape \(5,\)"),
        (lambda: whiten(Z[:, :0]), r"got shape \(24, 0\)"),
        (lambda: whiten(Z.int()), "and torch.int32"),
        (lambda: whiten(Z, slices=0), "slices must be a positive integer, got 0"),
        (lambda: whiten(Z, slices=5), "24 samples can't be cut into 5 equal slices"),
        (lambda: whiten(Z, slices=24), "24 samples in 24 slices are 1 in each"),
        (lambda: whiten(Z[:1]), "a slice needs 2 samples or more"),
        (lambda: whiten(Z[:0]), "a slice needs 2 samples or more"),
        (lambda: whiten(Z, group_size=0), "group_size must be a positive integer, got 0"),
        (lambda: whiten(Z, whitening="svd"), "whitening must be one of"),
        (lambda: whiten(Z, axis=0, process_group=object()), "use axis=1"),
        (lambda: whitening_mse(Z), "give two or more, got 1"),
        (lambda: whitening_mse(Z, Z[:12]), r"got \(24, 5\) and \(12, 5\)"),
        (lambda: whitening_mse(Z, Z, repeats=0), "repeats must be a positive integer, got 0"),
        (lambda: whitening_mse(Z, Z, slices=5), "24 samples can't be cut into 5 equal slices"),
    ],
)
def test_what_cannot_be_whitened_is_an_error_that_says_why(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("function", [whiten, lambda z, **o: whitening_mse(z, z + 1, **o)])
def test_a_slice_of_too_few_samples_warns_unless_shrinkage_is_used(function):
    z = Z.clone().requires_grad_()
    message = "4 samples in a slice cannot show how 5 features vary"
    with pytest.warns(UserWarning, match=message) as warned:
        y = function(z, slices=6)
    assert warned[0].filename == __file__
    assert torch.autograd.grad(y.sum(), z)[0].isfinite().all()
    function(z, slices=6, shrinkage="auto")
    function(z, slices=6, group_size=3)
