"""What is measured is what it claims to be."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from whitenorm import DecorrelatedBatchNorm2d
from whitenorm.lab.bench import BenchError
from whitenorm.lab.bench.ports import PORTS, Port
from whitenorm.lab.bench.suites import NETWORKS
from whitenorm.lab.bench.workloads import Layer, Network, PeakMemory, TrainingIteration, layer


@pytest.mark.parametrize(("port", "whitening"), [("loop", "zca"), ("newton", "newton")])
def test_ports_compute_what_whitenorm_does(port, whitening):
    paper = {"running": "whitening", "shrinkage": 0.0}
    ours = DecorrelatedBatchNorm2d(12, group_size=4, whitening=whitening, **paper).double()
    theirs = Port(PORTS[port], 12, 4).double()
    with torch.no_grad():
        for module in (ours, theirs):
            module.weight.copy_(torch.linspace(0.5, 2, 12))
            module.bias.copy_(torch.linspace(-1, 1, 12))
    x = (torch.randn(6, 12, 3, 4, dtype=torch.float64).cumsum(1) + 3).requires_grad_()
    expected, found = ours(x), theirs(x)
    assert_close(found, expected)
    g = torch.randn(x.shape, dtype=torch.float64)
    assert_close(
        torch.autograd.grad(found, [x, *theirs.parameters()], g),
        torch.autograd.grad(expected, [x, *ours.parameters()], g),
    )
    assert_close(theirs.eval()(x), ours.eval()(x))


@pytest.mark.parametrize("name", ["bn", "dbn-g8", "loop-g8", "newton-g8"])
def test_every_layer_runs_in_other_formats(name):
    layer(Layer((4, 16, 4, 4), "bfloat16", "channels_last"), name)


@pytest.mark.filterwarnings("ignore:a batch of")
@pytest.mark.parametrize("title", NETWORKS)
def test_every_network_trains_with_every_normalization(title):
    small = {"vgg-a": {"width": 8}, "resnet": {"depth": 8}, "imagenet-resnet": {"depth": 18}}
    network = NETWORKS[title]
    options = small.get(network.model, network.options)
    for name in ("bn", *network.dbn):
        TrainingIteration(replace(network, batch=2, options=options), name)()


@pytest.mark.parametrize(
    ("name", "ports", "size"), [("loop-scale", 1, 8), ("newton-all-g16", 7, 16)]
)
def test_ports_stand_in_a_network_where_dbn_would(name, ports, size):
    network = replace(NETWORKS["Res-20"], batch=8, options={"depth": 8})
    model, x, _ = network.build(name)
    found = [module for module in model.modules() if isinstance(module, Port)]
    assert [port.size for port in found] == [size] * ports
    assert {port.whiten for port in found} == {PORTS[name.partition("-")[0]]}
    dbn, *_ = network.build(name.replace(name.partition("-")[0], "dbn"))
    assert sum(isinstance(m, DecorrelatedBatchNorm2d) for m in dbn.modules()) == ports
    assert model(x).isfinite().all()


def test_a_training_iteration_changes_the_weights_and_notices_nan():
    iteration = TrainingIteration(Network("mlp", 32, (16,), {}, {"hidden": (8,)}, 4), "dbn-g4")
    before = [p.clone() for p in iteration.network.parameters()]
    iteration()
    assert all((p != q).any() for p, q in zip(iteration.network.parameters(), before, strict=True))
    iteration.x.fill_(torch.nan)
    with pytest.raises(BenchError, match="loss became nan"):
        iteration()


def test_peak_memory_is_that_of_gradients_and_activations_each_time():
    weights = 4 * (1024 * 32 + 32 * 32 + 32 * 68)
    sampler = PeakMemory(Network("mlp", 64, (1024,), {}, {"hidden": (32, 32)}, 68), "bn")
    (first,), (second,) = sampler().values(), sampler().values()
    assert weights < first < 3 * weights
    assert first == second
