"""Runs a function in several processes that talk over gloo, and hands back what each returns.

The processes stay for the next function, since importing torch takes them seconds.
"""

import io
import os
import tempfile
import traceback
from multiprocessing.connection import wait

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

_processes = []  # and the parent's end of a pipe to each


def run_replicas(function, world_size, *args):
    """The results of ``function(rank, *args)`` in each of ``world_size`` processes.

    They form a process group of their own. What a function changes of a module it has to put back.
    """
    while len(_processes) < world_size:
        _processes.append(_started())
    pipes = [pipe for _, pipe in _processes[:world_size]]
    with tempfile.TemporaryDirectory() as folder:
        for rank, pipe in enumerate(pipes):
            pipe.send((rank, world_size, f"file://{folder}/meet", function, args))
        answers = {}
        while len(answers) < world_size:
            for pipe in wait([pipe for pipe in pipes if pipe not in answers]):
                answers[pipe] = _answer(pipe)
        return [answers[pipe] for pipe in pipes]


def _started():
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_replica, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _answer(pipe):
    """The result that a process sends; after an error all are ended, as others may wait for it."""
    try:
        result, error = pipe.recv()
    except EOFError:
        result, error = None, "a replica has died"
    if error is not None:
        for process, _ in _processes:
            process.kill()
        _processes.clear()
        raise RuntimeError(error)
    return torch.load(io.BytesIO(result))


def _replica(pipe):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    while True:
        try:
            rank, world_size, meeting, function, args = pipe.recv()
        except EOFError:  # the tests are over
            # Gloo's threads aren't waited for: the end of the interpreter now and then finds one
            # of them running, and aborts.
            os._exit(0)
        try:
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
            result = io.BytesIO()
            torch.save(function(rank, *args), result)
            dist.barrier()  # nobody leaves while another may still be talking
            dist.destroy_process_group()
            pipe.send((result.getvalue(), None))
        except Exception:
            pipe.send((None, traceback.format_exc()))
