"""A training is the same again: from its seed, and from its checkpoint."""

import pytest
import torch
from tiny_study import BASE, assert_same, without_times

from whitenorm.lab.data.datasets import synthetic_dataset
from whitenorm.lab.data.for_run import load
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.checkpoints import Checkpoint
from whitenorm.lab.training.train import Interrupted, train
from whitenorm.lab.training.trainer import Trainer

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
