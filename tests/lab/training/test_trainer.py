"""A training: its updates, its curve, and the same again from a seed or a checkpoint."""

import json

import pytest
import torch
from tiny_study import BASE, assert_same, without_times
from torch import nn
from torch.nn import functional as F

from whitenorm import whiten_convolution_
from whitenorm.lab.data.datasets import synthetic_dataset
from whitenorm.lab.data.for_run import load
from whitenorm.lab.networks import methods
from whitenorm.lab.networks.build import build_model
from whitenorm.lab.networks.methods import make_method
from whitenorm.lab.randomness import generator
from whitenorm.lab.records.record import Record
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.checkpoints import Checkpoint
from whitenorm.lab.training.evaluation import evaluate
from whitenorm.lab.training.trainer import Interrupted, Trainer, train

CPU = torch.device("cpu")
# Dropout, augmentation and momentum: everything that a resumed training has to remember.
PICTURES = Run(
    {"name": "cifar10", "augment": "crop+flip"},
    {"name": "wrn", "depth": 10, "widen": 1, "dropout": 0.3, "placement": "stem"},
    {"name": "dbn"},
    {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True},
    {"name": "steps", "at": [1], "factor": 0.2},
    batch_size=4,
    epochs=3,
    evaluate_every=2,
)


# --- updates, and the curve that they make ------------------------------------------------------


def test_an_update_is_the_optimisers():
    """Three epochs against the loop that anyone would write."""
    run = BASE.changed(
        {
            "method": {"name": "bn"},
            "optimiser": {"name": "sgd", "lr": 0.2, "momentum": 0.9, "weight_decay": 0.01},
            "schedule": {"name": "steps", "at": [1], "factor": 0.5},
            "epochs": 3,
            "precision": "float64",
        }
    )
    data = load(run)
    model = build_model(
        "mlp",
        make_method("bn"),
        num_classes=10,
        input_shape=(1, 8, 8),
        hidden=[16],
        generator=generator(0, "initialisation"),
    ).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)
    losses = []
    for epoch in range(3):
        total = 0.0
        optimiser.param_groups[0]["lr"] = 0.2 if epoch == 0 else 0.1
        order = torch.randperm(512, generator=generator(0, "order", epoch))
        for chosen in order.split(64):
            loss = F.cross_entropy(model(data.train_x[chosen].double()), data.train_y[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item() / 8
        losses.append(total)
    outcome = train(run, data)
    assert outcome.history["train_loss"] == pytest.approx(losses, rel=1e-9)
    assert outcome.history["rate"] == [0.2, 0.1, 0.1]
    model.eval()
    wrong = (model(data.test_x.double()).argmax(1) != data.test_y).double().mean()
    assert outcome.final["test_error"] == pytest.approx(100 * float(wrong))


def test_accumulated_parts_are_one_batch():
    run = BASE.changed({"precision": "float64"})
    once = train(run, load(run))
    parts = train(run.changed({"accumulate": 4}), load(run))
    assert parts.history["train_loss"] == pytest.approx(once.history["train_loss"], rel=1e-9)


def test_a_method_may_act_between_updates(monkeypatch):
    calls = []

    def build():
        return {"after_iteration": lambda model, inputs, step: calls.append((step, len(inputs)))}

    monkeypatch.setitem(methods.METHODS, "watched", methods.Row({}, build))
    run = BASE.changed({"method": {"name": "watched"}, "epochs": None, "iterations": 3})
    train(run, load(run))
    assert calls == [(0, 64), (1, 64), (2, 64), (3, 64)]


def test_a_full_batch_has_its_exact_loss_at_each_point():
    run = BASE.changed({"batch_size": None, "epochs": None, "iterations": 7, "evaluate_every": 3})
    outcome = train(run, load(run))
    every = train(run.changed({"evaluate_every": 1}), load(run))
    assert outcome.history["iteration"] == [1, 3, 6, 7]
    exact = dict(zip(every.history["iteration"], every.history["train_loss"], strict=True))
    assert outcome.history["train_loss"] == [exact[i] for i in (1, 3, 6, 7)]


def test_divergence_is_an_outcome_not_a_crash():
    run = BASE.changed({"optimiser.lr": 1e20})
    outcome = train(run, load(run))
    assert outcome.status == "diverged"
    assert outcome.reason.startswith("the loss was no number at update")
    assert outcome.final.get("train_loss") is None
    assert outcome.final["iterations"] < 32
    record = Record(run, "tiny", "small", outcome.status, outcome.final, outcome.history)
    json.loads(record.to_json(), parse_constant=pytest.fail)


def test_time_stands_still_while_others_work(monkeypatch):
    now = [0.0]
    clock = "whitenorm.lab.training.trainer.clock"
    monkeypatch.setattr(clock, lambda device: ("", lambda: now[0]))
    trainer = Trainer(BASE.changed({"epochs": 2}), load(BASE), CPU)
    iterate = trainer._iterate

    def slow_iteration(x, y):
        now[0] += 1.0
        iterate(x, y)

    def slow_evaluation(*arguments):
        now[0] += 100.0
        return evaluate(*arguments)

    monkeypatch.setattr(trainer, "_iterate", slow_iteration)
    monkeypatch.setattr("whitenorm.lab.training.trainer.evaluate", slow_evaluation)
    for _ in trainer.iterations():
        now[0] += 1000.0
    assert trainer.history["seconds"] == [8.0, 16.0]
    assert trainer.outcome().final["seconds_per_iteration"] == 1.0


# --- the same again: from its seed, and from its checkpoint -------------------------------------


def pictures():
    return synthetic_dataset("cifar10", n=16, augment="crop+flip")


def test_the_seed_decides_everything():
    first = train(PICTURES, pictures())
    torch.manual_seed(123)
    before = torch.get_rng_state()
    second = train(PICTURES, pictures())
    assert torch.equal(torch.get_rng_state(), before)  # the caller's random numbers are its own
    assert without_times(first) == without_times(second)
    other = train(PICTURES.changed({"seed": 1}), pictures())
    assert other.history["train_loss"] != first.history["train_loss"]


def test_methods_start_from_the_same_weights():
    runs = [BASE.changed({"method": {"name": name}}) for name in ("plain", "bn", "dbn")]
    states = [Trainer(run, load(run), CPU).model.state_dict() for run in runs]
    for state in states[1:]:
        for key in states[0]:
            assert torch.equal(state[key], states[0][key])


@pytest.mark.parametrize("updates", [1, 4, 7])
def test_an_interrupted_training_ends_as_if_it_had_not_been(tmp_path, updates):
    """Within an epoch, at its end, between points: bit for bit."""
    straight = Checkpoint(tmp_path / "straight.pt", final=True)
    expected = train(PICTURES, pictures(), checkpoint=straight)
    checkpoint = Checkpoint(tmp_path / "resumed.pt", final=True)
    seen = []
    with pytest.raises(Interrupted, match=f"stopped after {updates} of 12 updates"):
        train(
            PICTURES,
            pictures(),
            checkpoint=checkpoint,
            watch=lambda progress: seen.append(progress.iteration),
            stop=lambda: len(seen) == updates,
        )
    torch.rand(3)
    outcome = train(
        PICTURES,
        pictures(),
        checkpoint=checkpoint,
        watch=lambda progress: seen.append(progress.iteration),
    )
    assert seen == list(range(1, 13))
    assert without_times(outcome) == without_times(expected)
    states = [c.load(PICTURES, CPU) for c in (straight, checkpoint)]
    assert_same(states[0]["model"], states[1]["model"])
    assert_same(states[0]["optimiser"], states[1]["optimiser"])
    assert_same(states[0]["replicas"], states[1]["replicas"])  # random states


# --- a first convolution that whitens -----------------------------------------------------------

PATCHES = Run(
    {"name": "digits"},
    {"name": "splain", "depth": 8, "width": 12},
    {"name": "bn"},
    {"name": "sgd", "lr": 0.1, "weight_decay": 0.1},
    iterations=2,
    batch_size=16,
    first_convolution="whitened",
    subset={"train": 64, "test": 16},
)


def test_a_whitened_first_convolution_comes_from_training_pictures_and_stays():
    data = load(PATCHES)
    drawn = Trainer(PATCHES.changed({"first_convolution": "drawn"}), data, CPU).model
    trainer = Trainer(PATCHES, data, CPU)
    start = {name: value.clone() for name, value in trainer.model.named_parameters()}
    differ = [name for name, value in drawn.named_parameters() if not value.equal(start[name])]
    assert differ == ["features.0.conv.weight"]
    expected = whiten_convolution_(nn.Conv2d(1, 12, 3, bias=False), data.train_x)
    torch.testing.assert_close(start[differ[0]], expected.weight)
    for _ in trainer.iterations():
        pass
    kept = [n for n, value in trainer.model.named_parameters() if value.equal(start[n])]
    assert kept == differ


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": "mlp"}}, "needs a network that has convolutions, and this one has"),
        ({"first_convolution": "white"}, "first_convolution must be .*'white'"),
    ],
)
def test_a_first_convolution_that_cannot_be_whitened_is_explained(changes, message):
    with pytest.raises(ValueError, match=message):
        Trainer(PATCHES.changed(changes), load(PATCHES), CPU)
