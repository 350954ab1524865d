"""What records come to, as the drawings have it."""

import math
from dataclasses import replace

import pytest
from tiny_study import tiny_results as results

from whitenorm.lab.studies.study import Panel, View


def test_a_view_across_panels_has_a_point_for_each():
    found = results(a=[[3.0, 0.2], [5.0, 0.4]], b=[[2.0, 1.0], [2.0, 4.0]])
    panel = found.scale.panels[0]
    view = View("x", "x", kind="across", x="end", y=("train_loss",))
    a, b = found.across(view, [panel, Panel("other", panel.curves[1:]), panel])
    assert (a.label, a.x, a.mean, a.low) == ("a", [0, 2], [pytest.approx(0.3)] * 2, [0.2] * 2)
    assert (b.label, b.x, b.mean, b.high) == ("b", [0, 1, 2], [2.5] * 3, [4.0] * 3)
    (b,) = found.across(replace(view, log="y"), [Panel("other", panel.curves[1:])])
    assert b.mean == [pytest.approx(2.0)]


def test_a_goal_is_a_training_loss_or_with_a_percent_sign_a_test_error():
    found = results(a=[[40.0, 30.0, 20.0], [40.0, 35.0, 30.0]])
    (curve,) = found.scale.panels[0].curves
    assert found.final(curve, "iteration@30").values == (2, 3)
    assert found.final(curve, "seconds@30%").values == (4.0, 6.0)
    assert found.final(curve, "iteration@10%").values == (math.inf, math.inf)


def test_in_the_same_time_the_slower_curve_has_come_less_far():
    """Of each seed, whose runs may have been made on another machine than those of the others."""
    found = results(quick=[[9.0, 5.0], [8.0, 4.0, 3.0]], slow=[[7.0, 6.0, 2.0, 1.0]] * 2)
    quick, slow = found.scale.panels[0].curves
    assert found.final(quick, "test_error@same time").values == (5.0, 3.0)
    assert found.final(slow, "test_error@same time").values == (6.0, 2.0)
    for record in found.all.values():
        record.history.clear()
    assert found.final(slow, "test_error@same time").values == ()
