r"""The results that a folder of records holds."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from whitenorm.lab.records.record import Record, find_records
from whitenorm.lab.studies.catalogue import STUDIES
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import BEYOND, SMALL, Curve, Panel, Scale, Study, View


class Found(NamedTuple):
    """The results that a folder holds."""

    results: list[tuple[Path, Results]]  # with the file that each was read from
    remarks: list[str]  # what could not be used, and why


def find_results(folder: Path) -> Found:
    """All results below a folder, in the order of the table of studies."""
    results, remarks = [], []
    for path, records, broken in find_records(folder):
        if broken:
            lines = ", ".join(map(str, broken))
            remarks.append(f"{path}: line {lines} is no whole record (its process was killed)")
        groups: dict[tuple[str, str], dict[str, Record]] = {}
        for record in records.values():
            groups.setdefault((record.study, record.scale), {})[record.id] = record
        for (name, scale), group in groups.items():
            study = _single_runs(group.values()) if name == "train" else STUDIES.get(name)
            if study is None or scale not in study.scales:
                remarks.append(f"{path}: there is no study {name!r} at scale {scale!r}")
                continue
            found = Results(study, scale, group)
            results.append((path, found))
            if n := len(found.others):
                remarks.append(f"{path}: {n} records have settings that {name} no longer asks for")
    order = [*STUDIES, "train"]
    results.sort(key=lambda found: (order.index(found[1].study.name), found[1].scale_name))
    return Found(results, remarks)


def judged(found: Iterable[Results]) -> list[Results]:
    """Of each study the results that speak about it: the last of its scales that tests a claim."""
    return [of_study[-1] for of_study in tested(found)]


def tested(found: Iterable[Results]) -> list[list[Results]]:
    """Of each study the results at each of its scales, but the small one, that tests a claim."""
    by_scale = {(results.study.name, results.scale_name): results for results in found}
    studies = []
    for study in STUDIES.values():
        there = [
            by_scale[study.name, scale]
            for scale in study.scales
            if scale != SMALL and (study.name, scale) in by_scale
        ]
        studies.append(
            [
                results
                for results in there
                if any(c.judge(results).counts.keys() - {"not tested"} for c in study.claims)
            ]
        )
    return list(filter(None, studies))


def is_of_paper(study: Study) -> bool:
    """Whether a study is about what the paper says."""
    return study.reference != BEYOND and study.name != "demo"


def _single_runs(records: Iterable[Record]) -> Study:
    """The runs of ``whitenorm train``; a panel for each data set, one curve for all seeds."""
    panels: dict[str, dict[str, Curve]] = {}
    for record in records:
        run = record.run.changed({"seed": 0})
        curves = panels.setdefault(run.dataset["name"], {})
        words = f"{run.model['name']}, {run.method['name']}, lr {run.optimiser['lr']:g}"
        if run.id not in curves:
            taken = sum(curve.label.startswith(words) for curve in curves.values())
            curves[run.id] = Curve(f"{words} ({taken + 1})" if taken else words, run)
    drawn = tuple(Panel(name, tuple(curves.values())) for name, curves in panels.items())
    return Study(
        name="train",
        title="Single runs",
        reference="whitenorm train",
        question="",
        scales={"single": Scale(drawn, seeds=1, duration="")},
        views=(
            View("loss", "Training loss", log="y"),
            View("errors", "Error in training and testing", y=("train_error", "test_error")),
        ),
        metrics=("train_loss", "train_error", "test_error"),
    )
