"""From a run of a suite to its record, its tables and the page."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from whitenorm.lab.bench import SUITES, BenchError, fill_page, render
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


def bench(out, *options):
    done = CliRunner().invoke(app, ["bench", *options, "--out", str(out)])
    return done.exit_code, done.output.replace("\n", " ")


@pytest.mark.parametrize("suite", SUITES)
def test_a_quick_run_leaves_a_record_and_its_tables(tmp_path, suite):
    only = SUITES[suite].small
    code, output = bench(tmp_path, "--suite", suite, "--quick", "--only", only, "--threads", "1")
    assert code == 0
    assert f"{suite}-quick-partial.md" in output
    path = tmp_path / f"{suite}-quick-partial.json"
    environment = json.loads(path.read_text())["environment"]
    assert {"cpu", "threads", "torch", "revision", "date"} <= set(environment)
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


def test_a_page_without_a_place_for_a_record_is_refused(folder):
    page = folder / "page.md"
    page.write_text("<!-- bench: layer -->\n<!-- end -->\n")
    with pytest.raises(BenchError, match="no place for bars, memory, network"):
        fill_page(page, folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 0}', '{"format": 1}'])
def test_files_that_are_no_records_are_refused(tmp_path, text):
    path = tmp_path / "bars.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=r"bars\.json .* measure again"):
        render(path)


def test_the_command_names_what_is_wrong(tmp_path):
    page = tmp_path / "page.md"
    page.touch()
    for options, words in (
        (["--suite", "speed"], "unknown suite 'speed'; there are bars, layer, network, memory"),
        (["--suite", "layer", "--only", "no such"], "no case of suite 'layer' has 'no such'"),
        (["--page", str(page)], "holds no records"),
    ):
        code, output = bench(tmp_path, *options)
        assert code == 1
        assert words in output
