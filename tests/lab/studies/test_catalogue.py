"""The table of studies: complete, as published, and judged by its records alone."""

import math
from dataclasses import replace

import pytest
import torch
from tiny_study import BASE, GRID, tiny_study

from whitenorm.lab.data.sources import SOURCES
from whitenorm.lab.execution.dry_run import dry_run
from whitenorm.lab.execution.runner import run_study
from whitenorm.lab.networks.methods import METHODS, Row
from whitenorm.lab.records.record import Record
from whitenorm.lab.studies import catalogue as studies
from whitenorm.lab.studies.catalogue import STUDIES, find_study
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
from whitenorm.lab.studies.results import Results, Summary
from whitenorm.lab.studies.study import Curve, Panel, Scale, Selection, View

SCALES = [(name, scale) for name, study in STUDIES.items() for scale in study.scales]


# --- the table ----------------------------------------------------------------------------------


def test_every_figure_and_table_has_a_study_at_both_scales():
    references = {
        s.reference: set(s.scales)
        for s in STUDIES.values()
        if s.name != "demo" and not s.reference.startswith("Section")
    }
    expected = [f"Figure {i}" for i in range(2, 8)] + [f"Table {i}" for i in range(1, 4)]
    assert set(references) == set(expected)
    assert all({"small", "paper"} <= scales for scales in references.values())


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_every_network_of_every_study_makes_an_update(name, scale):
    """On made-up data: each is built, trained for a step, evaluated and probed."""
    plan = STUDIES[name].scales[scale]
    trials = list(dry_run(plan))
    assert {trial.panel for trial in trials} <= {panel.name for panel in plan.panels}
    assert trials
    for trial in trials:
        if trial.run.task == "train":
            assert trial.parameters > 0
            assert math.isfinite(trial.loss)


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_every_study_says_what_it_needs(name, scale):
    study, plan = STUDIES[name], STUDIES[name].scales[scale]
    assert study.title
    assert study.question.endswith("?")
    assert study.claims
    assert plan.duration
    if scale != "paper":
        assert plan.reduced
    else:  # at most the number of updates
        assert not plan.reduced or "updates, all else as published" in plan.reduced
    assert set(plan.datasets()) <= set(SOURCES) | {"none"}
    names = {panel.name for panel in plan.panels}
    for view in study.views:
        assert view.panels is None or set(view.panels) <= names
    for panel in plan.panels:
        assert len({curve.label for curve in panel.curves}) == len(panel.curves)
    if scale == "paper":  # each of its numbers has a place beside it
        labels = {(p.name, c.label) for p, c in plan.curves()}
        assert {(number.panel, number.curve) for number in study.paper} <= labels


def settings(name, panel, label):
    plan = STUDIES[name].scales["paper"]
    curve = {p.name: p for p in plan.panels}[panel].curve(label)
    return curve, curve.run


def test_the_paper_scale_is_as_published():
    """Spot checks against the paper's text and the authors' scripts."""
    curve, run = settings("fig3", "4-layer MLP", "DBN-ZCA")
    assert curve.grid == {"optimiser.lr": (0.1, 0.5, 1, 5)}
    assert (run.model["hidden"], run.batch_size, run.iterations) == ([100] * 3, None, 240)
    assert (run.subset, run.schedule) == ({"train": 50_000}, {"name": "halve", "interval": 40})
    _, pca = settings("fig3", "4-layer MLP", "DBN-PCA")
    assert {**pca.method, "name": "dbn"} == run.method  # like for like

    curve, run = settings("fig4", "Yale-B", "NNN")
    assert curve.grid["optimiser.lr"] == (0.1, 0.2, 0.5, 1, 2)
    assert curve.grid["method.eps"] == (0.001, 0.01, 0.1, 1)
    assert curve.grid["method.interval"] == (20, 50, 100, 200, 500)
    assert run.model["hidden"] == [128, 64, 48, 48]
    assert (run.batch_size, run.iterations, run.optimiser["name"]) == (None, 3000, "sgd")
    assert run.probes == {"fisher": {"every": 20, "samples": 2000}}

    plan = STUDIES["fig5"].scales["paper"]
    assert [c.label for c in plan.panels[0].curves] == ["G1", "G8", "G16", "G32", "G64", "G128"]
    _, run = settings("fig5", "group size", "G16")
    assert (run.model["hidden"], run.batch_size, run.epochs) == ([128] * 5, 256, 100)

    curve, run = settings("fig6", "basic", "DBN")
    assert curve.grid["optimiser.lr"] == (1, 2, 4, 8)
    assert curve.grid["schedule.interval"] == (1000, 2000, 4000, 8000)
    assert (run.batch_size, run.epochs, run.method["group_size"]) == (256, 80, 16)
    assert run.optimiser == {"name": "sgd", "lr": 1, "momentum": 0.9, "weight_decay": 5e-4}
    assert settings("fig6", "Adam", "BN")[0].grid["optimiser.lr"] == (0.001, 0.005, 0.01, 0.05)
    assert STUDIES["fig6"].scales["paper"].selection == Selection("test_error", 5000)

    _, run = settings("fig7", "44 layers", "DBN")
    assert (run.model["depth"], run.model["width"], run.method["group_size"]) == (44, 48, 16)
    assert run.schedule == {"name": "steps", "at": [80, 120], "factor": 0.2}
    _, run = settings("fig7", "4x learning rate", "DBN")
    assert (run.optimiser["lr"], run.model["width"], run.method["group_size"]) == (0.4, 42, 14)
    assert run.schedule["at"] == [60, 100, 140, 180]

    _, run = settings("table1", "Res-56", "DBN-scale-L1")
    assert run.model == {"name": "resnet", "depth": 56, "placement": "first"}
    assert run.method == {"name": "dbn", "group_size": 8, "affine": True}
    assert (run.batch_size, run.epochs, run.optimiser["weight_decay"]) == (128, 160, 1e-4)

    _, run = settings("table2", "CIFAR-100, WRN-40-10", "DBN-scale-L1")
    assert (run.dataset["name"], run.model["dropout"]) == ("cifar100", 0.3)
    assert run.optimiser["nesterov"] is True

    _, run = settings("table3", "Res-101", "DBN-scale-L1")
    assert (run.model["stem"], run.method["group_size"]) == ("extra-conv", 32)
    assert (run.batch_size, run.epochs, run.schedule["at"]) == (256, 90, [30, 60])


def test_adding_a_study_takes_a_row(monkeypatch, tmp_path):
    monkeypatch.setitem(studies.STUDIES, "tiny", tiny_study(epochs=1))
    outcome = run_study(find_study("tiny"), "small", tmp_path)
    assert len(outcome.records) == find_study("tiny").scales["small"].count() == 12


def test_adding_a_method_takes_a_row(monkeypatch, tmp_path):
    def build(bound):
        return {"norm": lambda features, dims: torch.nn.Hardtanh(-bound, bound)}

    monkeypatch.setitem(METHODS, "clip", Row("clipped", {"bound": 1.0}, build))
    curve = Curve("clipped", BASE.changed({"method": {"name": "clip", "bound": 2.0}}))
    plan = Scale((Panel("digits", (curve,)),), seeds=1, duration="seconds")
    study = tiny_study()
    outcome = run_study(
        type(study)(**{**vars(study), "scales": {"small": plan}}), "small", tmp_path
    )
    (record,) = outcome.records.values()
    assert record.status == "finished"


def test_unknown_studies_and_scales_are_listed():
    with pytest.raises(ValueError, match=r"unknown study 'fig9'; there are fig2, .*, demo"):
        find_study("fig9")
    with pytest.raises(ValueError, match="has no scale 'large'; it has small, paper"):
        find_study("fig3").scale("large")


# --- the choice ---------------------------------------------------------------------------------

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


# --- verdicts -----------------------------------------------------------------------------------


def results(**curves):
    """Results without a grid, from last losses, or whole curves of them, a list a seed."""
    made, records = [], {}
    for label, seeds in curves.items():
        method = {"name": "dbn", "group_size": 1 + len(made)}
        made.append(Curve(label, BASE.changed({"method": method})))
        for seed, values in enumerate(seeds):
            losses = values if isinstance(values, list) else [values]
            steps = list(range(1, len(losses) + 1))
            record = Record(
                made[-1].seed_run({}, seed),
                "tiny",
                "small",
                "diverged" if losses[-1] is None else "finished",
                {"train_loss": losses[-1], "seconds": 2.0 * len(losses)},
                {"iteration": steps, "train_loss": losses},
                {"fisher": {"condition": losses}},
            )
            records[record.id] = record
    plan = Scale((Panel("digits", tuple(made)),), seeds=3, duration="")
    study = tiny_study()
    return Results(type(study)(**{**vars(study), "scales": {"small": plan}}), "small", records)


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


def test_a_view_across_panels_has_a_point_for_each():
    found = results(a=[[3.0, 0.2], [5.0, 0.4]], b=[[2.0, 1.0], [2.0, 4.0]])
    panel = found.scale.panels[0]
    view = View("x", "x", kind="across", x="end", y=("train_loss",))
    a, b = found.across(view, [panel, Panel("other", panel.curves[1:]), panel])
    assert (a.label, a.x, a.mean, a.low) == ("a", [0, 2], [pytest.approx(0.3)] * 2, [0.2] * 2)
    assert (b.label, b.x, b.mean, b.high) == ("b", [0, 1, 2], [2.5] * 3, [4.0] * 3)
    (b,) = found.across(replace(view, log="y"), [Panel("other", panel.curves[1:])])
    assert b.mean == [pytest.approx(2.0)]


def test_bounds_and_ratios():
    found = results(a=[0.9, 0.8], b=[[0.5, 0.5, 0.5]] * 2)
    assert at_least(final("train_loss"), "digits", "a", 0.8)(found).status == "holds"
    assert at_least(final("train_loss"), "digits", "a", 0.9)(found).status == "does not hold"
    assert ratio_within("seconds", ("b", "a"), 2.5, 3.5)(found).status == "holds"
    assert ratio_within("seconds", ("b", "a"), 1.5, 2.5)(found).status == "does not hold"
