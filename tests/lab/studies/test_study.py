"""The choice among the points of a grid."""

import math

import pytest
from tiny_study import BASE, GRID

from whitenorm.lab.records.record import Record
from whitenorm.lab.studies.study import FIRST_SEED, Curve, Selection

CURVE = Curve("plain", BASE, GRID)


def ended(run, **final_values):
    status = "diverged" if final_values.get("train_loss", 0) is None else "finished"
    return Record(run, "tiny", "small", status, final_values)


def grid(first, second):
    runs = [CURVE.grid_runs(point, Selection())[0] for point in CURVE.points()]
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


def test_a_grid_has_seeds_that_are_not_drawn():
    point = CURVE.points()[0]
    (run,) = CURVE.grid_runs(point, Selection("test_error", 100))
    assert (run.validation, run.seed) == (100, 100)
    assert CURVE.grid_runs(point, FIRST_SEED) == [CURVE.seed_run(point, 0)]
    probed = Curve("plain", BASE.changed({"probes": {"fisher": {"every": 1}}}), GRID)
    assert probed.grid_runs(point, Selection())[0].probes == {}


def test_of_several_seeds_the_median_counts():
    selection, records = Selection(seeds=(7, 8, 9)), {}
    for point, losses in zip(CURVE.points(), ((0.1, 0.5, 0.5), (0.4, 0.4, None)), strict=True):
        runs = CURVE.grid_runs(point, selection)
        for run, loss in zip(runs, losses, strict=True):
            records[run.id] = ended(run, train_loss=loss)
    assert CURVE.choose(selection, records).point == {"optimiser.lr": 0.5}
    del records[CURVE.grid_runs({"optimiser.lr": 0.5}, selection)[2].id]
    assert not CURVE.choose(selection, records).complete


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        (0.05, [0.005, 0.05, 0.5]),
        (0.5, [0.05, 0.5, 5]),
        (5, [0.05, 0.5, 5, 50]),
        (1e9, [0.05, 0.5, 5, 50, 500, 5000]),
    ],
)
def test_a_grid_is_widened_until_its_best_value_is_not_at_an_end(best, tried):
    records, curve = {}, CURVE
    for _ in range(9):
        for point in curve.points():
            (run,) = curve.grid_runs(point, Selection())
            distance = abs(math.log(point["optimiser.lr"] / best))
            records.setdefault(run.id, ended(run, train_loss=distance))
        wider = CURVE.widened(Selection(), records)
        if wider == curve:
            break
        curve = wider
    assert list(curve.grid["optimiser.lr"]) == pytest.approx(tried)
    assert CURVE.widened(Selection(widen=()), records) == CURVE
