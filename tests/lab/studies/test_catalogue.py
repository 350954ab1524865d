"""The table of studies: complete, and as published."""

import pytest
import torch
from tiny_study import BASE, tiny_study

from whitenorm.lab.data.sources import SOURCES
from whitenorm.lab.execution.runner import run_study
from whitenorm.lab.networks.methods import METHODS, Row
from whitenorm.lab.studies import catalogue as studies
from whitenorm.lab.studies.catalogue import STUDIES, find_study
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import BEYOND, Curve, Panel, Scale, Selection
from whitenorm.lab.studies.wording import notes

SCALES = [(name, scale) for name, study in STUDIES.items() for scale in study.scales]


def test_every_figure_and_table_has_a_study_at_both_scales():
    references = {
        s.reference: set(s.scales)
        for s in STUDIES.values()
        if s.name != "demo" and not s.reference.startswith(("Section", BEYOND))
    }
    expected = [f"Figure {i}" for i in range(2, 8)] + [f"Table {i}" for i in range(1, 4)]
    assert set(references) == set(expected)
    assert all({"small", "paper"} <= scales for scales in references.values())


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_every_study_says_what_it_needs(name, scale):
    study, plan = STUDIES[name], STUDIES[name].scales[scale]
    assert study.title
    assert study.question.endswith("?")
    assert study.claims
    assert plan.duration
    if scale != "paper":
        assert plan.reduced or plan.setting
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

    monkeypatch.setitem(METHODS, "clip", Row({"bound": 1.0}, build))
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


def test_remarks_about_data_stand_where_the_data_is_used():
    for name, scale in SCALES:
        results = Results(STUDIES[name], scale, {})
        said = any("JPEG-recompressed" in note for note in notes(results))
        assert said == ("pie" in results.scale.datasets())
