r"""The Triton kernels: four passes over the activations, and the k x k algebra between them.

A tensor of activations is seen as ``m`` samples of ``C`` channels: sample i lies in image i // L
at position i % L (``S_IMAGE``, ``S_POSITION`` and ``S_CHANNEL`` are strides), so that contiguous
maps, channels-last maps and rows are one code. A group holds ``K`` channels, the last one what is
left; tiles have ``KP`` channels, the next power of two, and what is beyond is masked. Products are
made in ``WORK``, the k x k algebra in float64. Every program writes its own place and nothing is
added atomically, so that results are the same in every run.
"""

# mypy: ignore-errors
# Parameters of kernels are spelled as in the formulas; Triton compiles the bodies, not Python.

import triton
import triton.language as tl

__all__ = ["apply", "combine", "matrix", "moments", "running", "sums", "vjp"]

# Samples that float32 adds up by itself, before float64 takes over.
LONGEST = tl.constexpr(4096)
# Below this fraction of its norm an eigenvalue is rounding, in float64 too.
ROUNDING = tl.constexpr(1e-14)


@triton.jit
def _places(i, L, S_IMAGE, S_POSITION, IMAGES: tl.constexpr):
    """Where the samples i begin."""
    if IMAGES:
        places = (i // L).to(tl.int64) * S_IMAGE + (i % L).to(tl.int64) * S_POSITION
    else:
        places = i.to(tl.int64) * S_POSITION
    return places


@triton.jit
def _of_group(group, C, K: tl.constexpr, KP: tl.constexpr):
    """The channels of a group within a tile, which of them there are, and their places among C."""
    within = tl.arange(0, KP)
    inside = within < tl.minimum(K, C - group * K)
    return within, inside, group * K + within


@triton.jit
def _store(place, value, mask):
    """Rounds float64 to what is stored there; to half precision by way of float32."""
    kind = place.dtype.element_ty
    if kind.primitive_bitwidth < 32:
        value = value.to(tl.float32)
    tl.store(place, value.to(kind), mask)


@triton.jit
def _no_products(KP: tl.constexpr, BLOCK: tl.constexpr, WORK: tl.constexpr):
    """What ``_more_products`` adds to: k x k numbers, or in small groups so many a sample."""
    if KP < 16:
        products = tl.zeros((KP, KP, BLOCK), WORK)
    else:
        products = tl.zeros((KP, KP), WORK)
    return products


@triton.jit
def _more_products(products, left, right, KP: tl.constexpr, WORK: tl.constexpr):
    """products + left right^T. Triton's dot would leave most threads of a small one idle."""
    if KP < 16:
        products += left[:, None, :] * right[None, :, :]
    else:
        products = tl.dot(left, tl.trans(right), products, input_precision="ieee", out_dtype=WORK)
    return products


@triton.jit
def _all_products(products, KP: tl.constexpr):
    if KP < 16:
        total = tl.sum(products, 2)
    else:
        total = products
    return total.to(tl.float64)


@triton.jit
def moments(
    x,
    means,
    centrals,
    m,
    L,
    C,
    per,
    S_IMAGE,
    S_POSITION,
    S_CHANNEL,
    K: tl.constexpr,
    KP: tl.constexpr,
    BLOCK: tl.constexpr,
    IMAGES: tl.constexpr,
    WORK: tl.constexpr,
):
    """The mean and the sum of (x - mean) (x - mean)^T of ``per`` samples of a group.

    The mean of the first tile is subtracted first, so that a mean far larger than the deviation
    costs no digits.
    """
    part, group = tl.program_id(0), tl.program_id(1)
    within, inside, channels = _of_group(group, C, K, KP)
    start = part * per
    stop = tl.minimum(start + per, m)
    here = x + channels.to(tl.int64)[:, None] * S_CHANNEL

    i = start + tl.arange(0, BLOCK)
    known = inside[:, None] & (i < stop)[None, :]
    places = _places(i, L, S_IMAGE, S_POSITION, IMAGES)
    first = tl.load(here + places[None, :], known, 0.0).to(WORK)
    shift = tl.sum(first, 1) / tl.minimum(stop - start, BLOCK).to(WORK)

    total = tl.zeros((KP,), tl.float64)
    outer = tl.zeros((KP, KP), tl.float64)
    for begin in range(start, stop, LONGEST):
        some = tl.zeros((KP,), WORK)
        products = _no_products(KP, BLOCK, WORK)
        for tile in range(begin, tl.minimum(begin + LONGEST, stop), BLOCK):
            i = tile + tl.arange(0, BLOCK)
            known = inside[:, None] & (i < stop)[None, :]
            places = _places(i, L, S_IMAGE, S_POSITION, IMAGES)
            away = tl.load(here + places[None, :], known, 0.0).to(WORK) - shift[:, None]
            away = tl.where(known, away, 0.0)
            some += tl.sum(away, 1)
            products = _more_products(products, away, away, KP, WORK)
        total += some.to(tl.float64)
        outer += _all_products(products, KP)

    count = (stop - start).to(tl.float64)
    away64 = total / count
    outer -= total[:, None] * away64[None, :]
    tl.store(means + part * C + channels, shift.to(tl.float64) + away64, inside)
    groups = tl.num_programs(1)
    place = (part * groups + group).to(tl.int64) * K * K
    square = within[:, None] * K + within[None, :]
    tl.store(centrals + place + square, outer, (within < K)[:, None] & (within < K)[None, :])


@triton.jit
def sums(
    x,
    g,
    shift,
    totals,
    outers,
    m,
    L,
    C,
    per,
    S_IMAGE,
    S_POSITION,
    S_CHANNEL,
    G_IMAGE,
    G_POSITION,
    G_CHANNEL,
    K: tl.constexpr,
    KP: tl.constexpr,
    BLOCK: tl.constexpr,
    IMAGES: tl.constexpr,
    WORK: tl.constexpr,
):
    """The sums of g and of g (x - shift)^T over ``per`` samples of a group."""
    part, group = tl.program_id(0), tl.program_id(1)
    within, inside, channels = _of_group(group, C, K, KP)
    start = part * per
    stop = tl.minimum(start + per, m)
    here = x + channels.to(tl.int64)[:, None] * S_CHANNEL
    there = g + channels.to(tl.int64)[:, None] * G_CHANNEL
    away = tl.load(shift + channels, inside, 0.0).to(WORK)

    total = tl.zeros((KP,), tl.float64)
    outer = tl.zeros((KP, KP), tl.float64)
    for begin in range(start, stop, LONGEST):
        some = tl.zeros((KP,), WORK)
        products = _no_products(KP, BLOCK, WORK)
        for tile in range(begin, tl.minimum(begin + LONGEST, stop), BLOCK):
            i = tile + tl.arange(0, BLOCK)
            known = inside[:, None] & (i < stop)[None, :]
            places = _places(i, L, S_IMAGE, S_POSITION, IMAGES)
            right = tl.load(here + places[None, :], known, 0.0).to(WORK) - away[:, None]
            right = tl.where(known, right, 0.0)
            places = _places(i, L, G_IMAGE, G_POSITION, IMAGES)
            left = tl.load(there + places[None, :], known, 0.0).to(WORK)
            some += tl.sum(left, 1)
            products = _more_products(products, left, right, KP, WORK)
        total += some.to(tl.float64)
        outer += _all_products(products, KP)

    tl.store(totals + part * C + channels, total, inside)
    groups = tl.num_programs(1)
    place = (part * groups + group).to(tl.int64) * K * K
    square = within[:, None] * K + within[None, :]
    tl.store(outers + place + square, outer, (within < K)[:, None] & (within < K)[None, :])


@triton.jit
def combine(
    vectors,
    matrices,
    vector,
    matrix,
    m,
    C,
    per,
    parts,
    K: tl.constexpr,
    KP: tl.constexpr,
    PARTS: tl.constexpr,
    CENTRAL: tl.constexpr,
):
    """One row of a group's k x k matrix, and its element of the vector, of all parts together.

    Sums are added. Means and central moments (``CENTRAL``) are joined by Chan's formula.
    """
    group, row = tl.program_id(0), tl.program_id(1)
    groups = tl.num_programs(0)
    within, inside, channels = _of_group(group, C, K, KP)
    joint = tl.zeros((KP,), tl.float64)
    for begin in range(0, parts, PARTS):
        p = begin + tl.arange(0, PARTS)
        known = (p < parts)[:, None] & inside[None, :]
        some = tl.load(vectors + (p * C)[:, None] + channels[None, :], known, 0.0)
        if CENTRAL:
            count = tl.maximum(tl.minimum(m - p * per, per), 0).to(tl.float64)
            some = some * count[:, None]
        joint += tl.sum(some, 0)
    if CENTRAL:
        joint = joint / m.to(tl.float64)

    outer = tl.zeros((KP,), tl.float64)
    whole = within < K
    for begin in range(0, parts, PARTS):
        p = begin + tl.arange(0, PARTS)
        known = (p < parts)[:, None] & whole[None, :]
        place = ((p * groups + group).to(tl.int64) * K + row) * K
        outer += tl.sum(tl.load(matrices + place[:, None] + within[None, :], known, 0.0), 0)
        if CENTRAL:
            known = (p < parts)[:, None] & inside[None, :]
            count = tl.maximum(tl.minimum(m - p * per, per), 0).to(tl.float64)
            away = tl.load(vectors + (p * C)[:, None] + channels[None, :], known, 0.0)
            away = tl.where(known, away - joint[None, :], 0.0)
            own = tl.sum(tl.where((within == row)[None, :], away, 0.0), 1)
            outer += tl.sum(away * (own * count)[:, None], 0)
    tl.store(matrix + (group.to(tl.int64) * K + row) * K + within, outer, whole)
    if row == 0:
        tl.store(vector + channels, joint, inside)


@triton.jit
def _dot(a, b):
    return tl.dot(a, b, input_precision="ieee", out_dtype=tl.float64)


@triton.jit
def _step(least):
    """The cubic a x - b x^3 that brings [least, 1] nearest to 1, and where it brings least."""
    scale = tl.sqrt(3.0 / (1.0 + least + least * least))
    a, b = 1.5 * scale, 0.5 * scale * scale * scale
    return a, b, least * (a - b * least * least)


@triton.jit
def matrix(
    mean,
    central,
    weight,
    bias,
    W,
    norm,
    kept,
    finite,
    P,
    shift,
    constant,
    C,
    count: tl.float64,
    eps: tl.float64,
    shrinkage: tl.float64,
    AUTO: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    WORK: tl.constexpr,
):
    """W = S^(-1/2), S = central / count + eps I, and with it y = P (x - shift) + constant.

    ``central`` is drawn towards its diagonal first, and left so: by ``shrinkage``, or by an
    estimate of at least that (see :mod:`whitenorm.shrinkage`). ``kept`` is the share that stays.

    A coupled iteration for root and inverse root, by products alone: the singular values of the
    one times the other are brought to 1 by the cubics that suit [least, 1], where ``least`` is
    known from eps and the ``norm`` of S.
    """
    group = tl.program_id(0)
    within, inside, channels = _of_group(group, C, K, KP)
    both = inside[:, None] & inside[None, :]
    square = group.to(tl.int64) * K * K + within[:, None] * K + within[None, :]
    eye = (within[:, None] == within[None, :]).to(tl.float64)

    moment = tl.load(central + square, both, 0.0)
    if AUTO:
        diagonal = tl.sum(moment * eye, 1) / count + eps
        R2 = moment / count * (moment / count) / (diagonal[:, None] * diagonal[None, :])
        R2 = tl.where(both & (eye == 0.0), R2, 0.0)
        total = tl.sum(tl.sum(R2, 1), 0)
        pairs = tl.sum(tl.sum(tl.where(both & (eye == 0.0), 1.0, 0.0), 1), 0).to(tl.float64)
        spread = pairs - 2.0 * total + tl.sum(tl.sum(R2 * R2, 1), 0)
        share = tl.maximum(1.0 - spread / tl.maximum((count - 1.0) * total, 1e-300), 0.0)
        share = tl.minimum(share, 1.0 - shrinkage)
    else:
        share = 1.0 - shrinkage
    moment *= tl.where(eye == 0.0, share, 1.0)
    tl.store(central + square, moment, both)
    tl.store(kept + group, share)
    S = moment / count + tl.where(both, eye * eps, 0.0)
    size = tl.sqrt(tl.sum(tl.sum(S * S, 1), 0))
    is_finite = size < float("inf")
    low = tl.maximum(eps, ROUNDING * size)
    S += tl.where(both, eye * (low - eps), 0.0)  # nothing, but for what is rounding
    size += low - eps

    Y = tl.where(both, S / size, eye)
    Z = eye
    least = tl.sqrt(low / size)
    while least < 1.0 - 1e-8:
        a, b, least = _step(least)
        T = a * eye - b * _dot(Z, Y)
        Y = _dot(Y, T)
        Z = _dot(T, Z)
    Z = _dot(1.5 * eye - 0.5 * _dot(Z, Y), Z)

    root = 0.5 * (Z + tl.trans(Z)) / tl.sqrt(size)
    root = tl.where(is_finite, tl.where(both, root, eye), float("nan"))
    tl.store(W + square, root, (within < K)[:, None] & (within < K)[None, :])
    tl.store(norm + group, size)
    tl.store(finite + group, is_finite.to(tl.int32))

    if weight is not None:
        gamma = tl.load(weight + channels, inside, 0.0).to(tl.float64)
        root = root * gamma[:, None]
    middle = tl.load(mean + channels, inside, 0.0)
    near = middle.to(WORK)
    offset = tl.where(inside, middle - near.to(tl.float64), 0.0)
    beta = -tl.sum(tl.where(both, root, 0.0) * offset[None, :], 1)
    if bias is not None:
        beta += tl.load(bias + channels, inside, 0.0).to(tl.float64)
    tl.store(P + square, root.to(WORK), both)
    tl.store(shift + channels, near, inside)
    tl.store(constant + channels, beta.to(WORK), inside)


@triton.jit
def vjp(
    total,
    outer,
    mean,
    shift,
    W,
    norm,
    kept,
    weight,
    dweight,
    dbias,
    P,
    Q,
    constant,
    C,
    count: tl.float64,
    eps: tl.float64,
    K: tl.constexpr,
    KP: tl.constexpr,
    WORK: tl.constexpr,
):
    """From s = sum g and A = sum g (x - shift)^T to dx = P g + Q (x - shift) + constant.

    dS = -W U W, where W U + U W = W sym(dW) W. U is a corner of sign [[W, W sym(dW) W], [0, -W]],
    found by the iteration of ``matrix``: no eigenvectors, hence nothing to divide by at ties.
    """
    group = tl.program_id(0)
    within, inside, channels = _of_group(group, C, K, KP)
    both = inside[:, None] & inside[None, :]
    square = group.to(tl.int64) * K * K + within[:, None] * K + within[None, :]
    eye = (within[:, None] == within[None, :]).to(tl.float64)

    s = tl.load(total + channels, inside, 0.0)
    near = tl.load(shift + channels, inside, 0.0).to(tl.float64)
    offset = tl.load(mean + channels, inside, 0.0) - near
    A = tl.load(outer + square, both, 0.0) - s[:, None] * offset[None, :]
    root = tl.load(W + square, both, 0.0)
    if dweight is not None:
        _store(dweight + channels, tl.sum(A * root, 1), inside)
    if dbias is not None:
        _store(dbias + channels, s, inside)

    B, scaled = A, root
    if weight is not None:
        gamma = tl.load(weight + channels, inside, 0.0).to(tl.float64)
        B, scaled = B * gamma[:, None], scaled * gamma[:, None]
    B = _dot(_dot(root, 0.5 * (B + tl.trans(B))), root)

    size = tl.load(norm + group)
    low = tl.maximum(eps, ROUNDING * size)
    R = tl.where(both, root * tl.sqrt(low), eye)
    U = B * tl.sqrt(low)
    least = tl.sqrt(low / size)
    while least < 1.0 - 1e-8:
        a, b, least = _step(least)
        N = _dot(R, U)
        T = a * eye - b * _dot(R, R)
        U = _dot(U, T) - b * _dot(R, N - tl.trans(N))
        U = 0.5 * (U + tl.trans(U))
        R = _dot(R, T)
    N = _dot(R, U)
    T = 1.5 * eye - 0.5 * _dot(R, R)
    U = _dot(U, T) - 0.5 * _dot(R, N - tl.trans(N))

    dS = _dot(_dot(root, U), root)
    dS = -0.25 * (dS + tl.trans(dS)) * (2.0 / count)
    dS *= tl.where(eye == 0.0, tl.load(kept + group), 1.0)
    back = tl.trans(scaled)
    beta = -tl.sum(back * (s / count)[None, :], 1) - tl.sum(dS * offset[None, :], 1)
    tl.store(P + square, back.to(WORK), both)
    tl.store(Q + square, dS.to(WORK), both)
    tl.store(constant + channels, beta.to(WORK), inside)


@triton.jit
def apply(
    x,
    shift,
    matrix,
    g,
    other,
    constant,
    y,
    m,
    L,
    C,
    per,
    S_IMAGE,
    S_POSITION,
    S_CHANNEL,
    G_IMAGE,
    G_POSITION,
    G_CHANNEL,
    Y_IMAGE,
    Y_POSITION,
    Y_CHANNEL,
    K: tl.constexpr,
    KP: tl.constexpr,
    INNER: tl.constexpr,
    BLOCK: tl.constexpr,
    IMAGES: tl.constexpr,
    WORK: tl.constexpr,
):
    """y = matrix (x - shift) + constant, and other g with it if there is g, for ``per`` samples.

    ``INNER`` is KP, but no less than a product of Triton's may be long.
    """
    part, group = tl.program_id(0), tl.program_id(1)
    rows, written, to = _of_group(group, C, K, KP)
    within, inside, channels = _of_group(group, C, K, INNER)
    start = part * per
    stop = tl.minimum(start + per, m)
    here = x + channels.to(tl.int64)[:, None] * S_CHANNEL
    out = y + to.to(tl.int64)[:, None] * Y_CHANNEL
    square = group.to(tl.int64) * K * K + rows[:, None] * K + within[None, :]
    both = written[:, None] & inside[None, :]
    M = tl.load(matrix + square, both, 0.0).to(WORK)
    beta = tl.load(constant + to, written, 0.0).to(WORK)
    if shift is not None:
        away = tl.load(shift + channels, inside, 0.0).to(WORK)
    if g is not None:
        N = tl.load(other + square, both, 0.0).to(WORK)
        there = g + channels.to(tl.int64)[:, None] * G_CHANNEL
    for tile in range(start, stop, BLOCK):
        i = tile + tl.arange(0, BLOCK)
        known = inside[:, None] & (i < stop)[None, :]
        places = _places(i, L, S_IMAGE, S_POSITION, IMAGES)
        samples = tl.load(here + places[None, :], known, 0.0).to(WORK)
        if shift is not None:
            samples = tl.where(known, samples - away[:, None], 0.0)
        result = tl.dot(M, samples, input_precision="ieee", out_dtype=WORK) + beta[:, None]
        if g is not None:
            places = _places(i, L, G_IMAGE, G_POSITION, IMAGES)
            samples = tl.load(there + places[None, :], known, 0.0).to(WORK)
            result = tl.dot(N, samples, result, input_precision="ieee", out_dtype=WORK)
        places = _places(i, L, Y_IMAGE, Y_POSITION, IMAGES)
        stored = written[:, None] & (i < stop)[None, :]
        tl.store(out + places[None, :], result.to(y.dtype.element_ty), stored)


@triton.jit
def running(
    running_mean,
    running_matrix,
    tracked,
    mean,
    values,
    finite,
    factor,
    C,
    groups,
    divisor: tl.float64,
    momentum: tl.float64,
    K: tl.constexpr,
    KP: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Moves a group's running statistics towards the batch's, if all groups are finite.

    ``values`` are divided by ``divisor``: 1 for W, the number of samples less one for the
    covariance. The weight of the batch is ``momentum``, or what stands at ``factor``. The count of
    batches is moved by the first program alone, which reads it alone.
    """
    if factor is not None:
        share = tl.load(factor)
    else:
        share = momentum
    group = tl.program_id(0)
    within, inside, channels = _of_group(group, C, K, KP)
    bad = 0
    for begin in range(0, groups, GROUPS):
        place = begin + tl.arange(0, GROUPS)
        bad += tl.sum(1 - tl.load(finite + place, place < groups, 1), 0)
    if bad == 0:
        old = tl.load(running_mean + channels, inside, 0.0).to(tl.float64)
        new = old + share * (tl.load(mean + channels, inside, 0.0) - old)
        _store(running_mean + channels, new, inside)
        if running_matrix is not None:
            square = group.to(tl.int64) * K * K + within[:, None] * K + within[None, :]
            whole = (within < K)[:, None] & (within < K)[None, :]
            both = inside[:, None] & inside[None, :]
            eye = (within[:, None] == within[None, :]).to(tl.float64)
            batch = tl.where(both, tl.load(values + square, both, 0.0) / divisor, eye)
            old = tl.load(running_matrix + square, whole, 0.0).to(tl.float64)
            new = old + share * (batch - old)
            _store(running_matrix + square, new, whole)
        if tracked is not None:
            if group == 0:
                tl.store(tracked, tl.load(tracked) + 1)
