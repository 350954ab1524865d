"""Random cases for the layer, and what it should make of them, in plain float64.

What is expected shares no code with the library. Its forward pass for ZCA is the paper's, and its
gradients are autograd's through plain formulas; only the derivative of S^(-1/2), which autograd
doesn't have at equal eigenvalues, is that of the Lyapunov equation, solved by scipy.
"""

import random
from dataclasses import dataclass, field
from math import isnan

import reference
import scipy.linalg
import torch
from reference import samples, unsamples

from whitenorm import DecorrelatedBatchNorm

# The longest way of a mean from zero, in deviations, and the range of the deviations, for each
# dtype. Half precision has few digits to hold a mean and a deviation at once, and float16 has no
# large or small numbers.
FARTHEST = {torch.float64: 1e6, torch.float32: 1e5, torch.bfloat16: 30.0, torch.float16: 300.0}
SCALES = {torch.float64: 12, torch.float32: 12, torch.bfloat16: 6, torch.float16: 1}
LARGEST_CONDITION = {torch.float16: 1e4}  # gradients are larger by its root

# The promise, which docs/mathematics.md states under "Precision", as a function of the condition
# number of S. Half precision rounds what it gives back besides, which costs up to its eps.
PROMISES = {
    torch.float64: lambda condition: 1e-7,
    torch.float32: lambda condition: 1e-3 if condition <= 1e4 else 3e-7 * condition,
    torch.bfloat16: lambda condition: 2**-7 + max(1e-3, 3e-6 * condition),
    torch.float16: lambda condition: 2**-10 + max(1e-3, 3e-6 * condition),
}

LAYOUTS = (
    "contiguous",
    "channels last",
    "batch inside",
    "positions transposed",
    "every other element",
    "some channels of more",
    "expanded",
)


@dataclass(frozen=True)
class Case:
    """One layer and one batch."""

    seed: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    parameters: torch.dtype
    layout: str
    gradient_layout: str
    group_size: int
    whitening: str
    affine: bool | str
    eps: float
    momentum: float | None
    running: str
    condition: float
    far: float
    scale: float
    rotated: bool
    shrinkage: float | str

    def __str__(self):
        size = "x".join(str(n) for n in self.shape)
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"case {self.seed}: {size} {dtype}, {self.layout}, groups of {self.group_size}, "
            f"{self.whitening}, condition {self.condition:.0e}, mean {self.far:.0e} deviations "
            f"of {self.scale:.0e}, eps {self.eps:.0e}, shrinkage {self.shrinkage}, "
            f"affine {self.affine}"
        )


@dataclass
class Outcome:
    """What went wrong by how much, and what made it hard."""

    case: Case
    errors: dict[str, float] = field(default_factory=dict)
    condition: float = 1.0
    far: float = 0.0

    @property
    def error(self):
        return max(self.errors.values(), key=lambda error: (isnan(error), error))

    @property
    def promised(self):
        return PROMISES[self.case.dtype](self.condition)

    @property
    def kept(self):
        return self.error <= self.promised

    def __str__(self):
        worst = max(self.errors, key=lambda name: (isnan(self.errors[name]), self.errors[name]))
        return f"{self.error:.1e} of {self.promised:.1e} promised ({worst}; {self.case})"


# --- drawing ------------------------------------------------------------------------------------


def draw(seed):
    """The case of this number."""
    rng = random.Random(seed)
    dtype = rng.choices(list(FARTHEST), [25, 45, 15, 15])[0]
    group_size = rng.choice([1, 2, 3, 4, 5, 8, 8, 12, 16, 16, 32, 64])
    shape = _shape(rng, group_size)
    size, count = min(group_size, shape[1]), shape[0] * _product(shape[2:])
    layouts = [layout for layout in LAYOUTS if layout != "expanded" or len(shape) > 2]
    layout, gradient_layout = rng.choice(layouts), rng.choice(layouts)
    if layout == "expanded":
        count //= shape[-1]
    if count < 2:
        layout, count = "contiguous", count * shape[-1]
    methods = ["zca", "zca", "zca", "cholesky", "newton"]
    if count > 2 * size and size <= 8:  # with eigenvalues that can be told apart
        methods.append("pca")
    whitening = rng.choice(methods)
    condition = 10 ** rng.uniform(0, 6) if rng.random() < 0.9 else 1.0
    condition = min(condition, LARGEST_CONDITION.get(dtype, 1e6))
    if whitening == "pca":
        condition = rng.uniform(2, 3) ** (size - 1)
    digits = SCALES[dtype]
    extreme = rng.random() < 0.1 and whitening != "pca"
    scale = 10 ** rng.uniform(*((-digits, digits) if extreme else (-1, 1)))
    eps = rng.choice([1e-5, 1e-5, 1e-5, 1e-3, 1e-8])
    if count <= size:  # the batch's covariance is singular, and eps decides how ill conditioned
        eps = scale**2 * size / condition
    parameters = dtype if rng.random() < 0.5 else torch.promote_types(dtype, torch.float32)
    momentum = rng.choice([0.1, 1.0, None])
    if parameters == torch.float16 and (count > 2**12 or momentum == 0.1):
        parameters = torch.float32  # gradients of scale and shift are too large for float16
    return Case(
        seed=seed,
        shape=shape,
        dtype=dtype,
        parameters=parameters,
        layout=layout,
        gradient_layout=gradient_layout,
        group_size=group_size,
        whitening=whitening,
        affine=rng.random() < 0.7 and (seed % 3 > 0 or "matrix"),
        eps=eps,
        momentum=momentum,
        running=rng.choice(["whitening", "covariance"]),
        condition=condition,
        far=rng.choice([0.0, 1.0, FARTHEST[dtype] ** rng.uniform(0, 1), FARTHEST[dtype]]),
        scale=scale,
        rotated=rng.random() < 0.7 or whitening == "pca",  # its signs need a first element
        shrinkage=0.0 if whitening == "pca" else rng.choice([0.0, 0.0, 0.3, "auto"]),
    )


def _shape(rng, group_size):
    """(N, C) to (N, C, D, H, W), most of them small, some with millions of elements."""
    channels = rng.choice([group_size, 2 * group_size, rng.randint(1, 3 * group_size + 1)])
    elements = rng.choices(
        [4 * channels, 100 * channels, 2**13, 2**17, 2**20, 2**22], [20, 20, 30, 20, 8, 2]
    )[0]
    count = max(2, int(elements / channels * rng.uniform(0.25, 1)))
    positions = rng.randint(0, 3)
    if positions == 0:
        return count, channels
    images = max(1, min(rng.choice([1, 2, 5, 32, 256]), count // 2))
    side = (count / images) ** (1 / positions)
    sides = [max(1, round(side * rng.uniform(0.7, 1.4))) for _ in range(positions)]
    if images * _product(sides) < 2:
        images = 2
    return images, channels, *sides


def _product(numbers):
    product = 1
    for number in numbers:
        product *= number
    return product


# --- making -------------------------------------------------------------------------------------


def batch(case):
    """The input, of the case's condition number, mean, dtype and strides."""
    generator = torch.Generator().manual_seed(case.seed)
    shape = (*case.shape[:-1], 1) if case.layout == "expanded" else case.shape
    groups = reference.split(torch.randn(shape, generator=generator).double(), case.group_size)
    parts = [_of_condition(part, case, generator) for part in groups]
    x = torch.cat(parts, 1)
    way = 2 * torch.rand(shape[1], generator=generator).double() - 1
    way[torch.randint(shape[1], (1,), generator=generator)] = 1
    x = x + case.far * _per_channel(way * samples(x).std(1), x)
    return _laid_out(x.to(case.dtype).expand(case.shape), case.layout)


def _of_condition(part, case, generator):
    """The samples of a group, white as far as there are enough, and then given a spectrum."""
    Z = samples(part)
    size, count = Z.shape
    Z = Z - Z.mean(1, keepdim=True)
    if count > size:
        L = torch.linalg.cholesky(Z @ Z.T / count)
        Z = torch.linalg.solve_triangular(L, Z, upper=False)
    exponents = torch.rand(size, generator=generator).double()
    if case.whitening == "pca":
        exponents = torch.linspace(0, 1, size).double()
    elif size > 1:
        exponents[:2] = torch.tensor([0.0, 1.0])
    Z = case.scale * case.condition ** (-exponents.unsqueeze(1) / 2) * Z
    if case.rotated:
        Q, _ = torch.linalg.qr(torch.randn(size, size, generator=generator).double())
        Z = Q @ Z
    return unsamples(Z, part)


def output_gradient(case, x):
    """The gradient that comes back: noise, a part that is constant, a part that follows x."""
    generator = torch.Generator().manual_seed(case.seed + 1)
    constant = _per_channel(torch.randn(x.shape[1], generator=generator).double(), x)
    if case.gradient_layout == "expanded":  # as that of y.sum()
        return constant.to(x.dtype).expand(x.shape)
    standard = samples(x)
    standard = standard - standard.mean(1, keepdim=True)
    standard = standard / (standard.std(1, keepdim=True) + 1e-30)
    noise = torch.randn(x.shape, generator=generator).double()
    g = noise + constant + 0.5 * unsamples(standard, x).tanh()
    return _laid_out(g.to(x.dtype), case.gradient_layout)


def _laid_out(x, layout):
    """The same values with other strides."""
    if layout == "contiguous":
        return x.contiguous()
    if layout == "channels last":
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    if layout == "batch inside":
        return x.movedim(0, -1).contiguous().movedim(-1, 0)
    if layout == "positions transposed":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "every other element":
        return torch.stack([x, -x], -1)[..., 0]
    if layout == "some channels of more":
        return torch.cat([-x[:, :1], x, -x], 1)[:, 1 : 1 + x.shape[1]]
    return x


def _per_channel(values, x):
    return values.view(-1, *[1] * (x.dim() - 2))


def make_layer(case):
    layer = DecorrelatedBatchNorm(
        case.shape[1],
        case.eps,
        case.momentum,
        case.affine,
        dtype=case.parameters,
        group_size=case.group_size,
        whitening=case.whitening,
        running=case.running,
        shrinkage=case.shrinkage,
    )
    if case.affine:
        generator = torch.Generator().manual_seed(case.seed + 2)
        with torch.no_grad():
            scale = 0.5 + 1.5 * torch.rand(case.shape[1], generator=generator)
            layer.bias.copy_(torch.randn(case.shape[1], generator=generator))
            if case.affine == "matrix":
                groups, size, _ = layer.weight.shape
                padded = torch.cat([scale, torch.ones(groups * size - len(scale))])
                noise = torch.randn(groups, size, size, generator=generator) / (2 * size**0.5)
                layer.weight.copy_(noise + torch.diag_embed(padded.view(groups, size)))
            else:
                layer.weight.copy_(scale)
    return layer


# --- what is expected ---------------------------------------------------------------------------


class _InverseRoot(torch.autograd.Function):
    """S^(-1/2), whose derivative -W X W has X from R X + X R = dW, where R = S^(1/2)."""

    @staticmethod
    def forward(ctx, S):
        eigenvalues, D = torch.linalg.eigh(S)
        W = D @ torch.diag(eigenvalues**-0.5) @ D.T
        ctx.save_for_backward(W, D @ torch.diag(eigenvalues**0.5) @ D.T)
        return W

    @staticmethod
    def backward(ctx, dW):
        W, R = ctx.saved_tensors
        X = scipy.linalg.solve_continuous_lyapunov(R.numpy(), (dW + dW.T).numpy() / 2)
        return -W @ torch.from_numpy(X) @ W


def _pca(S):
    eigenvalues, D = torch.linalg.eigh(S)
    eigenvalues, D = eigenvalues.flip(0), D.flip(1)
    D = D * torch.where(D.detach()[0] < 0, -1.0, 1.0)
    return torch.diag(eigenvalues**-0.5) @ D.T


def _cholesky(S):
    L = torch.linalg.cholesky(S)
    return torch.linalg.solve_triangular(L, torch.eye(len(S)).double(), upper=False)


def _newton(S):
    trace, P = S.trace(), torch.eye(len(S)).double()
    for _ in range(5):
        P = (3 * P - P @ P @ P @ S / trace) / 2
    return P / trace.sqrt()


MATRICES = {"zca": _InverseRoot.apply, "pca": _pca, "cholesky": _cholesky, "newton": _newton}


def shrunk(covariance, eps, shrinkage, count):
    """Covariances between channels times 1 - r, where an estimated r is a constant."""
    off = ~torch.eye(len(covariance)).bool()
    if shrinkage == "auto":
        variances = covariance.detach().diagonal() + eps
        R = (covariance.detach() / torch.outer(variances, variances).sqrt())[off]
        r = ((1 - R**2) ** 2).sum() / (count - 1) / (R**2).sum()
        shrinkage = 1.0 if r.isnan() else min(1.0, r.item())  # NaN: of one channel
    return torch.where(off, (1 - shrinkage) * covariance, covariance)


def whitened(part, eps, whitening, shrinkage=0.0):
    """A group's samples, their mean, covariance and whitening matrix, differentiably.

    The mean is subtracted twice, since the first may be far from zero and be rounded.
    """
    X = part.movedim(1, 0).flatten(1)
    mean = X.mean(1, keepdim=True)
    centred = X - mean
    rest = centred.mean(1, keepdim=True)
    centred = centred - rest
    covariance = shrunk(centred @ centred.T / X.shape[1], eps, shrinkage, X.shape[1])
    W = MATRICES[whitening](covariance + eps * torch.eye(len(X)).double())
    return unsamples(W @ centred, part), (mean + rest).squeeze(1), covariance, W


def matrices_of(weight, sizes):
    """What the samples of each group are multiplied by: diagonal, or a corner of a matrix."""
    if weight.dim() == 1:
        return [torch.diag(scale) for scale in weight.split(sizes)]
    return [matrix[:size, :size] for matrix, size in zip(weight, sizes, strict=True)]


def inference(part, mean, W):
    X = part.movedim(1, 0).flatten(1)
    return unsamples(W @ (X - mean.unsqueeze(1)), part)


def condition_of(S, whitening):
    """How much an error of S may grow: PCA's by the smallest gap between two eigenvalues."""
    eigenvalues = torch.linalg.eigvalsh(S.detach())
    if whitening != "pca" or len(S) == 1:
        return (eigenvalues[-1] / eigenvalues[0]).item()
    return (eigenvalues[-1] / eigenvalues.diff().min()).item()


# --- comparing ----------------------------------------------------------------------------------


def outcome(case):
    """The largest relative error of each of the layer's results."""
    layer, x = make_layer(case), batch(case)
    dy = output_gradient(case, x)
    found = Outcome(case)

    exact, parts = x.double().requires_grad_(), []
    for part in reference.split(exact, case.group_size):
        y, mean, covariance, W = whitened(part, case.eps, case.whitening, case.shrinkage)
        S = covariance.detach() + case.eps * torch.eye(len(covariance)).double()
        found.condition = max(found.condition, condition_of(S, case.whitening))
        ways = mean.abs() / covariance.diagonal().clamp_min(1e-300).sqrt()
        found.far = max(found.far, ways.max().item())
        parts.append((y, mean.detach(), covariance.detach(), W.detach()))
    _compare(found, "training", layer, x, dy, exact, parts)
    _compare_running(found, layer, parts)

    layer.eval()
    parts = []
    for i, part in enumerate(reference.split(exact, case.group_size)):
        channels = slice(i * case.group_size, i * case.group_size + part.shape[1])
        mean = layer.running_mean[channels].double()
        matrix = getattr(layer, f"running_{case.running}")[i].double()
        matrix = matrix[: part.shape[1], : part.shape[1]]
        if case.running == "covariance":
            matrix = MATRICES[case.whitening](
                matrix + case.eps * torch.eye(len(matrix)).double()
            ).detach()
        parts.append((inference(part, mean, matrix), mean, None, matrix))
    _compare(found, "evaluation", layer, x, dy, exact, parts)
    return found


def _compare(found, mode, layer, x, dy, exact, parts):
    """Output and gradients of the layer with those that follow from the groups' outputs.

    An error of the output is relative to the channel's norm. One of a gradient is relative to the
    norm that it has, or would have if the statistics were constant: with as few samples as
    channels nearly nothing of that is left. One of a sum over samples, of scale and shift, is
    relative to the norms of what is multiplied and summed.
    """
    x = x.detach().requires_grad_()
    y = layer(x)
    assert y.dtype == x.dtype
    white = torch.cat([part[0] for part in parts], 1)
    sizes = [part[0].shape[1] for part in parts]
    wanted, given, expected = [x], [exact], white
    if layer.affine:
        weight, bias = (p.detach().double().requires_grad_() for p in (layer.weight, layer.bias))
        coloured = [
            unsamples(matrix @ samples(part), part)
            for matrix, (part, *_) in zip(matrices_of(weight, sizes), parts, strict=True)
        ]
        expected = torch.cat(coloured, 1) + _per_channel(bias, x)
        wanted, given = [x, layer.weight, layer.bias], [exact, weight, bias]
    gradients = torch.autograd.grad(y, wanted, dy)
    expected_gradients = torch.autograd.grad(expected, given, dy.double())

    g = samples(dy)
    passed = list(g.split(sizes))
    if layer.affine:
        scalings = matrices_of(weight.detach(), sizes)
        passed = [matrix.T @ of_group for matrix, of_group in zip(scalings, passed, strict=True)]
    passed = [W.T @ of_group for (*_, W), of_group in zip(parts, passed, strict=True)]
    scales = [torch.cat(passed).norm(dim=1)]
    if layer.affine:
        norms, of_white = g.norm(dim=1), samples(white.detach()).norm(dim=1)
        products = norms * of_white
        if weight.dim() == 3:
            products = torch.zeros_like(weight)
            pairs = zip(norms.split(sizes), of_white.split(sizes), strict=True)
            for i, (one, other) in enumerate(pairs):
                products[i, : len(one), : len(one)] = torch.outer(one, other)
        scales += [products.flatten(), norms * g.shape[1] ** 0.5]
    names = ("output", "gradient", "weight gradient", "bias gradient")
    results = zip(
        names[: 1 + len(gradients)],
        (y.detach(), *gradients),
        (expected.detach(), *expected_gradients),
        (torch.zeros(()), *scales),
        strict=True,
    )
    for name, value, right, scale in results:
        if name in ("weight gradient", "bias gradient"):
            value, right = value.view(1, -1), right.view(1, -1)
        value, right = samples(value), samples(right)
        size = torch.maximum(right.norm(dim=1), scale).clamp_min(1e-300)
        error = ((value - right).norm(dim=1) / size).max().item()
        found.errors[f"{name} in {mode}"] = error


def _compare_running(found, layer, parts):
    case = found.case
    rate = 1.0 if case.momentum is None else case.momentum
    count = _product(case.shape) / case.shape[1]
    mean = torch.cat([part[1] for part in parts])
    deviation = torch.cat([part[2].diagonal().sqrt() for part in parts])
    error = (layer.running_mean.double() - rate * mean).abs() / (mean.abs() + deviation)
    found.errors["running mean"] = error.max().item()
    stored = getattr(layer, f"running_{case.running}").double()
    for matrix, (_, _, covariance, W) in zip(stored, parts, strict=True):
        new = covariance * count / (count - 1) if case.running == "covariance" else W
        expected = rate * new + (1 - rate) * torch.eye(len(W)).double()
        error = (matrix[: len(W), : len(W)] - expected).norm() / expected.norm()
        name = f"running {case.running}"
        found.errors[name] = max(found.errors.get(name, 0.0), error.item())
