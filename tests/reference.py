"""The oracle: Algorithms 1 and 2 of the paper in plain float64, one group, nothing shared.

Written from the text of *Decorrelated Batch Normalization* (Huang et al., CVPR 2018), with its
notation: samples are columns, gradients are rows, sigma are the eigenvalues. Where eigenvalues
are equal, K holds 1/0: that is the paper's formula, and why the library doesn't use it.
"""

import torch


def samples(x):
    """(N, C, ...) as the paper's d x m data matrix: each position of each example is a column."""
    return x.double().movedim(1, 0).flatten(1)


def split(x, group_size):
    """The contiguous groups of channels, the last one keeping the remainder."""
    return x.split(group_size, dim=1)


def algorithm_1(X, eps):
    """Forward: (whitened, mean, whitening matrix, what Algorithm 2 needs)."""
    d, m = X.shape
    mu = X.sum(1, keepdim=True) / m
    Sigma = (X - mu) @ (X - mu).T / m + eps * torch.eye(d, dtype=X.dtype)
    sigma, D = torch.linalg.eigh(Sigma)
    U = torch.diag(sigma**-0.5) @ D.T
    X_tilde = U @ (X - mu)
    return D @ X_tilde, mu.squeeze(1), D @ U, (sigma, X_tilde, D)


def algorithm_2(dX_hat, auxiliary):
    """Backward: the gradient with respect to X, from the one with respect to the whitened X."""
    sigma, X_tilde, D = auxiliary
    m = X_tilde.shape[1]
    dX_tilde = (dX_hat.T @ D).T
    f = dX_tilde.sum(1, keepdim=True) / m
    K = 1 / (sigma.unsqueeze(1) - sigma.unsqueeze(0))
    K.fill_diagonal_(0)
    Lambda = torch.diag(sigma)
    F_c = dX_tilde @ X_tilde.T / m
    M = torch.diag(F_c.diagonal())
    inner = K.T * (Lambda @ F_c.T + Lambda.sqrt() @ F_c @ Lambda.sqrt())
    S = inner + inner.T  # 2 (.)_sym
    rows = dX_tilde.T - f.T + X_tilde.T @ S - X_tilde.T @ M
    return (rows @ torch.diag(sigma**-0.5) @ D.T).T


def dbn(x, group_size, eps):
    """ZCA-whitened x, and the running statistics' inputs: mean (C,) and a matrix a group."""
    outputs, means, matrices = [], [], []
    for group in split(x, group_size):
        y, mean, W, _ = algorithm_1(samples(group), eps)
        outputs.append(unsamples(y, group))
        means.append(mean)
        matrices.append(W)
    return torch.cat(outputs, 1), torch.cat(means), matrices


def dbn_gradient(x, dy, group_size, eps):
    """Gradient of sum(dy * dbn(x)) with respect to x by Algorithm 2."""
    gradients = []
    for group, dgroup in zip(split(x, group_size), split(dy, group_size), strict=True):
        *_, auxiliary = algorithm_1(samples(group), eps)
        gradients.append(unsamples(algorithm_2(samples(dgroup), auxiliary), group))
    return torch.cat(gradients, 1)


def unsamples(X, like):
    n, d, *positions = like.shape
    return X.reshape(d, n, *positions).movedim(0, 1)
