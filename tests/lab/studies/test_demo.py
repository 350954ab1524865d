"""The demo says what its records say, won or lost."""

import pytest

from whitenorm.lab.records.record import Record
from whitenorm.lab.studies.demo import DEMO
from whitenorm.lab.studies.results import Results

PHOTOGRAPHS, DIGITS = DEMO.scales["small"].panels[:2]


def results(losses, errors):
    """Three seeds of DBN and of BN in both panels, with these last values of (DBN, BN)."""
    records = {}
    plan = DEMO.scales["small"]
    for panel in (PHOTOGRAPHS, DIGITS):
        for label, loss, error in zip(("DBN", "BN"), losses, errors, strict=True):
            curve = panel.curve(label)
            runs = [r for point in curve.points() for r in curve.grid_runs(point, plan.selection)]
            runs += [curve.seed_run(curve.points()[0], seed) for seed in range(3)]
            for run in runs:
                factor = 1 + 0.01 * (run.seed % 3)
                values = {"train_loss": factor * loss, "test_error": factor * error}
                record = Record(run, "demo", "small", final=values)
                records[record.id] = record
    return Results(DEMO, "small", records)


@pytest.mark.parametrize(
    ("losses", "errors", "said"),
    [
        (
            (0.001, 0.1),
            (9.0, 12.0),
            "DBN's training loss is clearly lower than BN's (0.001 against 0.1), and its test "
            "error is clearly lower than BN's (9.1% against 12%)",
        ),
        (
            (0.2, 0.1),
            (14.0, 14.0),
            "DBN's training loss is clearly higher than BN's (0.2 against 0.1), and its test "
            "error is not clearly different from BN's (14% against 14%)",
        ),
    ],
)
def test_the_summary_says_who_is_ahead_with_the_numbers(losses, errors, said):
    found = DEMO.summary(results(losses, errors))
    assert f"strongly correlated, {said}. That is at the learning rates that fit best" in found
    assert f"in batches of 128, {said}. Numbers are means over 3 seeds" in found


def test_the_summary_says_who_tests_best_at_any_rate():
    """A method that fits best at a rate where it tests badly isn't made to look worse by it."""
    found = results((0.001, 0.1), (9.0, 12.0))
    curve = PHOTOGRAPHS.curve("BN")
    runs = curve.grid_runs({"optimiser.lr": 0.3}, found.scale.selection)
    for run, error in zip(runs, (1.0, 6.0, None), strict=True):  # one of them diverged
        values = {"train_loss": 0.2, "test_error": error}
        found.all[run.id] = Record(run, "demo", "small", final=values)
    said = DEMO.summary(Results(DEMO, "small", found.all))
    assert "DBN has 9.1% (lr 0.03) and BN 6% (lr 0.3)" in said


def test_without_records_nobody_is_ahead():
    found = DEMO.summary(Results(DEMO, "small", {}))
    assert found.count("is not clearly different from BN's (—") == 4


def test_the_claims_are_about_bn_and_can_be_lost():
    verdicts = [claim.judge(results((0.001, 0.1), (9.0, 12.0))) for claim in DEMO.claims]
    assert [v.status for v in verdicts[:2]] == ["supported", "supported"]
    assert verdicts[-1].status == "contradicted"  # that BN is ahead on digits
    lost = [claim.judge(results((0.1, 0.001), (12.0, 9.0))) for claim in DEMO.claims]
    assert [v.status for v in lost[:2]] == ["contradicted", "contradicted"]
    assert lost[-1].status == "supported"


def test_bn_is_drawn_in_every_panel_of_trainings():
    for panel in (PHOTOGRAPHS, DIGITS):
        assert {"BN", "DBN"} <= {curve.label for curve in panel.curves}
