"""What a replica does in the tests of Triton's passes."""

import replica_jobs
import torch

from whitenorm.gpu import gate


def one_layer(rank, sizes, on):
    gate._state = gate._State()
    gate._state.counts_as_gpu = ("cuda", "cpu")
    gate._state.dtypes = (*gate.DTYPES, torch.float64)
    gate._check = lambda kind: True
    gate.enable() if on else gate.disable()
    result = replica_jobs.one_layer(rank, sizes, "zca", "whitening", 0.0)
    return {**result, "kinds": len(gate._state.verdicts)}
