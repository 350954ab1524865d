"""What is committed of the results is what the committed records give.

``rebuilt.json`` holds the verdicts and numbers of every study as they were when its records were
committed; words are left out, so that they can be improved. Only new records may change it:
``python tests/lab/reporting/test_rebuilt.py`` writes it again.
"""

import json
import re
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from whitenorm.lab.reporting.find import find_results, judged
from whitenorm.lab.reporting.forest import draw_forest
from whitenorm.lab.reporting.plots import draw_all, line_plots, seeds_of

ROOT = Path(__file__).parents[3]
FIGURES = ROOT / "results" / "figures"
SNAPSHOT = Path(__file__).with_name("rebuilt.json")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)?")


@pytest.fixture(scope="module")
def found():
    return {
        f"{results.study.name}-{results.scale_name}": results
        for _, results in find_results(ROOT / "results").results
    }


def verdicts(results):
    """Status of each claim; mark and numbers of each comparison."""
    judged = [claim.judge(results) for claim in results.study.claims]
    return [
        [verdict.status, *([each.mark, *NUMBER.findall(each.text)] for each in verdict.evidence)]
        for verdict in judged
    ]


def numbers(results):
    """What each grid chose, and the last value of each seed by metric."""
    rows = []
    for panel, curve in results.scale.curves():
        finals = {metric: results.final(curve, metric) for metric in results.study.metrics}
        values = {metric: [*final.values, final.diverged] for metric, final in finals.items()}
        rows.append([panel.name, curve.label, results.choice(curve).point, values])
    return rows


def rebuild(found):
    return {
        key: {"verdicts": verdicts(results), "numbers": numbers(results)}
        for key, results in found.items()
    }


def test_verdicts_and_numbers_are_those_of_the_records(found):
    expected = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    assert found.keys() == expected.keys()
    for key, values in rebuild(found).items():
        assert values == expected[key], key


def assert_drawn_as_committed(paths):
    (pinned,) = re.findall(r"(?m)^matplotlib==(\S+)", (ROOT / "constraints.txt").read_text())
    if (installed := metadata.version("matplotlib")) != pinned:
        pytest.skip(f"matplotlib {installed} draws otherwise than {pinned} of constraints.txt")
    for path in paths:
        with Image.open(path) as ours, Image.open(FIGURES / path.name) as committed:
            assert np.array_equal(np.asarray(ours), np.asarray(committed)), path.name


def forest(found, folder):
    return draw_forest(judged(found.values()), folder)


def test_the_readmes_figures_are_those_of_the_records_to_the_pixel(found, tmp_path):
    drawn = draw_all(found["fig4-scripts"], tmp_path)
    assert_drawn_as_committed([*drawn, forest(found, tmp_path)])


@pytest.mark.slow
def test_all_figures_are_those_of_the_records_to_the_pixel(found, tmp_path):
    drawn = [path for results in found.values() for path in draw_all(results, tmp_path)]
    drawn.append(forest(found, tmp_path))
    assert {path.name for path in drawn} == {path.name for path in FIGURES.glob("*.png")}
    assert_drawn_as_committed(drawn)


def test_a_line_across_panels_counts_each_seed_once(found):
    results = found["isometry-paper"]
    lines = [
        line
        for view in results.study.views
        if view.kind == "across"
        for plot in line_plots(results, view)
        for line in plot.lines
    ]
    assert {seeds_of(line) for line in lines} == {results.scale.seeds}


if __name__ == "__main__":
    lines = [
        f"{json.dumps(key)}: {json.dumps(values, ensure_ascii=False)}"
        for key, values in rebuild(found.__wrapped__()).items()
    ]
    SNAPSHOT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
