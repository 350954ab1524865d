"""Runs a function in several processes that talk over gloo, and hands back what each returns."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_replicas(function, world_size, *args):
    """The results of ``function(rank, *args)`` in each of ``world_size`` processes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_replica, (world_size, folder, function, args), nprocs=world_size)
        return [torch.load(f"{folder}/{rank}.pt") for rank in range(world_size)]


def _replica(rank, world_size, folder, function, args):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size
    )
    torch.save(function(rank, *args), f"{folder}/{rank}.pt")
    # Nobody leaves while another may still be talking, and gloo's threads aren't waited for: the
    # end of the interpreter now and then finds one of them running, and aborts.
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)
