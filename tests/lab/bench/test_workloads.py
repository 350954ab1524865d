"""What is measured is what it claims to be."""

import math

import pytest
import torch
from torch.testing import assert_close

from whitenorm import DecorrelatedBatchNorm2d
from whitenorm.lab.bench import BenchError
from whitenorm.lab.bench.ports import EighLoop, NewtonSchulz
from whitenorm.lab.bench.suites import networks
from whitenorm.lab.bench.workloads import Network, PeakMemory, TrainingIteration


@pytest.mark.parametrize(("port", "whitening"), [(EighLoop, "zca"), (NewtonSchulz, "newton")])
def test_ports_compute_what_whitenorm_does(port, whitening):
    ours = DecorrelatedBatchNorm2d(12, group_size=4, whitening=whitening).double()
    theirs = port(12, 4).double()
    with torch.no_grad():
        for module in (ours, theirs):
            module.weight.copy_(torch.linspace(0.5, 2, 12))
            module.bias.copy_(torch.linspace(-1, 1, 12))
    x = (torch.randn(6, 12, 3, 4, dtype=torch.float64).cumsum(1) + 3).requires_grad_()
    g = torch.randn(x.shape, dtype=torch.float64)
    expected, found = ours(x), theirs(x)
    assert_close(found, expected)
    assert_close(
        torch.autograd.grad(found, [x, *theirs.parameters()], g),
        torch.autograd.grad(expected, [x, *ours.parameters()], g),
    )
    assert_close(theirs.eval()(x), ours.eval()(x))


@pytest.mark.parametrize("title", networks(quick=True))
def test_every_network_trains_with_every_normalization(title):
    for network in networks(quick=True)[title].values():
        iteration = TrainingIteration(network)
        iteration()
        iteration.check()


def test_a_training_iteration_changes_the_weights_and_notices_nan():
    network = Network("mlp", "dbn", 32, (16,), 4, {"hidden": (8,)}, {"group_size": 4})
    iteration = TrainingIteration(network)
    before = [p.clone() for p in iteration.network.parameters()]
    iteration()
    assert all((p != q).any() for p, q in zip(iteration.network.parameters(), before, strict=True))
    iteration.loss = math.nan
    with pytest.raises(BenchError, match="loss became nan"):
        iteration.check()


def test_peak_memory_is_that_of_gradients_and_activations_each_time():
    network = Network("mlp", "bn", 64, (1024,), 68, {"hidden": (32, 32)})
    weights = 4 * (1024 * 32 + 32 * 32 + 32 * 68)
    sampler = PeakMemory(network)
    (first,), (second,) = sampler().values(), sampler().values()
    assert weights < first < 3 * weights
    assert first == second
