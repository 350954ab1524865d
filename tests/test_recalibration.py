"""Running statistics anew: those of one batch that holds all examples."""

import copy

import pytest
import replica_jobs as jobs
import torch
from cases import correlated
from replicas import run_replicas
from torch import nn
from torch.optim.swa_utils import AveragedModel

import whitenorm
from whitenorm import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, recalibrate


def network(**options):
    """Both kinds of norms, a remainder, an in-place activation, dropout."""
    torch.manual_seed(0)
    options = {"shrinkage": 0.0, **options}
    return nn.Sequential(
        nn.Conv2d(3, 10, 3),
        DecorrelatedBatchNorm2d(10, group_size=4, **options),
        nn.ReLU(inplace=True),
        nn.Conv2d(10, 6, 3),
        nn.BatchNorm2d(6),
        nn.Dropout(0.5),
        nn.Conv2d(6, 5, 1),
        DecorrelatedBatchNorm2d(5, **options),
    ).double()


def pictures(n=50):
    """Their mean drifts, so that batches differ in their means."""
    return correlated((n, 3, 8, 8)) + torch.arange(n).view(-1, 1, 1, 1) / 20


def statistics(model):
    return {name: b.clone() for name, b in model.named_buffers() if "tracked" not in name}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-10, msg=name)


def of_one_batch(model, x):
    """The running statistics of one training step on all, without dropout."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "momentum"):
            module.momentum = 1.0
    model.train()(x)
    return statistics(model.eval())


@pytest.mark.parametrize(
    "options",
    [
        {"running": "covariance"},
        {"running": "whitening"},
        {"running": "covariance", "shrinkage": 0.3},
        {"running": "covariance", "whitening": "cholesky"},
        {"running": "whitening", "shrinkage": 0.3},
    ],
    ids=str,
)
def test_several_batches_count_as_one(options):
    model, x = network(**options), pictures()
    expected = of_one_batch(model, x)
    assert recalibrate(model, x.split(16)) is model
    assert_equal(statistics(model.eval()), expected)


def test_only_running_statistics_change():
    model = network()
    model[1].eval()
    before = copy.deepcopy(model)
    recalibrate(model, pictures().split(16))
    for name, parameter in before.named_parameters():
        assert torch.equal(parameter, dict(model.named_parameters())[name])
    modes = [[m.training for m in each.modules()] for each in (before, model)]
    assert modes[0] == modes[1]
    assert all(not m._forward_pre_hooks for m in model.modules())
    assert model[1].momentum == before[1].momentum


def test_batches_are_inputs_or_start_with_them():
    x, y = pictures(), torch.zeros(50)
    expected = statistics(recalibrate(network(), x.split(20)))
    pairs = list(zip(x.split(20), y.split(20), strict=True))
    for batches in (pairs, [list(pair) for pair in pairs], iter(pairs), (pair for pair in pairs)):
        assert_equal(statistics(recalibrate(network(), batches)), expected)


def test_one_pass_goes_through_the_batches_once():
    x, read = pictures(), []

    class Counted:
        def __iter__(self):
            for part in x.split(16):
                read.append(part)
                yield part

    model = recalibrate(network(), Counted(), one_pass=True)
    assert len(read) <= 2 * 4 - 3  # the first batch tells which layers are called
    expected = of_one_batch(network(), x)
    first, last = "1.running_mean", "7.running_mean"
    found = statistics(model)
    torch.testing.assert_close(found[first], expected[first])
    torch.testing.assert_close(found[last], expected[last], atol=0.1, rtol=0)


def test_automatic_shrinkage_stays_what_it_was_in_training():
    """Pooled over many batches the estimate itself would vanish; training shrank by it."""
    x = torch.randn(640, 16, generator=torch.Generator().manual_seed(0)).double()
    x = x + 0.3 * x.roll(1, 1)
    layer = DecorrelatedBatchNorm1d(16, running="covariance", shrinkage="auto", momentum=None)
    trained, anew = layer.double(), copy.deepcopy(layer)
    for batch in x.split(16):
        trained(batch)
    recalibrate(anew, x.split(16))
    off = ~torch.eye(16, dtype=torch.bool)
    ratio = anew.running_covariance[0][off].norm() / trained.running_covariance[0][off].norm()
    assert 0.8 < ratio < 1.2
    assert anew.running_covariance[0][off].norm() < 0.8 * x.T.cov()[off].norm()


def test_a_weight_average_is_mended():
    x = pictures()
    averaged = AveragedModel(network(running="covariance"), use_buffers=False)
    expected = of_one_batch(averaged, x)
    assert_equal(statistics(recalibrate(averaged, x.split(16)).eval()), expected)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_model_is_recalibrated():
    model = torch.compile(network(), backend="eager")
    expected = of_one_batch(network(), pictures())
    model(pictures(8))
    recalibrate(model, pictures().split(16))
    assert_equal(statistics(model._orig_mod.eval()), expected)


def test_a_layer_that_is_called_twice_pools_both_calls():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = DecorrelatedBatchNorm1d(4, running="covariance", shrinkage=0.0).double()

        def forward(self, x):
            return self.norm(x), self.norm(3 * x + 1)

    x = correlated((30, 4))
    model = recalibrate(Twice(), x.split(10))
    joint = torch.cat([x, 3 * x + 1])
    torch.testing.assert_close(model.norm.running_mean, joint.mean(0))
    torch.testing.assert_close(model.norm.running_covariance[0], joint.T.cov())


def test_a_layer_that_is_not_called_keeps_its_statistics():
    model = nn.Sequential(DecorrelatedBatchNorm1d(4))
    model[0].spare = DecorrelatedBatchNorm1d(4)
    model[0].spare.running_mean.fill_(7)
    recalibrate(model, [torch.randn(9, 4)])
    assert (model[0].spare.running_mean == 7).all()


def test_replicas_pool_their_batches_whatever_their_number():
    x = pictures(30)
    expected = {
        "network": of_one_batch(network(running="covariance"), x),
        "layer": of_one_batch(
            jobs.make_layer(running="covariance"), x.repeat(1, 4, 1, 1)[:, : jobs.CHANNELS]
        ),
    }
    for result in run_replicas(jobs.recalibration, 2):
        for name in expected:
            assert_equal(result[name], expected[name])


def test_what_there_is_nothing_to_do_for_is_an_error():
    with pytest.raises(ValueError, match="batches is empty; give one batch"):
        recalibrate(network(), [])
    with pytest.raises(ValueError, match=r"Linear calls no .* nothing to recalibrate"):
        recalibrate(nn.Linear(3, 3), [torch.randn(2, 3)])


def test_a_converted_model_evaluates_well_after_it():
    """Small batches: running statistics of single batches, against pooled ones."""
    torch.manual_seed(0)
    x = torch.randn(400, 8) @ torch.randn(8, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    model(x)
    model = whitenorm.convert_batchnorm(model, group_size=8, shrinkage=0.0)
    recalibrate(model, x.split(10))
    y = model.eval()(x)
    torch.testing.assert_close(y.T.cov(), torch.eye(8), atol=0.02, rtol=0)
