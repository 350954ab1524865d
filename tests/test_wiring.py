"""Which module's output goes into which, as a trace shows it and as a run does."""

import pytest
import torch
from torch import nn

from whitenorm import DecorrelatedBatchNorm2d
from whitenorm.wiring import ancestors, recorded, traced

X = torch.randn(2, 3, 6, 6)


def unit():
    return nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), DecorrelatedBatchNorm2d(3), nn.ReLU())


class Branches(nn.Module):
    """Depends on its input's values, which no trace can follow."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) if x.sum() < 1e9 else x


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), DecorrelatedBatchNorm2d(3)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y


def both(model):
    model.eval()
    with torch.no_grad():
        return {"traced": traced(model), "recorded": recorded(model, X)}


def test_ancestors_go_from_the_inside_out():
    assert list(ancestors("a.b.c")) == ["a.b", "a", ""]


@pytest.mark.parametrize("way", ["traced", "recorded"])
def test_a_norm_and_the_layer_that_feeds_it_are_found(way):
    wiring = both(nn.Sequential(unit(), unit()))[way]
    assert wiring.sources == {"0.1": "0.0", "1.1": "1.0"}
    assert wiring.leaks == {}
    assert wiring.calls["0.1"] == wiring.calls["1.0"] == 1


@pytest.mark.parametrize("way", ["traced", "recorded"])
def test_an_output_that_is_used_elsewhere_is_seen(way):
    assert "used elsewhere" in both(Residual())[way].leaks["conv"]


def test_a_module_that_does_not_trace_is_a_leaf_and_its_parts_are_traced():
    model = nn.Sequential(unit(), Branches(Residual()), unit())
    wiring = traced(model.eval())
    assert wiring.sources == {"0.1": "0.0", "1.inner.norm": "1.inner.conv", "2.1": "2.0"}
    assert list(wiring.untraced) == ["1"]
    assert "control flow" in wiring.untraced["1"]


def test_a_sequential_in_code_that_does_not_trace_is_not_looked_into():
    wiring = traced(nn.Sequential(Branches(unit())).eval())
    assert wiring.sources == {}
    assert "give example_inputs" in wiring.unseen("0.inner.1")


def test_what_a_run_did_not_call_is_said_to_be_unseen():
    wiring = recorded(nn.ModuleDict({"used": unit()}).used.eval(), X)
    assert wiring.unseen("other") == "it was not called on the example inputs"


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(unit(), Branches(unit())).eval()
    before = {name: vars(m).copy() for name, m in model.named_modules()}
    both(model)
    for name, m in model.named_modules():
        for key in vars(m).keys() - {"_whitened"}:  # which remembers what was computed
            assert vars(m)[key] is before[name][key] or vars(m)[key] == before[name][key]
