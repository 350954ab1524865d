"""The choice among the points of a grid."""

import pytest
from tiny_study import BASE, GRID

from whitenorm.lab.records.record import Record
from whitenorm.lab.studies.study import Curve, Selection

CURVE = Curve("plain", BASE, GRID)


def ended(run, **final_values):
    status = "diverged" if final_values.get("train_loss", 0) is None else "finished"
    return Record(run, "tiny", "small", status, final_values)


def grid(first, second):
    runs = [CURVE.grid_run(point, Selection()) for point in CURVE.points()]
    records = [ended(r, **v) for r, v in zip(runs, (first, second), strict=True) if v is not None]
    return {record.id: record for record in records}


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        ({"train_loss": 0.5}, {"train_loss": 0.4}, 0.5),
        ({"train_loss": 0.5}, {"train_loss": None}, 0.05),
        ({"train_loss": None, "iterations": 3}, {"train_loss": None, "iterations": 9}, 0.5),
        ({"train_loss": 0.4}, {"train_loss": 0.4}, 0.05),
        (None, {"train_loss": 0.4}, 0.5),
    ],
)
def test_a_grid_chooses_the_lowest_score(first, second, chosen):
    choice = CURVE.choose(Selection(), grid(first, second))
    assert choice.point == {"optimiser.lr": chosen}
    assert choice.complete == (first is not None)


def test_nothing_is_chosen_before_anything_ran():
    assert CURVE.choose(Selection(), {}).point is None


def test_a_grid_without_validation_shares_its_runs_with_the_first_seed():
    point = CURVE.points()[0]
    assert CURVE.grid_run(point, Selection()) == CURVE.seed_run(point, 0)
    held_out = CURVE.grid_run(point, Selection("test_error", 100))
    assert held_out.validation == 100
    assert held_out != CURVE.seed_run(point, 0)
    probed = Curve("plain", BASE.changed({"probes": {"fisher": {"every": 1}}}), GRID)
    assert probed.grid_run(point, Selection()).probes == {}
