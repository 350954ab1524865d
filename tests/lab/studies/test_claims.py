"""Claims are judged by records alone."""

import math
from dataclasses import replace

import pytest
from tiny_study import tiny_results as results

from whitenorm.lab.studies.claims import (
    at,
    at_least,
    faster,
    final,
    lower,
    middle,
    no_higher,
    ratio_within,
)

LOWER = lower(final("train_loss"), [("a", "b"), ("a", "c")])
LOW, HIGH, UNCLEAR = [0.1, 0.11, 0.12], [0.5, 0.51, 0.52], [0.02, 0.11, 0.6]


def marks(verdict):
    return [comparison.mark for comparison in verdict.evidence]


@pytest.mark.parametrize(
    ("a", "b", "c", "status"),
    [
        (LOW, HIGH, [0.3, 0.31, 0.32], "supported"),
        (LOW, HIGH, UNCLEAR, "undecided"),
        (LOW, UNCLEAR, UNCLEAR, "undecided"),
        (HIGH, LOW, LOW, "contradicted"),
        (LOW, HIGH, [0.01, 0.011, 0.012], "contradicted"),  # one that is contradicted is enough
        (LOW, HIGH, [None, None, None], "supported"),  # who diverged counts for nobody
        (LOW, HIGH, [0.01, None, 0.01], "supported"),
        ([0.1, None, 0.12], HIGH, [None, None, None], "contradicted"),  # but speaks against itself
        ([None, None], [None, None], [None, None], "not tested"),
        (LOW, HIGH, [], "supported"),
        ([0.1], [0.5], [0.5], "undecided"),
        ([], [], [], "not tested"),
    ],
)
def test_a_claim_is_judged_over_seeds(a, b, c, status):
    verdict = LOWER(results(a=a, b=b, c=c))
    assert verdict.status == status
    assert len(verdict.evidence) == 2


def test_a_method_that_diverged_counts_for_nobody_unless_it_is_dbn():
    found = results(a=[0.1, None, 0.1], b=HIGH)
    judge = lower(final("train_loss"), [("a", "b")])
    assert judge(found).status == "contradicted"
    (panel,) = found.scale.panels
    for curve in panel.curves:
        curve.run.method["name"] = "nnn"
    assert found.records(panel.curve("a")) == []  # of another method, whose records they aren't
    records = [replace(r, run=r.run.changed({"method.name": "nnn"})) for r in found.all.values()]
    others = type(found)(found.study, "small", {record.id: record for record in records})
    assert judge(others).status == "not tested"


def test_seeds_are_paired():
    # Between seeds there is far more spread than between methods.
    a, b = [0.1, 1.0, 10.0], [0.11, 1.12, 11.1]
    assert lower(final("train_loss"), [("a", "b")])(results(a=a, b=b)).status == "supported"
    mixed = [11.1, 0.11, 1.12]
    assert lower(final("train_loss"), [("a", "b")])(results(a=a, b=mixed)).status == "undecided"


def test_one_of_many_is_contradicted_by_chance():
    judge = lower(final("train_loss"), [("a", "b")])
    # A probability of 0.014 is enough against a claim by itself, not against one of two.
    a, b = [1.0, 1.0, 1.0], [0.92, 0.82, 0.85]
    assert judge(results(a=a, b=b)).status == "contradicted"
    verdict = LOWER(results(a=a, b=b, c=[2.0, 2.1, 2.2]))
    assert marks(verdict) == ["contradicted", "supported"]
    assert verdict.status == "undecided"


def test_speed_is_what_it_takes_to_fixed_losses():
    quick, slow = [2.0, 0.09, 0.009, 0.005], [2.0, 1.0, 0.5, 0.09]
    found = results(a=[quick, quick], b=[slow, [2.0, 1.1, 0.7, 0.09]])
    verdict = faster([("a", "b")], "iteration")(found)
    assert verdict.status == "supported"
    # Only one gets to 0.01, and none to 0.001.
    assert marks(verdict) == ["supported", "supported", "not tested"]
    first, second, _ = (comparison.text for comparison in verdict.evidence)
    assert first == "✓ digits, updates to loss 0.1: a 2 (n=2), b 4 (n=2); ratio 0.5 [0.5, 0.5]"
    assert "a 3 (n=2), b never (2 of 2); ratio at most 0.75" in second
    assert faster([("b", "a")], "iteration")(found).status == "contradicted"


def test_a_run_that_ended_too_soon_can_only_speak_against_itself():
    short, long = [[2.0, 1.0], [2.0, 0.9]], [[2.0, 1.0, 0.5, 0.05]] * 2
    # The short ones might have got there at once after their end.
    assert faster([("a", "b")], "iteration")(results(a=short, b=long)).status == "undecided"
    assert faster([("b", "a")], "iteration")(results(a=short, b=long)).status == "undecided"


def test_a_spike_of_one_seed_sets_no_goal():
    smooth, spiked = [1.0, 0.05, 0.005], [1.0, 0.05, 3.0]
    found = results(a=[smooth, smooth, spiked], b=[[1.0, 0.5, 0.05]] * 3)
    assert marks(faster([("a", "b")], "iteration", goals=[0.1])(found)) == ["supported"]


def test_medians_over_training_are_compared_by_ratios():
    found = results(
        a=[[1e2, 1e3, 1e9], [1e1, 1e4, 1e9], [1e1, 1e4, 1e9]],
        b=[[1e5, 1e5, 1e6], [1e4, 1e6, 1e9], [1e4, 1e6, 1e9]],
        c=[[None, None, 1e3]] * 3,  # infinite at two of three points
    )
    curves = {curve.label: curve for _, curve in found.scale.curves()}
    medians = {label: found.middle(curve, "fisher.condition") for label, curve in curves.items()}
    assert medians["a"].values == (1e3, 1e4, 1e4)
    assert medians["c"].values == (math.inf,) * 3
    measure = middle("fisher.condition")
    verdict = lower(measure, [("a", "b"), ("a", "c"), ("c", "a")])(found)
    assert marks(verdict) == ["supported", "supported", "contradicted"]
    assert "ratio 0.01 [0.01, 0.01]" in verdict.evidence[0].text
    assert "c infinite (3 of 3)" in verdict.evidence[1].text


def test_no_higher_allows_for_a_margin():
    judge = no_higher(final("test_error"), [("a", "b")], by=1.0)
    assert judge(results(a=[5.0, 5.1, 5.2], b=[5.1, 5.1, 5.1])).status == "supported"
    assert judge(results(a=[5.0, 6.0, 7.0], b=[5.1, 5.1, 5.1])).status == "undecided"
    assert judge(results(a=[7.0, 7.1, 7.2], b=[5.1, 5.1, 5.1])).status == "contradicted"
    assert judge(results(a=[7.0, None, 7.2], b=[5.1, 5.1, 5.1])).status == "contradicted"
    assert judge(results(a=[5.0, 5.1], b=[])).status == "not tested"


def test_start_and_end_of_training_are_compared():
    found = results(a=[[3.0, 0.2], [3.1, 0.2]], b=[[2.0, 1.0], [2.1, 1.0]])
    column = "fisher.condition"
    assert lower(at(column, "start"), [("a", "b")])(found).status == "contradicted"
    assert lower(at(column, "end"), [("a", "b")])(found).status == "supported"


def test_bounds_and_ratios():
    found = results(a=[0.9, 0.901, 0.9], b=[[0.5, 0.5, 0.5]] * 3)
    assert at_least(final("train_loss"), "digits", "a", 0.8)(found).status == "supported"
    assert at_least(final("train_loss"), "digits", "a", 0.95)(found).status == "contradicted"
    assert at_least(final("train_loss"), "digits", "a", 0.9)(found).status == "undecided"
    some_diverged = results(a=[0.5, 0.501, None, None], b=[])
    assert at_least(final("train_loss"), "digits", "a", 0.8)(some_diverged).status == "undecided"
    assert ratio_within("seconds", ("b", "a"), 2.5, 3.5)(found).status == "supported"
    assert ratio_within("seconds", ("b", "a"), 1.5, 2.5)(found).status == "contradicted"
