r"""Covariance -> whitening matrix, and its exact derivative.

Every whitening is a small map from a covariance :math:`S` to a matrix :math:`W` with
:math:`W S W^\top = I`, and the vector-Jacobian product of that map. A method is a row of
``WHITENINGS``; everything else in the library is shared between them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from whitenorm.precision import algebra_dtype, off_cpu, surely_finite
from whitenorm.transforms import Transformable, call, save, transposed

__all__ = ["WHITENINGS", "Whitening", "decompose", "whitening_matrix"]


def whitening_matrix(
    covariance: Tensor, eps: float = 1e-5, whitening: str = "zca", iterations: int = 5
) -> Tensor:
    r"""Returns :math:`W` with :math:`W S W^\top = I`, :math:`S = \Sigma + \epsilon I`.

    Differentiable as often as one likes; only ``"pca"`` needs distinct eigenvalues for that.
    A covariance that holds NaN or inf gives a matrix of NaN and leaves the others alone.

    ============ =============================================== ============================
    whitening    :math:`W`, from :math:`S = D \Lambda D^\top`    derivative
    ============ =============================================== ============================
    ``zca``      :math:`D \Lambda^{-1/2} D^\top`                 finite for every spectrum
    ``pca``      :math:`\Lambda^{-1/2} D^\top`                   singular at equal eigenvalues
    ``cholesky`` :math:`L^{-1}`, where :math:`L L^\top = S`      finite for every spectrum
    ``newton``   ``iterations`` steps of Newton-Schulz to zca    finite for every spectrum
    ============ =============================================== ============================

    PCA orders the eigenvalues non-increasingly and makes the first element of each eigenvector
    non-negative. Newton-Schulz gives a direction of variance :math:`\lambda` the variance
    :math:`q\,p_T^2`, where :math:`q = \lambda / \mathrm{tr} S`, :math:`p_0 = 1` and
    :math:`p_{t+1} = p_t (3 - q\,p_t^2) / 2`: near :math:`2.25^T q` while that is small, then 1.

    Args:
        covariance: Symmetric positive semi-definite matrices :math:`\Sigma`, shape (..., k, k).
        eps: Added to the diagonal. With 0, a singular covariance is an error on the CPU, and
            gives inf or NaN elsewhere.
        whitening: ``"zca"``, ``"pca"``, ``"cholesky"`` or ``"newton"``.
        iterations: Newton-Schulz steps :math:`T`; the other methods don't use it.

    Example:
        >>> x = torch.randn(3, 3, dtype=torch.float64) @ torch.randn(3, 99, dtype=torch.float64)
        >>> y = whitening_matrix(x.cov(correction=0), eps=0.0) @ x
        >>> torch.allclose(y.cov(correction=0), torch.eye(3, dtype=torch.float64))
        True
    """
    size = covariance.shape[-1]
    S = covariance + eps * torch.eye(size, dtype=covariance.dtype, device=covariance.device)
    W = call(_WhiteningMatrix, S.reshape(-1, size, size), eps, whitening, iterations)[0]
    return cast(Tensor, W).reshape(covariance.shape)


class Whitening(NamedTuple):
    """One whitening method: the map from S to W, [n, k, k], and its vector-Jacobian product.

    Args:
        matrix: ``matrix(S, eps, iterations) -> (W, F)``, where no eigenvalue of ``S`` is below
            ``eps`` but for rounding, and ``F`` [n, k, k] is the matrix that ``vjp`` takes its
            values from: ``S``, ``W`` or another.
        vjp: ``vjp(S, W, F, dW, iterations) -> dS``, in differentiable operations on ``S``, ``W``
            and ``dW`` so that it can be differentiated again. Where it isn't, ``F`` is enough.
        rounds: Whether ``F`` may be rounded to the dtype of the samples without costing more
            digits than that.
    """

    matrix: Callable[[Tensor, float, int], tuple[Tensor, Tensor]]
    vjp: Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]
    rounds: bool = False


def decompose(S: Tensor, eps: float, whitening: str, iterations: int) -> tuple[Tensor, Tensor]:
    """``(W, F)`` of a method; W is NaN where S isn't finite, which LAPACK would refuse."""
    matrix = WHITENINGS[whitening].matrix
    if surely_finite(S):
        W, F = matrix(S, eps, iterations)
        if eps == 0:
            _check_invertible(S, W)
        return W, F
    zero_or_nan = 0 * S.sum((-2, -1), keepdim=True)
    W, F = _where_it_runs(matrix, torch.nan_to_num(S, 0.0, 0.0, 0.0), eps, iterations)
    return W + zero_or_nan, F


_LACKING: set[tuple[str, Any]] = set()  # devices, and what has been found not to run there


def _where_it_runs(
    matrix: Callable[[Tensor, float, int], tuple[Tensor, Tensor]],
    S: Tensor,
    eps: float,
    iterations: int,
) -> tuple[Tensor, Tensor]:
    """``matrix(S, eps, iterations)``; on the CPU where the device, as MPS, lacks an operation."""
    if not off_cpu(S) or torch.compiler.is_compiling():
        return matrix(S, eps, iterations)
    if (S.device.type, matrix) not in _LACKING:
        try:
            return matrix(S, eps, iterations)
        except NotImplementedError as error:
            _LACKING.add((S.device.type, matrix))
            warnings.warn(
                f"torch lacks an operation on {S.device.type} that whitening needs "
                f"({str(error).splitlines()[0]}); its small matrices go by the CPU",
                stacklevel=2,
            )
    W, F = matrix(S.to("cpu", torch.float64), eps, iterations)
    return W.to(S), F.to(S)


def _check_invertible(S: Tensor, W: Tensor) -> None:
    """Raises an error if what W whitens of S is rounding alone, whatever the channels' scales."""
    smallest = S.shape[-1] * torch.finfo(S.dtype).eps  # share of a variance that isn't rounding
    variance = S.diagonal(dim1=-2, dim2=-1)
    largest = variance.amax(-1, keepdim=True)
    variance = torch.where(variance <= smallest * largest, largest, variance)
    gain = W.square() * variance.unsqueeze(-2)
    if not (gain < 1 / (32 * smallest)).all():  # Cholesky's nudge keeps it below 1 / (8 smallest)
        raise ValueError(
            "eps=0 needs covariances that can be inverted, and this one is singular (a constant "
            "channel, channels that determine each other, or too few samples): use eps > 0, for "
            "example 1e-5, or more samples than a group has channels"
        )


class _WhiteningMatrix(Transformable):
    """The differentiable face of a row of ``WHITENINGS``: S -> (W, F)."""

    @staticmethod
    def forward(S: Tensor, eps: float, whitening: str, iterations: int) -> tuple[Tensor, Tensor]:
        W, F = decompose(S, eps, whitening, iterations)
        return W, F.clone() if F is W or F is S else F  # autograd wants no tensor twice

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        S, _, ctx.whitening, ctx.iterations = inputs
        ctx.mark_non_differentiable(output[1])
        save(ctx, S, *output)

    @staticmethod
    def backward(ctx: Any, dW: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        S, W, F = ctx.saved_tensors
        vjp = WHITENINGS[ctx.whitening].vjp
        return vjp(S, W, F, dW, ctx.iterations), None, None, None

    @staticmethod
    def push_forward(ctx: Any, saved: list[Any], *tangents: Any) -> tuple[Tensor, None]:
        S, W, F = saved
        vjp = WHITENINGS[ctx.whitening].vjp
        return transposed(lambda dW: vjp(S, W, F, dW, ctx.iterations), W, tangents[0]), None


def _symmetric(a: Tensor) -> Tensor:
    return (a + a.mT) / 2


# --- zca: W = S^(-1/2) ------------------------------------------------------------------------


def _zca(S: Tensor, eps: float, _: int) -> tuple[Tensor, Tensor]:
    eigenvalues, D = torch.linalg.eigh(S)
    inverse_root = eigenvalues.clamp(min=eps).rsqrt()  # the clamp removes rounding, nothing else
    WD = D * inverse_root.unsqueeze(-2)
    return torch.bmm(WD, D.mT), WD


def _zca_vjp(S: Tensor, W: Tensor, WD: Tensor, dW: Tensor, _: int) -> Tensor:
    # From W R = I and R^2 = S: dS = -W X W, where R X + X R = sym(dW). In the eigenbasis this
    # divides by sqrt(l_i) + sqrt(l_j), never by the paper's l_i - l_j.
    # The columns of D have length 1. Squares of small float32 numbers are too small for float32.
    inverse_root = WD.to(algebra_dtype(WD)).square().sum(-2).sqrt().to(WD.dtype)
    if torch.is_grad_enabled():
        root = inverse_root.reciprocal()
        D = WD * root.unsqueeze(-2)
        return -W @ cast(Tensor, call(_Lyapunov, S @ W, _symmetric(dW), root, D)) @ W
    # all of it in the basis WD, where sqrt(l_i) sqrt(l_j) / (sqrt(l_i) + sqrt(l_j)) is left
    X = torch.bmm(torch.bmm(WD.mT, dW), WD)
    X = (X + X.mT) / (inverse_root.unsqueeze(-1) + inverse_root.unsqueeze(-2))
    return torch.bmm(torch.bmm(WD, X), WD.mT) / -2


class _Lyapunov(Transformable):
    """X with R X + X R = B, for the symmetric positive definite R = D diag(root) D^T.

    Its derivative is two more such solves, so it can be differentiated as often as one likes.
    """

    @staticmethod
    def forward(R: Tensor, B: Tensor, root: Tensor, D: Tensor) -> Tensor:
        return D @ ((D.mT @ B @ D) / (root.unsqueeze(-1) + root.unsqueeze(-2))) @ D.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        R, _, root, D = inputs
        save(ctx, R, output, root, D)

    @staticmethod
    def backward(ctx: Any, dX: Tensor) -> tuple[Tensor | None, ...]:
        R, X, root, D = ctx.saved_tensors
        dB = cast(Tensor, call(_Lyapunov, R, dX, root, D))
        return -(dB @ X.mT + X.mT @ dB), dB, None, None

    @staticmethod
    def push_forward(ctx: Any, saved: list[Any], *tangents: Any) -> Tensor:
        (R, X, root, D), (dR, dB, *_) = saved, tangents
        return cast(Tensor, call(_Lyapunov, R, dB - dR @ X - X @ dR, root, D))


# --- pca: W = diag(l)^(-1/2) D^T --------------------------------------------------------------


def _pca(S: Tensor, eps: float, _: int) -> tuple[Tensor, Tensor]:
    eigenvalues, D = torch.linalg.eigh(S)
    eigenvalues, D = eigenvalues.flip(-1).clamp(min=eps), D.flip(-1)
    D = torch.where(D[..., :1, :] < 0, -D, D)
    W = (D / eigenvalues.sqrt().unsqueeze(-2)).mT
    return W, W


def _pca_vjp(S: Tensor, W: Tensor, F: Tensor, dW: Tensor, iterations: int) -> Tensor:
    # Algorithm 2's formula. Its 1 / (l_i - l_j) does not cancel here: where eigenvalues are equal
    # the derivative does not exist, and what comes out is inf or NaN.
    scale = torch.linalg.vector_norm(W, dim=-1, keepdim=True)  # l^(-1/2); its rows are scale * D^T
    Dt, eigenvalues = W / scale, scale**-2
    gap = eigenvalues.mT - eigenvalues  # gap_ij = l_j - l_i
    diagonal = torch.eye(W.shape[-1], dtype=torch.bool, device=W.device)
    B = Dt @ dW.mT  # B_ij = d_i . dW_j
    off = torch.where(diagonal, 0, B * scale.mT / torch.where(diagonal, 1, gap))
    on = torch.where(diagonal, B * scale**3 / -2, 0)
    return _symmetric(Dt.mT @ (off + on) @ Dt)


# --- cholesky: W = L^-1 -----------------------------------------------------------------------


def _cholesky(S: Tensor, eps: float, _: int) -> tuple[Tensor, Tensor]:
    # A relative nudge of the diagonal, far below rounding of the data, keeps the factorization
    # from breaking down on matrices that are singular to working precision.
    k = S.shape[-1]
    S = S + torch.diag_embed(4 * k * torch.finfo(S.dtype).eps * S.diagonal(dim1=-2, dim2=-1))
    L = torch.linalg.cholesky_ex(S).L
    identity = torch.eye(k, dtype=S.dtype, device=S.device).expand_as(S)
    W = torch.linalg.solve_triangular(L, identity, upper=False)
    return W, W


def _cholesky_vjp(S: Tensor, W: Tensor, F: Tensor, dW: Tensor, iterations: int) -> Tensor:
    B = (dW @ W.mT).tril()
    return _symmetric(-W.mT @ (B - torch.diag_embed(B.diagonal(dim1=-2, dim2=-1) / 2)) @ W)


# --- newton: a polynomial of S that tends to S^(-1/2) -------------------------------------------


def _newton_steps(S: Tensor, iterations: int) -> tuple[Tensor, list[list[Tensor]], Tensor]:
    """Coupled Newton-Schulz (Y, Z) -> (Y T, T Z), T = (3 - Z Y) / 2, from (S / tr S, I)."""
    trace = S.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    identity = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
    Y, Z, steps = S / trace, identity.expand_as(S), []
    for _ in range(iterations):
        T = 1.5 * identity - Z @ Y / 2
        steps.append([Y, Z, T])
        Y, Z = Y @ T, T @ Z
    return trace, steps, Z


def _newton(S: Tensor, eps: float, iterations: int) -> tuple[Tensor, Tensor]:
    trace, _, Z = _newton_steps(S, iterations)
    return Z / trace.sqrt(), S


def _newton_vjp(S: Tensor, W: Tensor, F: Tensor, dW: Tensor, iterations: int) -> Tensor:
    trace, steps, last = _newton_steps(S, iterations)
    dZ, dY = dW / trace.sqrt(), torch.zeros_like(S)
    for Y, Z, T in reversed(steps):
        dT = Y.mT @ dY + dZ @ Z.mT
        dY, dZ = dY @ T.mT - Z.mT @ dT / 2, T.mT @ dZ - dT @ Y.mT / 2
    identity = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
    dtrace = -((dY * S).sum((-2, -1), keepdim=True) / trace**2)
    dtrace = dtrace - (dW * last).sum((-2, -1), keepdim=True) / (2 * trace * trace.sqrt())
    return _symmetric(dY / trace + dtrace * identity)


WHITENINGS = {
    "zca": Whitening(_zca, _zca_vjp, rounds=True),
    "pca": Whitening(_pca, _pca_vjp),
    "cholesky": Whitening(_cholesky, _cholesky_vjp),
    "newton": Whitening(_newton, _newton_vjp),
}
