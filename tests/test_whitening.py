"""The map from covariances to whitening matrices, and its derivatives."""

import pytest
import torch
from cases import TIE_FREE, WHITENINGS, correlated, covariance
from torch.autograd import gradcheck, gradgradcheck

from whitenorm import whitening_matrix


def spd(*eigenvalues, seed=0):
    """A symmetric positive definite matrix with these eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    k = len(eigenvalues)
    Q, _ = torch.linalg.qr(torch.randn(k, k, generator=generator, dtype=torch.float64))
    return Q @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ Q.T


@pytest.mark.parametrize("whitening", WHITENINGS)
def test_whitens(whitening):
    S = torch.stack([spd(4, 2, 1, 0.5), spd(9, 3, 3, 0.1, seed=1)])
    W = whitening_matrix(S, eps=0.0, whitening=whitening, iterations=40)
    torch.testing.assert_close(W @ S @ W.mT, torch.eye(4, dtype=S.dtype).expand(2, 4, 4))


@pytest.mark.parametrize("whitening", WHITENINGS)
def test_eps_is_added_to_the_diagonal_once(whitening):
    S, eps = spd(4, 2, 1), 0.25
    with_eps = whitening_matrix(S, eps, whitening, 40)
    by_hand = whitening_matrix(S + eps * torch.eye(3, dtype=S.dtype), 0.0, whitening, 40)
    torch.testing.assert_close(with_eps, by_hand)


def test_zca_is_the_symmetric_positive_square_root():
    S = spd(4, 2, 1)
    W = whitening_matrix(S, eps=0.0)
    torch.testing.assert_close(W, W.mT)
    torch.testing.assert_close(torch.linalg.inv(W @ W), S)
    assert (torch.linalg.eigvalsh(W) > 0).all()


def test_pca_orders_eigenvalues_and_fixes_signs():
    for seed in range(5):
        W = whitening_matrix(spd(1, 5, 2, 9, seed=seed), eps=0.0, whitening="pca")
        torch.testing.assert_close(
            W.norm(dim=1) ** -2, torch.tensor([9.0, 5, 2, 1], dtype=torch.float64)
        )
        assert (W[:, 0] >= 0).all()


def test_cholesky_is_lower_triangular_with_positive_diagonal():
    W = whitening_matrix(spd(4, 2, 1), whitening="cholesky")
    assert torch.equal(W, W.tril())
    assert (W.diagonal() > 0).all()


@pytest.mark.parametrize("iterations", [1, 5, 9])
def test_newton_reaches_its_documented_accuracy(iterations):
    eigenvalues = (8.0, 1.0, 0.3, 0.01)
    S = spd(*eigenvalues)
    W = whitening_matrix(S, eps=0.0, whitening="newton", iterations=iterations)
    q = torch.tensor(eigenvalues, dtype=torch.float64) / sum(eigenvalues)
    p = torch.ones_like(q)
    for _ in range(iterations):
        p = p * (3 - q * p**2) / 2
    reached = torch.linalg.eigvalsh(W @ S @ W.mT)
    torch.testing.assert_close(reached, (q * p**2).sort().values)


def test_newton_stays_put_after_it_has_converged():
    S = spd(8, 1, 0.3, 1e-6)
    exact = whitening_matrix(S, eps=0.0)
    for iterations in (40, 80, 160):
        W = whitening_matrix(S, eps=0.0, whitening="newton", iterations=iterations)
        torch.testing.assert_close(W, exact, rtol=1e-6, atol=1e-6)


def derivative_cases():
    cases = {
        "distinct": spd(4, 2, 1),
        "two equal": spd(3, 3, 1),
        "all equal": 2 * torch.eye(3, dtype=torch.float64),
        "nearly equal": spd(3, 3 + 1e-9, 1),
        "nearly singular": spd(3, 1, 1e-3),
        "a batch": torch.stack([spd(4, 2, 1), spd(5, 5, 5)]),
    }
    for whitening in WHITENINGS:
        for name, S in cases.items():
            if whitening in TIE_FREE or name in ("distinct", "nearly singular"):
                yield pytest.param(whitening, S, id=f"{whitening}-{name}")


@pytest.mark.parametrize(("whitening", "S"), list(derivative_cases()))
def test_derivatives_of_first_and_second_order_are_exact(whitening, S):
    def function(S):
        return whitening_matrix((S + S.mT) / 2, 1e-3, whitening, 6)

    S = S.clone().requires_grad_()
    assert gradcheck(function, S)
    assert gradgradcheck(function, S)


def test_zca_can_be_differentiated_three_times_at_a_tie():
    direction = spd(1, 2, 3, seed=5)

    def second(S):
        W = whitening_matrix((S + S.mT) / 2)
        first = torch.autograd.grad((W * direction).sum(), S, create_graph=True)[0]
        return torch.autograd.grad((first * direction).sum(), S, create_graph=True)[0]

    assert gradcheck(second, (2 * torch.eye(3, dtype=torch.float64)).requires_grad_())


def test_pca_has_no_derivative_at_a_tie_and_says_so():
    S = torch.eye(3, dtype=torch.float64).requires_grad_()
    direction = spd(1, 2, 3, seed=5)
    (whitening_matrix(S, whitening="pca") * direction).sum().backward()
    assert not S.grad.isfinite().all()


def test_masking_ties_would_have_been_wrong():
    """The usual repair, 1/(l_i - l_j) := 0 at ties, is finite and wrong; ours is right."""
    x = correlated((50, 3))
    S = (covariance(x).diagonal().mean() * torch.eye(3, dtype=torch.float64)).requires_grad_()
    dW = spd(1, 2, 3, seed=5)
    (whitening_matrix(S, eps=0.0) * dW).sum().backward()
    masked = torch.diag(-0.5 * S.detach()[0, 0] ** -1.5 * dW.diagonal())
    exact = -0.5 * S.detach()[0, 0] ** -1.5 * dW
    torch.testing.assert_close(S.grad, exact)
    assert (masked - exact).abs().max() > 0.1


@pytest.mark.parametrize("whitening", WHITENINGS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_covariance_that_is_not_finite_spoils_only_itself(whitening, bad):
    S = torch.stack([spd(4, 2, 1), spd(5, 3, 1)])
    expected = whitening_matrix(S, whitening=whitening)[1]
    S[0, 1, 2] = S[0, 2, 1] = bad
    W = whitening_matrix(S, whitening=whitening)
    assert W[0].isnan().all()
    assert torch.equal(W[1], expected)
