"""Compiled inference: with the running statistics as they are at each call."""

import copy

import pytest
import torch
from cases import correlated
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from whitenorm import DecorrelatedBatchNorm2d, compiled

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning",
    "ignore:.*torch.jit.script_method. is deprecated:DeprecationWarning",
    "ignore:.*torch._prims_common.check. is deprecated:FutureWarning",
)


def trained(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 10, 3), DecorrelatedBatchNorm2d(10, group_size=4)).double()
    for step in range(5):
        model(correlated((8, 3, 6, 6), seed + step))
    return model.eval()


@pytest.fixture
def decompositions(monkeypatch):
    """Counts how often a compiled model decomposes a covariance."""
    calls = []
    original = compiled.whitening_of_running_covariance

    def counted(*args):
        calls.append(args)
        return original(*args)

    monkeypatch.setattr(compiled, "whitening_of_running_covariance", counted)
    return calls


X = correlated((4, 3, 6, 6), seed=9)


@pytest.mark.parametrize(
    "backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
)
def test_buffers_written_in_evaluation_mode_count_at_once(backend):
    torch.compiler.reset()
    model, other = trained(), trained(seed=1)
    fast = torch.compile(model, fullgraph=True, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(fast(X), model(X))
        for mine, theirs in zip(model.buffers(), other.buffers(), strict=True):
            mine.copy_(theirs)
        other.load_state_dict({**other.state_dict(), **dict(model.named_parameters())})
        torch.testing.assert_close(fast(X), other(X))


def test_a_compiled_average_of_models_follows_its_updates():
    torch.compiler.reset()
    model = trained()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True).eval()
    fast = torch.compile(average, fullgraph=True, backend="aot_eager")
    for step in range(3):
        model.train()(correlated((8, 3, 6, 6), 20 + step))
        average.update_parameters(model)
        with torch.no_grad():
            torch.testing.assert_close(fast(X), copy.deepcopy(average)(X))


def test_a_covariance_is_decomposed_once_while_it_stays(decompositions):
    torch.compiler.reset()
    model = trained()
    fast = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for _ in range(5):
            fast(X)
        assert len(decompositions) == 1
        model[1].running_covariance.mul_(2)
        for _ in range(5):
            fast(X)
        assert len(decompositions) == 2


def test_another_eps_counts_at_once():
    torch.compiler.reset()
    model = trained()
    fast = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        fast(X)
        model[1].eps = 0.5
        torch.testing.assert_close(fast(X), model(X))


def test_what_is_remembered_of_a_model_is_forgotten_with_it():
    for seed in range(3):
        covariance = torch.eye(4).repeat(2, 1, 1) * (1 + seed)
        found = compiled.present_whitening(covariance, 8, 0.0, "zca", 5)
        torch.testing.assert_close(found, covariance.rsqrt().where(covariance > 0, 0.0))
    before = len(compiled._known)
    del covariance
    compiled.present_whitening(torch.eye(4).unsqueeze(0), 4, 0.0, "zca", 5)
    assert len(compiled._known) <= before


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference_mode_is_as_exact(mode):
    torch.compiler.reset()
    model = trained()
    fast = torch.compile(model, fullgraph=True, backend="aot_eager")
    with mode():
        torch.testing.assert_close(fast(X), model(X))


def test_the_operator_is_registered_as_torch_wants_it():
    args = (torch.eye(4).repeat(2, 1, 1), 8, 1e-5, "zca", 5)
    torch.library.opcheck(compiled.present_whitening, args)
