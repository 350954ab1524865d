"""What each replica does in the tests of synchronized statistics."""

import copy

import pytest
import torch
import torch.distributed as dist
from cases import colouring, correlated
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from whitenorm import (
    DecorrelatedBatchNorm2d,
    fit_whitening,
    recalibrate,
    synchronize,
    whiten,
    whitening_mse,
)

CHANNELS = 10  # in groups of 4: two whole ones and a remainder


def batches(sizes):
    """One batch of images for each replica, and the gradients that reach its output."""
    x = correlated((sum(sizes), CHANNELS, 3, 3))
    dy = correlated(x.shape, 1)
    return x.split(sizes), dy.split(sizes)


def make_layer(whitening="zca", running="whitening", shrinkage=0.0, affine=True):
    options = {"whitening": whitening, "running": running, "shrinkage": shrinkage}
    layer = DecorrelatedBatchNorm2d(CHANNELS, affine=affine, group_size=4, **options)
    layer.double()
    scale, bias = correlated((2, CHANNELS))
    with torch.no_grad():
        layer.weight.copy_(colouring(CHANNELS, 4) if affine == "matrix" else scale)
        layer.bias.copy_(bias)
    return layer


def forward_backward(layer, x, dy):
    x = x.clone().requires_grad_()
    y = layer(x)
    y.backward(dy)
    return {
        "output": y.detach(),
        "input gradient": x.grad,
        "weight gradient": layer.weight.grad,
        "bias gradient": layer.bias.grad,
        **{name: buffer.clone() for name, buffer in layer.named_buffers()},
    }


def one_layer(rank, sizes, *options):
    """Two steps of a synchronized layer, with the collectives counted."""
    xs, dys = batches(sizes)
    layer = synchronize(make_layer(*options))
    layer(xs[rank])
    counts = {"all_gather": 0, "all_reduce": 0}
    originals = {name: getattr(dist, name) for name in counts}

    def counted(name):
        def call(*args, **kwargs):
            counts[name] += 1
            return originals[name](*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in counts:
            patch.setattr(dist, name, counted(name))
        return {**forward_backward(layer, xs[rank], dys[rank]), "collectives": counts}


def make_network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(CHANNELS, 8, 3, padding=1, bias=False),
        DecorrelatedBatchNorm2d(8, group_size=4),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, bias=False),
        DecorrelatedBatchNorm2d(8, affine="matrix", group_size=3),
        nn.Flatten(),
        nn.Linear(8, 4),
    ).double()


def train_network(network, parts, total, world_size=1, accumulate=False):
    """Three optimizer steps on the mean squared output over the joint batch of ``total``."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        halves = [parts[::2], parts[1::2]] if accumulate else [parts]
        for i, part in enumerate(halves):
            later = accumulate and i == 0 and isinstance(network, DistributedDataParallel)
            with network.no_sync() if later else torch.enable_grad():
                target = torch.arange(4.0, dtype=torch.float64)
                # DDP averages over replicas: the factor turns that into the joint batch's mean.
                loss = (network(part) - target).square().sum() * world_size / total
                loss.backward()
        optimizer.step()
    module = network.module if isinstance(network, DistributedDataParallel) else network
    return {k: v.clone() for k, v in module.state_dict().items()}


def ddp(rank, sizes, accumulate):
    xs, _ = batches(sizes)
    network = DistributedDataParallel(synchronize(make_network()))
    return train_network(network, xs[rank], sum(sizes), len(sizes), accumulate)


def subgroup(rank):
    """Replicas 0 and 1 share their statistics; replica 2 is alone in its group."""
    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    xs, dys = batches([5, 11, 4])
    layer = synchronize(make_layer(), groups[0] if rank < 2 else groups[1])
    copied = copy.deepcopy(layer)
    assert copied.synchronized.process_group is layer.synchronized.process_group
    return forward_backward(layer, xs[rank], dys[rank])


def a_replica_with_nan(rank):
    xs, _ = batches([5, 11])
    x = xs[rank].clone()
    layer = synchronize(make_layer())
    layer(x)
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    if rank == 1:
        x[0, 0] = float("nan")
    y = layer(x)
    return {
        "spoilt": y.isnan().flatten(2).any(2).any(0),
        "unchanged": all(torch.equal(before[k], v) for k, v in layer.named_buffers()),
    }


def double_backward(rank):
    xs, _ = batches([5, 11])
    x = xs[rank].clone().requires_grad_()
    try:
        torch.autograd.grad(synchronize(make_layer())(x).pow(3).sum(), x, create_graph=True)
    except RuntimeError as error:
        return str(error)
    return "no error"


def recalibration(rank):
    """Replicas with batches of different sizes and numbers."""
    from test_recalibration import network, pictures, statistics

    model = network(running="covariance")
    x = pictures(30)
    own = (x[:7], x[7:12]) if rank == 0 else (x[12:],)
    found = recalibrate(model, own, process_group=dist.group.WORLD)
    layer = synchronize(make_layer(running="covariance"))
    recalibrate(layer, [x.repeat(1, 4, 1, 1)[:, :CHANNELS] for x in own])  # knows its replicas
    return {"network": statistics(found.eval()), "layer": statistics(layer.eval())}


def fsdp(rank):
    """Three steps of a sharded network, and the same on plain copies of each replica's batch."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(CHANNELS, 8, 3, padding=1, bias=False),
        DecorrelatedBatchNorm2d(8, group_size=4, running="covariance"),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 6, 3, bias=False),
        DecorrelatedBatchNorm2d(6, affine="matrix", group_size=4, running="covariance"),
        nn.Flatten(),
        nn.Linear(6, 4),
    ).double()
    replicas = [copy.deepcopy(network) for _ in range(2)]
    for layer in (network[0], network[1], network[3], network[4]):
        fully_shard(layer)
    fully_shard(network)
    xs, _ = batches([8, 8])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        network(xs[rank]).square().mean().backward()
        optimizer.step()
        for x, replica in zip(xs, replicas, strict=True):
            replica.zero_grad()
            replica(x).square().mean().backward()
        with torch.no_grad():
            for pair in zip(*[replica.parameters() for replica in replicas], strict=True):
                step = 0.1 * sum(p.grad for p in pair) / len(pair)
                for p in pair:
                    p -= step
    whole = {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in network.state_dict().items()
    }
    return {
        "sharded": all(isinstance(p, DTensor) for p in network.parameters()),
        "sharded state": {name: value.clone() for name, value in whole.items()},
        "plain": {name: value.clone() for name, value in replicas[rank].state_dict().items()},
    }


def embeddings(sizes, seed=0):
    """One batch of embeddings for each replica."""
    return correlated((sum(sizes), 7), seed).split(sizes)


def view_parts(sizes):
    """Two views of the same examples, each in one part for each replica."""
    shared, *own = [correlated((sum(sizes), 7), seed) for seed in (0, 1, 2)]
    return [(shared + noise).split(sizes) for noise in own]


def encoder():
    layer = nn.Linear(7, 4, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(correlated((4, 7), 3))
    return layer


def self_supervised(rank, cases):
    """Losses of several cases, and whitened embeddings."""
    losses = {name: w_mse(rank, *case) for name, case in cases.items()}
    return {**losses, "whitened": whitened_embeddings(rank, [5, 11, 0])}


def w_mse(rank, sizes, slices):
    """The loss of this replica's views, its gradients, and those of an encoder under DDP."""
    group, draws = dist.group.WORLD, torch.Generator()
    views = [parts[rank].clone().requires_grad_() for parts in view_parts(sizes)]
    options = {"eps": 0.0, "process_group": group, "slices": slices, "repeats": 2}
    loss = whitening_mse(*views, generator=draws.manual_seed(rank), **options)
    gradients = torch.autograd.grad(loss, views)
    draws.manual_seed(rank)
    orders = [torch.randperm(sizes[rank], generator=draws) for _ in range(2)]
    network = DistributedDataParallel(encoder())
    joint = network(torch.cat(views)).split(sizes[rank])
    encoded = joint if sizes[rank] else [torch.cat(joint)] * 2
    whitening_mse(*encoded, eps=0.0, process_group=group).backward()
    return {
        "loss": loss.detach(),
        "gradients": gradients,
        "orders": orders,
        "averaged by DDP": network.module.weight.grad,
    }


def whitened_embeddings(rank, sizes):
    """Each replica draws other groups; those of the first count."""
    draws = torch.Generator().manual_seed(rank)
    own = embeddings(sizes)[rank]
    options = {"group_size": 3, "shuffle_groups": True, "generator": draws}
    return whiten(own, process_group=dist.group.WORLD, **options)


def fit(rank):
    """Replicas with batches of different sizes and numbers, and one that has none."""
    x, group = embeddings([30])[0], dist.group.WORLD
    own = (x[:7], x[7:12]) if rank == 0 else (x[12:],)
    fitted = [fit_whitening(batches, process_group=group) for batches in (own, x[30 * rank :])]
    return [found.state_dict() for found in fitted]
