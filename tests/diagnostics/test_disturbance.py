"""Stochastic normalization disturbance, against its definition."""

from functools import partial
from itertools import combinations

import pytest
import torch
from cases import WHITENINGS, assert_same_state, correlated, state
from torch import nn

from whitenorm import DecorrelatedBatchNorm1d, decorrelated_batch_norm
from whitenorm.diagnostics import normalization_disturbance


def whiten(**options):
    return partial(decorrelated_batch_norm, training=True, **options)


def cholesky_whitened(x):
    """Rows x, (x - mean) L^-T where L L^T is the covariance with eps."""
    centred = x - x.mean(0)
    S = centred.T @ centred / len(x) + 1e-5 * torch.eye(x.shape[1], dtype=x.dtype)
    return centred @ torch.linalg.inv(torch.linalg.cholesky(S)).T


def standardized(x):
    return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({"group_size": 2, "whitening": "cholesky"}, cholesky_whitened),
        ({"group_size": 1}, standardized),
    ],
    ids=["Cholesky", "BatchNorm"],
)
def test_it_tends_to_the_expectation_over_all_batches_that_contain_the_sample(options, reference):
    """Seven samples in batches of four: the twenty that contain a sample, enumerated."""
    x = correlated((7, 2))
    disturbances, spreads = [], []
    for sample in range(7):
        others = [i for i in range(7) if i != sample]
        chosen = combinations(others, 3)
        outputs = torch.stack([reference(x[[sample, *batch]])[0] for batch in chosen])
        distance = (outputs - outputs.mean(0)).norm(dim=1)
        disturbances.append(distance.mean())
        spreads.append(distance.square().mean().sqrt())
    expected = float(torch.stack(disturbances).mean())
    found = normalization_disturbance(whiten(**options), x, 4, rounds=600)
    assert found == pytest.approx(expected, rel=0.03)
    assert float(torch.stack(spreads).mean()) > 1.05 * expected  # the definition has no squares


@pytest.mark.parametrize("batch_size", [4, 5])
def test_each_sample_is_seen_once_a_round_among_different_others(batch_size):
    squares = [float(i * i) for i in range(12)]
    x = torch.tensor(squares)[:, None]
    seen = []

    def centred(batch):
        seen.append(batch.flatten().tolist())
        return batch - batch.mean(0)

    found = normalization_disturbance(centred, x, batch_size, rounds=3)
    batches = -(-12 // batch_size)
    assert len(seen) == 3 * batches
    assert all(len(set(batch)) == batch_size for batch in seen)
    outputs = torch.full((3, 12), torch.nan)
    for turn in range(3):
        for batch in reversed(seen[turn * batches : (turn + 1) * batches]):
            for value in batch:  # of a sample that is in two batches, the first counts
                outputs[turn, squares.index(value)] = value - sum(batch) / batch_size
    assert not outputs.isnan().any()
    expected = (outputs - outputs.mean(0)).abs().mean()
    assert found == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("whitening", WHITENINGS)
@pytest.mark.parametrize("group_size", [1, 8])
def test_one_batch_of_all_samples_disturbs_nothing(whitening, group_size):
    normalize = whiten(whitening=whitening, group_size=group_size)
    assert normalization_disturbance(normalize, correlated((64, 8)), 64) < 1e-9


@pytest.mark.parametrize("whitening", WHITENINGS)
def test_it_falls_with_the_batch_size_and_rises_with_the_group_size(whitening):
    x = torch.randn(512, 16)
    table = [
        [
            normalization_disturbance(whiten(group_size=size, whitening=whitening), x, batch)
            for batch in (32, 64, 256)
        ]
        for size in (1, 4, 16)
    ]
    for row in table:
        assert row[0] > row[1] > row[2]
    for column in zip(*table, strict=True):
        assert column[0] < column[1] < column[2]


def test_group_size_one_is_batch_normalization():
    x = correlated((96, 6))
    found = [
        normalization_disturbance(normalize, x, 16, generator=torch.Generator().manual_seed(3))
        for normalize in (whiten(group_size=1), nn.BatchNorm1d(6, dtype=torch.float64))
    ]
    assert found[0] == pytest.approx(found[1])


def test_positions_of_maps_are_samples_of_their_channels():
    """With one position it is that of (N, C), and repeating the position changes nothing."""
    x = correlated((64, 6))
    found = [
        normalization_disturbance(
            whiten(group_size=3), maps, 16, generator=torch.Generator().manual_seed(3)
        )
        for maps in (x, x[:, :, None, None], x[:, :, None, None].expand(-1, -1, 2, 3))
    ]
    assert found[0] == pytest.approx(found[1])
    assert found[0] == pytest.approx(found[2])


def test_a_layer_is_taken_as_it_is_and_left_as_it_was():
    layer = DecorrelatedBatchNorm1d(6, group_size=3)
    x = correlated((64, 6), dtype=torch.float32)
    layer(x)
    before = state(layer)
    torch.manual_seed(5)
    first = normalization_disturbance(layer, x, 16)
    follows = torch.randn(1)
    assert_same_state(before, layer)
    torch.manual_seed(5)
    assert normalization_disturbance(layer, x, 16) == first > 0.1
    assert torch.equal(torch.randn(1), follows)
    with torch.no_grad():
        layer.weight.fill_(2.0)
    torch.manual_seed(5)
    assert normalization_disturbance(layer, x, 16) == pytest.approx(2 * first, rel=1e-5)
    assert normalization_disturbance(layer.eval(), x, 16) < 1e-5
    assert not layer.training


def test_the_random_numbers_are_the_generators():
    x = torch.randn(64, 4)
    kept = torch.get_rng_state()
    first, again, other = (
        normalization_disturbance(whiten(), x, 16, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), kept)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((8,), {"batch_size": 2}, r"expected activations \(N, C, ...\), got shape \(8,\)"),
        ((8, 2), {"batch_size": 9}, "from 1 to the number of examples, 8, got 9"),
        ((8, 2), {"batch_size": 4, "rounds": 1}, "rounds must be at least 2, got 1"),
    ],
)
def test_what_it_cannot_be_estimated_from_is_refused(shape, options, message):
    with pytest.raises(ValueError, match=message):
        normalization_disturbance(whiten(), torch.randn(shape), **options)
