"""The noise of batches in a hidden layer, as a run measures it."""

import pytest
from torch import nn

from whitenorm.diagnostics import normalization_disturbance
from whitenorm.lab.data.for_run import load
from whitenorm.lab.networks.build import build_model
from whitenorm.lab.networks.methods import make_method
from whitenorm.lab.randomness import generator
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.disturbance import measure_disturbance

RUN = Run(
    {"name": "digits"},
    {"name": "mlp", "hidden": [16]},
    {"name": "bn"},
    iterations=3,
    batch_size=128,
    subset={"train": 300},
    task="disturbance",
)


def measured(changes):
    run = RUN.changed(changes)
    return measure_disturbance(run, load(run))


def test_it_is_that_of_the_networks_first_layer_before_training():
    data = load(RUN)
    model = build_model(
        **RUN.model,
        method=make_method("bn"),
        num_classes=10,
        input_shape=data.input_shape,
        generator=generator(0, "initialisation"),
    )
    seen = []
    norm = next(m for m in model.modules() if isinstance(m, nn.BatchNorm1d))
    norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    model(data.train_x)
    random = generator(0, "batches")
    layer = nn.BatchNorm1d(16)
    expected = [
        normalization_disturbance(layer, seen[0], size, 3, random) for size in (32, 64, 128)
    ]
    outcome = measured({})
    assert outcome.history["batch_size"] == [32, 64, 128]
    assert outcome.history["snd"] == pytest.approx(expected, rel=1e-4)
    ends = (outcome.history["snd"][0], outcome.history["snd"][-1])
    assert (outcome.final["snd_small"], outcome.final["snd_large"]) == ends


def test_runs_of_one_seed_see_the_same_batches():
    one = {"method": {"name": "dbn", "group_size": 1}}
    bn, groups_of_one, other = measured({}), measured(one), measured({"seed": 1})
    assert bn.history["snd"] == pytest.approx(groups_of_one.history["snd"], rel=1e-4)
    assert bn.history["snd"] != pytest.approx(other.history["snd"], rel=1e-3)


def test_a_method_without_a_norm_is_refused():
    with pytest.raises(ValueError, match="method 'plain' has no normalization to measure"):
        measured({"method": {"name": "plain"}})
