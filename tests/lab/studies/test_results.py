"""What records come to, as the drawings have it."""

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
