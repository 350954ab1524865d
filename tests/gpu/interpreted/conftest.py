import pytest
import torch

from whitenorm.gpu import gate, launch


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch):
    """So that the interpreter, which runs one after the other, has several to combine but few."""
    monkeypatch.setattr(launch, "PROGRAMS", 4)


@pytest.fixture
def interpreted(monkeypatch):
    """The CPU counts as a GPU, float64 as a dtype of it, and the path is on and trusted."""
    state = gate._State()
    state.counts_as_gpu = ("cuda", "cpu")
    state.dtypes = (*gate.DTYPES, torch.float64)
    state.on = True
    monkeypatch.setattr(gate, "_state", state)
    monkeypatch.setattr(gate, "_check", lambda kind: True)
    return state
