"""Loading states of other layers: converted where inference stays the same, else explained."""

import copy

import pytest
import torch
from cases import WHITENINGS, correlated
from torch import nn

from whitenorm import DecorrelatedBatchNorm1d


def trained(steps=5, **options):
    layer = DecorrelatedBatchNorm1d(10, group_size=4, **options)
    for seed in range(steps):
        layer(correlated((64, 10), seed=seed, dtype=torch.float32))
    return layer


@pytest.mark.parametrize("whitening", WHITENINGS)
def test_a_running_covariance_becomes_its_whitening(whitening):
    old = trained(running="covariance", whitening=whitening)
    new = DecorrelatedBatchNorm1d(10, group_size=4, running="whitening", whitening=whitening)
    new.load_state_dict(old.state_dict())
    x = correlated((20, 10), dtype=torch.float32)
    torch.testing.assert_close(new.eval()(x), old.eval()(x))


@pytest.mark.parametrize("whitening", ["zca", "cholesky"])
def test_a_running_whitening_becomes_its_covariance(whitening):
    old = trained(running="whitening", whitening=whitening)
    new = DecorrelatedBatchNorm1d(10, group_size=4, running="covariance", whitening=whitening)
    new.load_state_dict(old.state_dict())
    x = correlated((20, 10), dtype=torch.float32)
    torch.testing.assert_close(new.eval()(x), old.eval()(x), rtol=1e-3, atol=1e-3)


def test_a_scale_becomes_the_diagonal_of_matrices():
    """And the other kind of running statistics is converted on the way."""
    old = trained(running="covariance")
    nn.init.normal_(old.weight)
    new = DecorrelatedBatchNorm1d(10, group_size=4, running="whitening", affine="matrix")
    new.load_state_dict(old.state_dict())
    assert new.weight.requires_grad
    assert torch.equal(torch.block_diag(*new.weight)[:10, :10], torch.diag(old.weight))
    assert torch.equal(new.weight[2, 2:, 2:], torch.eye(2))
    x = correlated((20, 10), dtype=torch.float32)
    torch.testing.assert_close(new.eval()(x), old.eval()(x))
    again = DecorrelatedBatchNorm1d(10, device="meta", group_size=4, affine="matrix")
    again.load_state_dict(old.state_dict(), assign=True)
    torch.testing.assert_close(again.eval()(x), old.eval()(x))


def test_the_state_itself_stays_as_it_was():
    old = trained(running="whitening")
    state = old.state_dict()
    names = list(state)
    DecorrelatedBatchNorm1d(10, group_size=4, running="covariance").load_state_dict(state)
    assert list(state) == names


@pytest.mark.parametrize("whitening", ["pca", "newton"])
def test_an_average_that_no_covariance_has_is_refused(whitening):
    old = trained(running="whitening", whitening=whitening)
    new = DecorrelatedBatchNorm1d(10, group_size=4, running="covariance", whitening=whitening)
    with pytest.raises(RuntimeError, match="running='whitening'; build it with that"):
        new.load_state_dict(old.state_dict())


def test_a_whitening_beyond_the_digits_of_its_covariance_is_refused():
    """Of channels that repeat each other, in float32: inference would be that of rounding."""
    old = DecorrelatedBatchNorm1d(8, running="whitening", shrinkage=0.0)
    for seed in range(50):
        x = 100 * correlated((64, 4), seed=seed, dtype=torch.float32)
        old(torch.cat([x, x], 1))
    new = DecorrelatedBatchNorm1d(8, running="covariance")
    before = copy.deepcopy(new.state_dict())
    with pytest.raises(RuntimeError, match="running='whitening'; build it with that"):
        new.load_state_dict(old.state_dict())
    assert torch.equal(new.running_covariance, before["running_covariance"])


@pytest.mark.parametrize(
    ("other", "hint"),
    [
        (
            nn.BatchNorm1d(8),
            "the state is BatchNorm's; load it into the model with BatchNorm, then",
        ),
        (DecorrelatedBatchNorm1d(8, group_size=2), "groups of 2; build it with that group_size"),
        (
            DecorrelatedBatchNorm1d(8, group_size=2, running="whitening"),
            "groups of 2; build it with that group_size",
        ),
    ],
    ids=["BatchNorm", "group_size", "group_size and running"],
)
def test_a_state_of_another_kind_of_layer_says_what_to_do(other, hint):
    model = nn.Sequential(DecorrelatedBatchNorm1d(8, group_size=4, running="covariance"))
    with pytest.raises(RuntimeError, match=hint):
        model.load_state_dict(nn.Sequential(other).state_dict())


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"group_size": 4}, "a layer with affine='matrix'; build it with that"),
        ({"group_size": 2, "affine": "matrix"}, "groups of 4; build it with that group_size"),
    ],
    ids=["scale", "group_size"],
)
@pytest.mark.parametrize("tracked", [True, False])
def test_matrices_that_a_layer_has_no_room_for_say_what_to_do(options, hint, tracked):
    kind = {"track_running_stats": tracked}
    other = DecorrelatedBatchNorm1d(8, group_size=4, affine="matrix", **kind)
    with pytest.raises(RuntimeError, match=hint):
        DecorrelatedBatchNorm1d(8, **options, **kind).load_state_dict(other.state_dict())
