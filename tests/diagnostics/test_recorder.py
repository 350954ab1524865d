"""The recorder measures a training and changes nothing."""

import pytest
import torch
from cases import state
from torch import nn

from whitenorm import DecorrelatedBatchNorm1d
from whitenorm.diagnostics import (
    ActivationRecorder,
)


def train(model, recorder_options=None):
    torch.manual_seed(1)
    model.load_state_dict(state(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(64, 5), torch.randint(3, (64,))
    losses = []

    def loop():
        for _ in range(7):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            model.eval()
            model(x)
            model.train()

    if recorder_options is None:
        loop()
        return losses, None
    with ActivationRecorder(model, **recorder_options) as recorder:
        loop()
    return losses, recorder


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 4),
        DecorrelatedBatchNorm1d(4, shrinkage=0),
        nn.ReLU(inplace=True),
        nn.Linear(4, 3),
    )


def test_recorder_measures_a_training_without_changing_it():
    plain, _ = train(small_model())
    watched, recorder = train(small_model(), {"layers": ["0", "1"], "every": 3})
    assert plain == watched
    assert [(r["layer"], r["step"]) for r in recorder.records] == [
        ("0", 0), ("1", 0), ("0", 3), ("1", 3), ("0", 6), ("1", 6)
    ]  # fmt: skip
    for record in recorder.records:
        if record["layer"] == "1":  # affine moves scale and shift, which correlation ignores
            assert record["mean_correlation"] < 1e-2
            assert record["effective_rank"] > 3.9
        else:
            assert record["mean_correlation"] > 0.05
            assert record["condition_number"] >= record["condition_number_90"] > 1


def test_recorder_lets_go_of_the_model():
    model = small_model()
    _, recorder = train(model, {"layers": ["1"]})
    count = len(recorder.records)
    model(torch.randn(8, 5))
    assert len(recorder.records) == count == 7


def test_recorder_takes_other_measures_and_says_which_layers_there_are():
    model = small_model()
    with ActivationRecorder(model, ["3"], {"largest": lambda y: float(y.max())}) as recorder:
        y = model(torch.randn(8, 5)).detach()
    assert recorder.records == [{"layer": "3", "step": 0, "largest": float(y.max())}]
    with pytest.raises(ValueError, match=r"no layer 'conv1'; it has '0', '1', '2', '3'"):
        ActivationRecorder(model, ["conv1"])
