"""When the Triton path is taken, and what happens where it is wrong."""

import warnings

import pytest
import torch
from accuracy import forward_backward
from cases import correlated, some

from whitenorm import DecorrelatedBatchNorm1d, decorrelated_batch_norm
from whitenorm.gpu import gate, kernels, launch, operators


@pytest.fixture
def state(monkeypatch):
    """The CPU counts as a GPU; everything else is as it comes."""
    state = gate._State()
    state.counts_as_gpu = ("cuda", "cpu")
    monkeypatch.setattr(gate, "_state", state)
    return state


@pytest.fixture
def calls(monkeypatch):
    """How often the operator is called."""
    noted, original = [], operators.whiten

    def whiten(x, *rest):
        noted.append(x.shape)
        return original(x, *rest)

    monkeypatch.setattr(operators, "whiten", whiten)
    return noted


X = correlated((20, 6)).float()


def taken(x=X, **options):
    y = decorrelated_batch_norm(x.requires_grad_(), training=True, group_size=4, **options)
    return "whiten" in str(y.grad_fn)


def test_it_is_off_unless_asked_for(state, monkeypatch):
    assert not taken()
    for value, on in (("auto", True), ("off", False)):
        monkeypatch.setenv(gate.VARIABLE, value)
        assert gate._State().on == on
    monkeypatch.setenv(gate.VARIABLE, "on")
    with pytest.raises(ValueError, match="WHITENORM_TRITON must be 'auto' or 'off', got 'on'"):
        gate._State()


@pytest.mark.slow
def test_once_asked_for_it_is_checked_once_for_each_kind_of_input(state, calls):
    gate.enable()
    assert taken()
    assert taken()
    assert len(calls) == 3  # one on made-up data
    assert calls[0] != X.shape
    assert list(state.verdicts.values()) == [True]
    assert taken(correlated((4, 6, 2, 2)).float())
    assert len(calls) == 5
    assert taken(correlated((9, 6)).float())  # another size of the same kind
    assert len(calls) == 6
    gate.disable()
    assert not taken()


UNSUPPORTED = {
    "another whitening": {"whitening": "cholesky"},
    "float64": {"x": X.detach().double()},
    "a matrix instead of a scale": {"weight": torch.eye(4).expand(2, 4, 4)},
    "large groups": {"x": correlated((80, 40)).float(), "group_size": 40},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_it_does_not_support_goes_by_the_torch_path(state, calls, name):
    gate.enable()
    options = {"x": X, "group_size": 4, **UNSUPPORTED[name]}
    x = options.pop("x").detach().requires_grad_()
    y = decorrelated_batch_norm(x, training=True, **options)
    assert "_BatchWhitening" in str(y.grad_fn)
    assert x.shape not in calls  # the check of the passes, which are lent, is on made-up data


@pytest.mark.slow
def test_transforms_of_torch_func_go_by_the_torch_path(state, calls):
    gate.enable()
    x = X.detach().double().float()

    def total(x):
        return decorrelated_batch_norm(x, training=True, group_size=4).pow(3).sum()

    found = torch.func.grad(total)(x)
    gate.disable()
    expected = torch.func.grad(total)(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert x.shape not in calls


def scaled(kernel, factor):
    """A kernel's launcher whose caller gets another count of samples than it gave."""

    class Launcher:
        def __getitem__(self, grid):
            def launch(*arguments, **options):
                changed = list(arguments)
                place = kernel.arg_names.index("count")
                changed[place] *= factor
                return kernel[grid](*changed, **options)

            return launch

    return Launcher()


@pytest.mark.parametrize("kernel", some(["vjp"], ["matrix", "vjp"]))
def test_a_wrong_result_is_found_said_and_not_used(state, monkeypatch, kernel):
    """A thousandth too much, forward or backward."""
    monkeypatch.setattr(kernels, kernel, scaled(getattr(kernels, kernel), 1.001))
    gate.enable()
    with pytest.warns(
        UserWarning, match=r"off by .* tolerances on torch\.float32 inputs.*torch's is used"
    ):
        assert not taken()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not taken()  # said once
    assert not any(state.verdicts.values())


@pytest.mark.slow
def test_an_error_in_the_check_is_said_and_the_torch_path_used(state, monkeypatch):
    def fails(*arguments, **options):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(launch, "moments", fails)
    gate.enable()
    with pytest.warns(UserWarning, match="failed on .*no such instruction.*torch's is used"):
        assert not taken()


@pytest.mark.parametrize("part", some(["sums"], ["moments", "sums"]))
def test_an_error_after_the_check_is_said_and_the_torch_path_used(state, monkeypatch, part):
    gate.enable()
    assert taken()
    original = launch.moments, launch.sums

    def fails(*arguments, **options):
        raise RuntimeError("out of resources")

    monkeypatch.setattr(launch, part, fails)
    dy = correlated(X.shape, 1).float()
    with pytest.warns(UserWarning, match="out of resources.*turned off"):
        found = forward_backward(X.detach(), dy, group_size=4)
    assert not gate.is_enabled()
    expected = forward_backward(X.detach(), dy, group_size=4)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert original


@pytest.mark.slow
def test_out_of_memory_is_left_to_the_caller(state, monkeypatch):
    gate.enable()
    assert taken()

    def fails(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(launch, "moments", fails)
    with pytest.raises(torch.OutOfMemoryError):
        taken()
    assert gate.is_enabled()


def test_nothing_is_checked_while_a_graph_is_captured(state, calls, monkeypatch):
    """And what has been checked before is used."""
    capturing = True
    monkeypatch.setattr(gate, "_is_capturing", lambda device: capturing)
    gate.enable()
    assert not taken()
    assert calls == []
    assert state.verdicts == {}
    capturing = False
    assert taken()
    capturing = True
    assert taken()


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [("VERSION", (99, 0), "Triton is 3.* older than 99"), (None, None, "Triton isn't installed")],
)
def test_a_requirement_that_is_not_met_is_named(state, monkeypatch, attribute, value, words):
    if attribute is None:
        monkeypatch.setitem(__import__("sys").modules, "triton", None)
    else:
        monkeypatch.setattr(gate, attribute, value)
    gate.enable()
    with pytest.warns(UserWarning, match=f"can't be used: {words}"):
        assert not taken()


def test_a_device_that_is_too_old_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "capability is (7, 5), below (8, 0)" in gate.unmet_requirement("cuda")
    assert gate.unmet_requirement("cpu") == "the device is cpu, not cuda"


@pytest.mark.slow
def test_the_check_works_where_no_gradients_are_recorded(state):
    """As while statistics are computed anew; training comes after."""
    layer = DecorrelatedBatchNorm1d(6, group_size=4)
    gate.enable()
    with torch.inference_mode():
        layer(X.detach().clone())
    assert list(state.verdicts.values()) == [True]


@pytest.mark.slow
def test_inference_is_not_touched(state, calls):
    layer = DecorrelatedBatchNorm1d(6, group_size=4)
    layer(X.detach())
    gate.enable()
    layer.eval()(X.detach())
    assert calls == []
