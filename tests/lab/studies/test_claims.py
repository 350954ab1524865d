"""Claims are judged by records alone."""

import math

import pytest
from tiny_study import tiny_results as results

from whitenorm.lab.studies.claims import (
    at,
    at_least,
    compare,
    faster,
    final,
    lower,
    middle,
    no_higher,
    ratio_within,
)
from whitenorm.lab.studies.results import Summary

LOWER = lower(final("train_loss"), [("a", "b"), ("a", "c")])


@pytest.mark.parametrize(
    ("a", "b", "c", "status"),
    [
        ([0.1, 0.11, 0.12], [0.5, 0.51, 0.52], [0.3, 0.31, 0.32], "holds"),
        ([0.1, 0.11, 0.12], [0.5, 0.51, 0.52], [0.1, 0.11, 0.12], "holds in part"),
        ([0.1, 0.5, 0.9], [0.11, 0.51, 0.91], [0.1, 0.5, 0.8], "does not hold"),
        ([0.5, 0.51, 0.52], [0.1, 0.11, 0.12], [0.1, 0.11, 0.12], "does not hold"),
        ([0.1, 0.11, 0.12], [0.5, None, 0.5], [None, None, None], "holds"),
        ([0.1, None, 0.12], [0.5, 0.51, 0.52], [None, None, None], "does not hold"),
        ([0.1, 0.11], [0.5, 0.51], [], "holds in part"),
        ([0.1], [0.5], [0.5], "not tested"),
        ([], [], [], "not tested"),
    ],
)
def test_a_claim_is_judged_over_seeds(a, b, c, status):
    verdict = LOWER(results(a=a, b=b, c=c))
    assert verdict.status == status
    assert len(verdict.evidence) == 2


def test_clearly_means_twice_the_standard_error():
    a = Summary((0.0, 1.0, 2.0))
    assert compare(a, Summary((1.6, 2.6, 3.6))) is False  # 1.6 against 2 * sqrt(1/3 + 1/3) = 1.63
    assert compare(a, Summary((1.7, 2.7, 3.7))) is True
    assert compare(Summary((1.7, 2.7, 3.7)), a) is False


def test_speed_is_what_it_takes_to_the_loss_that_both_reach():
    quick, slow = [2.0, 0.5, 0.1, 0.1], [2.0, 1.0, 0.6, 0.3]
    found = results(a=[quick, quick], b=[slow, [2.0, 1.1, 0.7, 0.3]])
    assert faster([("a", "b")], "iteration")(found).status == "holds"  # 3 updates against 4
    verdict = faster([("b", "a")], "iteration")(found)
    assert verdict.status == "does not hold"
    assert verdict.evidence == ("✗ digits: b 4 (n=2), a 3 (n=2) (updates to loss 0.3)",)


def test_medians_over_training_are_compared_in_orders_of_magnitude():
    found = results(
        a=[[1e2, 1e3, 1e9], [1e1, 1e4, 1e9]],
        b=[[1e5, 1e5, 1e6], [1e4, 1e8, 1e9]],
        c=[[None, None, 1e3], [1e2, 1e2, 1e2]],  # infinite at two of three points
    )
    curves = {curve.label: curve for _, curve in found.scale.curves()}
    medians = {label: found.middle(curve, "fisher.condition") for label, curve in curves.items()}
    assert medians["a"].values == pytest.approx((3.0, 4.0))
    assert medians["c"].values == (math.inf, 2.0)
    pairs = [("a", "b"), ("a", "c")]
    verdict = lower(middle("fisher.condition"), pairs)(found)
    assert [line[0] for line in verdict.evidence] == ["✗", "✓"]  # 3.5 +- 0.7, 6.5 +- 2.1


def test_no_higher_means_not_clearly_above():
    judge = no_higher(final("train_loss"), [("a", "b")])
    assert judge(results(a=[0.1, 0.11, 0.12], b=[0.5, 0.51, 0.52])).status == "holds"
    assert judge(results(a=[0.1, 0.5, 0.9], b=[0.1, 0.4, 0.8])).status == "holds"
    assert judge(results(a=[0.5, 0.51, 0.52], b=[0.1, 0.11, 0.12])).status == "does not hold"
    assert judge(results(a=[0.5, None, 0.52], b=[0.1, 0.11, 0.12])).status == "does not hold"
    assert judge(results(a=[0.5, 0.51], b=[])).status == "not tested"


def test_start_and_end_of_training_are_compared():
    found = results(a=[[3.0, 0.2], [3.1, 0.2]], b=[[2.0, 1.0], [2.1, 1.1]])
    column = "fisher.condition"
    assert lower(at(column, "start"), [("a", "b")])(found).status == "does not hold"
    assert lower(at(column, "end"), [("a", "b")])(found).status == "holds"


def test_bounds_and_ratios():
    found = results(a=[0.9, 0.8], b=[[0.5, 0.5, 0.5]] * 2)
    assert at_least(final("train_loss"), "digits", "a", 0.8)(found).status == "holds"
    assert at_least(final("train_loss"), "digits", "a", 0.9)(found).status == "does not hold"
    assert ratio_within("seconds", ("b", "a"), 2.5, 3.5)(found).status == "holds"
    assert ratio_within("seconds", ("b", "a"), 1.5, 2.5)(found).status == "does not hold"
