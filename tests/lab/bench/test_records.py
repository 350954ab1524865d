"""From a run of a suite to its record, its tables and the page."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from whitenorm.lab.bench import SUITES, BenchError, fill_page, render, run_suite
from whitenorm.lab.cli import app

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"


def test_the_bars_are_those_to_be_met():
    cases = SUITES["bars"].cases
    assert sum(len(case.bars) for case in cases) == 18
    for case in cases:
        assert {bar.alternative for bar in case.bars} < set(case.alternatives)
        assert {bar.reference for bar in case.bars} == set(case.references)
    assert [bar.at_most for bar in cases[0].bars] == [1.04, 1.05, 1.12, 1.40]


@pytest.mark.parametrize("suite", SUITES)
def test_a_quick_run_leaves_a_record_and_its_tables(tmp_path, suite):
    path = run_suite(SUITES[suite], tmp_path, quick=True, only=SUITES[suite].small)
    record = json.loads(path.read_text())
    assert path.stem == f"{suite}-quick-partial"
    assert {"cpu", "threads", "torch", "revision", "date"} <= set(record["environment"])
    first = {file: file.read_bytes() for file in render(path)}
    assert first == {file: file.read_bytes() for file in render(path)}
    text = path.with_suffix(".md").read_text()
    assert "DBN G16" in text
    assert "these numbers mean nothing" in text


@pytest.fixture
def folder(tmp_path):
    """A copy of the committed records."""
    for suite in SUITES:
        shutil.copy(RESULTS / f"{suite}.json", tmp_path)
    return tmp_path


def test_the_page_shows_its_records_and_nothing_else_is_touched(folder):
    committed, page = ROOT / "docs" / "performance.md", folder / "page.md"
    page.write_text(committed.read_text())
    assert set(fill_page(page, folder)) == set(SUITES)
    assert page.read_text() == committed.read_text()
    for file in folder.glob("*.md"):
        if file != page:
            assert file.read_text() == (RESULTS / file.name).read_text()


def test_a_bar_is_met_up_to_its_value(folder):
    record = json.loads((folder / "memory.json").read_text())
    case = record["cases"][0]
    ratio = case["alternatives"]["dbn-g16"]["ratios"]["bn"]["allocated"]["median"]
    for at_most in (ratio, ratio - 1e-6):
        case["bars"].append({"alternative": "dbn-g16", "reference": "bn", "at_most": at_most})
    (folder / "bars.json").write_text(json.dumps(record | {"suite": "bars"}))
    text = render(folder / "bars.json")[0].read_text()
    assert text.count("| met |") == text.count("| not met |") == 1


def test_what_does_not_belong_on_a_page_is_refused(folder):
    page = folder / "page.md"
    page.write_text("<!-- bench: layer -->\n<!-- end -->\n")
    with pytest.raises(BenchError, match="no place for bars, memory, network"):
        fill_page(page, folder)
    record = json.loads((folder / "layer.json").read_text())
    (folder / "layer.json").write_text(json.dumps(record | {"quick": True}))
    with pytest.raises(BenchError, match=r"layer\.json isn't for publication"):
        fill_page(page, folder)


@pytest.mark.parametrize("text", ["", "[]", '{"format": 0}', '{"format": 1}'])
def test_files_that_are_no_records_are_refused(tmp_path, text):
    path = tmp_path / "bars.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=r"bars\.json .* measure again"):
        render(path)


def test_the_command_measures_renders_and_names_what_is_wrong(tmp_path):
    def bench(*options):
        done = CliRunner().invoke(app, ["bench", *options, "--out", str(tmp_path)])
        return done.exit_code, done.output

    quick = ["--suite", "layer", "--quick", "--only", "[256, 128]", "--rounds", "1"]
    code, output = bench(*quick, "--threads", "1")
    (tmp_path / "page.md").touch()
    assert code == 0
    assert "layer-quick-partial.md" in output
    for options, words in (
        (["--suite", "speed"], "unknown suite 'speed'; there are bars, layer, network, memory"),
        (["--suite", "layer", "--only", "no such"], "no case of suite 'layer' has 'no such'"),
        (["--page", str(tmp_path / "page.md")], "holds no records"),
    ):
        code, output = bench(*options)
        assert code == 1
        assert words in output.replace("\n", " ")
