"""The passes over the activations, in every layout and in pieces, against plain arithmetic."""

import pytest
import torch
from accuracy import forward_backward, worst_channel
from cases import correlated
from reference import samples

from whitenorm import passes
from whitenorm.layout import grouped, is_channels_last, new_output

LAYOUTS = {
    "rows": correlated((300, 6)),
    "maps": correlated((5, 6, 9, 9)),
    "small maps": correlated((40, 6, 2, 2)),
    "channels last": correlated((5, 6, 9, 9)).contiguous(memory_format=torch.channels_last),
    "rows of many groups": correlated((300, 24)),
    "channels last, many groups": correlated((5, 30, 9, 9)).to(memory_format=torch.channels_last),
    "one image": correlated((1, 6, 40, 40)),
    "long images": correlated((2, 6, 70, 70)),
}
EACH_LAYOUT = pytest.mark.parametrize("x", LAYOUTS.values(), ids=LAYOUTS)
SHIFTED = pytest.mark.parametrize("shifted", [False, True], ids=["as it is", "shifted"])


def flat(x, size=3):
    """[G, k, m]: the samples of each group."""
    return samples(x).reshape(-1, size, samples(x).shape[1])


def view_of(x):
    return grouped(x, 3, is_channels_last(x))


def shift_of(x, shifted):
    return flat(x).mean(2, keepdim=True) if shifted else None


@EACH_LAYOUT
def test_moments_are_mean_and_central_sum(x):
    for far in (0.0, 1e3):
        shift, mean, central, *_ = passes.moments(view_of(x + far), torch.float64)
        assert shift is not None or far == 0
        groups = flat(x)
        centred = groups - groups.mean(2, keepdim=True)
        torch.testing.assert_close(mean, groups.mean(2, keepdim=True) + far)
        torch.testing.assert_close(central, centred @ centred.mT, rtol=1e-7, atol=1e-7)


@EACH_LAYOUT
@SHIFTED
def test_sums_are_of_g_and_of_its_products(x, shifted):
    g, shift = correlated(x.shape, 1), shift_of(x, shifted)
    total, outer = passes.sums(
        view_of(x), shift, torch.float64, grouped(g, 3, is_channels_last(x))
    )
    away = flat(x) if shift is None else flat(x) - shift
    torch.testing.assert_close(total, flat(g).sum(2, keepdim=True))
    torch.testing.assert_close(outer, flat(g) @ away.mT)


@EACH_LAYOUT
@SHIFTED
def test_apply_writes_the_sum_of_its_terms(x, shifted):
    g, shift, rows = correlated(x.shape, 1), shift_of(x, shifted), is_channels_last(x)
    groups = x.shape[1] // 3
    P, Q, constant = (correlated((groups, 3, n), seed) for n, seed in ((3, 2), (3, 3), (1, 4)))
    out = new_output(x, rows)
    first = passes.Term(P, grouped(g, 3, rows))
    passes.apply(grouped(out, 3, rows), constant, first, passes.Term(Q, view_of(x), shift))
    away = flat(x) if shift is None else flat(x) - shift
    torch.testing.assert_close(flat(out), P @ flat(g) + Q @ away + constant)


@pytest.mark.parametrize("piece", [1, 500, 4000])
@pytest.mark.parametrize("far", [0.0, 10.0])
@pytest.mark.parametrize(
    ("shape", "group_size"),
    [
        ((4100, 8), 4),
        ((35, 8, 12, 12), 4),
        ((35, 11, 9, 9), 4),
        ((70, 8, 3, 3), 8),
        ((33, 6, 5, 5), 1),
    ],
    ids=["rows", "maps", "remainder", "small maps", "single channels"],
)
def test_pieces_are_as_good_as_the_whole(monkeypatch, piece, far, shape, group_size):
    x, dy = correlated(shape).float() + far, correlated(shape, 1).float()
    expected = forward_backward(x.double(), dy.double(), group_size=group_size)
    monkeypatch.setattr(passes, "PIECE", piece)
    found = forward_backward(x, dy, group_size=group_size)
    assert max(worst_channel(a, b) for a, b in zip(found, expected, strict=True)) <= 1e-4
