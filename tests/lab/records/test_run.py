"""A run is known by its settings."""

import json

import pytest
from tiny_study import BASE

from whitenorm.lab.records.run import Run


def test_a_run_is_known_by_its_settings():
    same = Run(
        {"name": "digits"},
        {"hidden": (16,), "name": "mlp"},
        {"name": "plain"},
        {"name": "sgd", "lr": 0.1},
        epochs=4,
        batch_size=64,
        subset={"test": 128, "train": 512.0},
        seed=0,
    )
    assert same == BASE
    assert same.id == BASE.id
    others = [{"seed": 1}, {"optimiser.lr": 0.2}, {"model.hidden": [16, 16]}, {"epochs": 5}]
    assert len({BASE.id, *(BASE.changed(change).id for change in others)}) == 5


def test_the_identity_of_a_run_does_not_move():
    """Records that are kept depend on it: a change of these digits orphans them all."""
    assert Run({"name": "digits"}, {"name": "mlp"}, {"name": "bn"}, epochs=1).id == "974680ca036d"


def test_a_run_comes_back_from_json_as_it_was():
    run = BASE.changed(
        {
            "probes": {"fisher": {"every": 5}},
            "schedule": {"name": "halve", "interval": 3},
            "precision": "bf16",
        }
    )
    assert Run(**json.loads(json.dumps(run.settings()))) == run


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 1}, "a run has no setting 'learning_rate'"),
        ({"optimizer.lr": 1}, "a run has no setting 'optimizer'"),
        ({"iterations": 3}, "either epochs or iterations, got epochs=4 and iterations=3"),
        ({"epochs": 0}, "epochs must be a positive integer, got 0"),
        ({"model": "mlp"}, "model must be {'name': ..., options}, got 'mlp'"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        BASE.changed(change)
