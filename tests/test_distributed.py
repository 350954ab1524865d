"""Synchronized statistics: several processes are one process on the joint batch."""

import pickle

import pytest
import replica_jobs as jobs
import torch
from cases import WHITENINGS, correlated
from replicas import run_replicas
from torch import nn

import whitenorm
from whitenorm import DecorrelatedBatchNorm1d, synchronize


def assert_equal(value, expected):
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("sizes", "whitening", "running", "shrinkage", "affine"),
    [
        ([5, 11], "zca", "whitening", 0.0, True),
        ([5, 11, 0], "zca", "covariance", "auto", "matrix"),
        ([0, 16], "cholesky", "whitening", 0.3, True),
        ([5, 11], "newton", "whitening", 0.0, "matrix"),
        ([5, 11], "pca", "whitening", 0.0, True),
    ],
)
def test_replicas_compute_what_one_process_does_on_the_joint_batch(
    sizes, whitening, running, shrinkage, affine
):
    options = whitening, running, shrinkage, affine
    results = run_replicas(jobs.one_layer, len(sizes), sizes, *options)
    xs, dys = jobs.batches(sizes)
    layer = jobs.make_layer(*options)
    layer(torch.cat(xs))
    expected = jobs.forward_backward(layer, torch.cat(xs), torch.cat(dys))
    for name in ("output", "input gradient"):
        assert_equal(torch.cat([result[name] for result in results]), expected[name])
    for name in ("weight gradient", "bias gradient"):
        assert_equal(sum(result[name] for result in results), expected[name])
    for name, _ in layer.named_buffers():
        for result in results:
            assert_equal(result[name], expected[name])
            assert torch.equal(result[name], results[0][name]), "replicas differ"
    for result in results:
        assert result["collectives"] == {"all_gather": 1, "all_reduce": 1}


@pytest.mark.parametrize("accumulate", [False, True], ids=["plain", "no_sync"])
def test_three_steps_under_ddp_are_three_steps_of_one_process(accumulate):
    sizes = [6, 10]
    results = run_replicas(jobs.ddp, 2, sizes, accumulate)
    xs, _ = jobs.batches(sizes)
    if accumulate:  # the same halves as the replicas' own
        joint = torch.empty_like(torch.cat(xs))
        joint[::2] = torch.cat([x[::2] for x in xs])
        joint[1::2] = torch.cat([x[1::2] for x in xs])
    else:
        joint = torch.cat(xs)
    expected = jobs.train_network(jobs.make_network(), joint, sum(sizes), accumulate=accumulate)
    for result in results:
        for name, value in expected.items():
            assert_equal(result[name], value)


def test_a_process_group_of_its_own_is_kept_to():
    results = run_replicas(jobs.subgroup, 3)
    xs, dys = jobs.batches([5, 11, 4])
    pair = jobs.forward_backward(jobs.make_layer(), torch.cat(xs[:2]), torch.cat(dys[:2]))
    assert_equal(torch.cat([result["output"] for result in results[:2]]), pair["output"])
    alone = jobs.forward_backward(jobs.make_layer(), xs[2], dys[2])
    assert_equal(results[2]["output"], alone["output"])


def test_nan_on_one_replica_leaves_the_running_statistics_of_all():
    spoilt = torch.arange(jobs.CHANNELS) < 4  # the first group, everywhere
    for result in run_replicas(jobs.a_replica_with_nan, 2):
        assert result["unchanged"]
        assert torch.equal(result["spoilt"], spoilt)


def test_gradients_of_gradients_are_refused_by_name():
    for message in run_replicas(jobs.double_backward, 2):
        assert "gradients of gradients" in message
        assert "isn't synchronized" in message


@pytest.mark.parametrize("whitening", WHITENINGS)
def test_without_a_process_group_nothing_changes(whitening):
    x = correlated((9, 4))
    plain = DecorrelatedBatchNorm1d(4, whitening=whitening).double()
    synchronized = synchronize(DecorrelatedBatchNorm1d(4, whitening=whitening).double())
    assert torch.equal(plain(x), synchronized(x))
    assert "synchronized" in repr(synchronized)
    assert torch.equal(pickle.loads(pickle.dumps(synchronized)).eval()(x), plain.eval()(x))


def test_a_model_without_dbn_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"no DecorrelatedBatchNorm layer.*convert_batchnorm"):
        synchronize(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))


def test_synchronize_finds_every_layer_and_returns_the_model():
    model = nn.Sequential(DecorrelatedBatchNorm1d(4), nn.Sequential(DecorrelatedBatchNorm1d(4)))
    assert whitenorm.synchronize(model) is model
    assert model[0].synchronized is not None
    assert model[1][0].synchronized is not None
