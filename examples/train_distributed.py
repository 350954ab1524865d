"""Trains on several replicas whose DBN layers share their statistics.

    torchrun --nproc-per-node 2 examples/train_distributed.py

Each replica holds its own part of the data, of a different size; the layers whiten with the
statistics of all of it, so the running statistics are the same on every replica.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from whitenorm import DecorrelatedBatchNorm1d, synchronize


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 32), DecorrelatedBatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1)
    )
    model = DistributedDataParallel(synchronize(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(64 + 32 * rank, 16, generator=generator)
    y = x[:, :1] * x[:, 1:2]
    for step in range(100):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0 or step == 99:
            print(f"replica {rank}, step {step:2}: loss {loss.item():.4f}", flush=True)

    mine = model.module[1].running_covariance
    everybodys = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(everybodys, mine)
    same = all(torch.equal(mine, other) for other in everybodys)
    print(f"replica {rank}: running statistics are the same everywhere: {same}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
