"""Correlations before and after a layer, drawn by matplotlib and by plotly from the same maps."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_study import tiny_results

from whitenorm.lab.reporting.heat_maps import Map, correlation_maps, draw_correlations
from whitenorm.lab.reporting.page_figures import figures
from whitenorm.lab.reporting.plots import draw
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import View

VIEW = View("correlations", "Correlations", kind="correlations")
BEFORE, AFTER = [[1.0, -0.5], [-0.5, 1.0]], [[1.0, 0.0], [0.0, 1.0]]


@pytest.fixture
def measured():
    """Results in which BN and DBN, but not plain, measured correlations, at the start and end."""
    made = tiny_results(plain=[1.0], BN=[1.0], DBN=[1.0])
    columns = {"BN": (BEFORE, BEFORE), "DBN": (BEFORE, AFTER)}
    records = dict(made.all)
    for curve in made.scale.panels[0].curves[1:]:
        (record,) = made.records(curve)
        before, after = ([np.eye(2).tolist(), last] for last in columns[curve.label])
        probes = {"correlations": {"iteration": [0, 9], "before": before, "after": after}}
        records[record.id] = replace(record, probes=probes)
    return Results(replace(made.study, views=(VIEW,)), "small", records)


def test_a_map_says_how_large_its_correlations_are():
    assert Map.of("before BN", BEFORE).title == "before BN: mean |r| 0.50"
    constant = Map.of("after", [[1.0, None, 0.5], [None, None, None], [0.5, None, 1.0]])
    assert constant.title == "after: mean |r| 0.50"


def test_the_curves_that_measured_it_have_maps_of_the_end(measured):
    bn, dbn = correlation_maps(measured, VIEW)
    assert [one.title for one in bn] == ["before BN: mean |r| 0.50", "after BN: mean |r| 0.50"]
    assert [one.title for one in dbn] == ["before DBN: mean |r| 0.50", "after DBN: mean |r| 0.00"]
    assert np.array_equal(dbn[1].matrix, np.array(AFTER))


def test_both_kinds_of_figures_show_the_maps(measured):
    drawn = draw(measured, VIEW)
    shown = [axes for axes in drawn.axes if axes.images]
    assert [axes.get_title() for axes in shown][:2] == [
        "before BN: mean |r| 0.50",
        "after BN: mean |r| 0.50",
    ]
    assert np.array_equal(shown[3].images[0].get_array(), np.array(AFTER))
    ((name, title, note, figure, wide),) = figures(measured, {})
    assert wide
    assert (name, title) == ("correlations", "Correlations")
    assert "DBN removes" in note
    assert [trace.type for trace in figure.data] == ["heatmap"] * 4
    assert np.array_equal(figure.data[3].z, np.array(AFTER))
    assert [a.text for a in figure.layout.annotations][3] == "after DBN<br>mean |r| 0.00"
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (-1, 1)


def test_without_measurements_nothing_is_drawn():
    made = tiny_results(BN=[1.0])
    results = Results(replace(made.study, views=(VIEW,)), "small", made.all)
    assert draw_correlations(results, VIEW) is None
    assert list(figures(results, {})) == []
