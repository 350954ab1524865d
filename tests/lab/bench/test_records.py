"""From a run of a suite to its record, its tables and the page."""

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from whitenorm.lab.bench import SUITES, BenchError, fill_page, render
from whitenorm.lab.cli import app

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"


def test_every_layer_is_held_to_its_floor_and_inference_and_memory_to_batch_norm():
    references = {"layer": "floor-g", "inference": "bn, folded", "memory": "bn"}
    at_most = {"layer": 1.25, "inference": 1.05, "memory": 1.05}
    for suite in SUITES.values():
        for case in suite.cases:
            assert all(callable(case.alternatives[bar.alternative]) for bar in case.bars)
            assert {bar.reference for bar in case.bars} <= set(case.references)
            for bar in case.bars:
                assert bar.alternative.startswith("dbn")
                assert bar.reference.startswith(references[case.info["mode"]])
                if case.info["mode"] == "layer":
                    assert bar.alternative.replace("dbn", "floor") == bar.reference
                assert bar.at_most == at_most[case.info["mode"]]
    modes = [case.info["mode"] for case in SUITES["summary"].cases for _ in case.bars]
    assert {mode: modes.count(mode) for mode in modes} == {"layer": 5, "inference": 2, "memory": 2}


def test_the_summary_puts_the_ports_where_dbn_is():
    for case in SUITES["summary"].cases:
        dbn = [name for name in case.alternatives if name.startswith("dbn")]
        if case.info["mode"] in ("training", "layer"):
            ports = {name.replace("dbn", port) for name in dbn for port in ("loop", "newton")}
            assert ports < set(case.alternatives)


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


@pytest.mark.parametrize(
    ("name", "slots"), [("docs/performance.md", ["summary", "goals"]), ("README.md", ["networks"])]
)
def test_pages_show_the_records_and_nothing_else_is_touched(folder, name, slots):
    committed, page = ROOT / name, folder / "page.md"
    page.write_text(committed.read_text())
    assert fill_page(page, folder) == slots
    assert page.read_text() == committed.read_text()
    for file in folder.glob("*.md"):
        if file != page:
            assert file.read_text() == (RESULTS / file.name).read_text()


def spread(ratio):
    return {"both": {"median": ratio, "q1": ratio, "q3": ratio}}


def test_the_summary_sets_dbn_beside_ports_and_floor(folder):
    """Made-up ratios, in the record of a layer."""
    record = json.loads((folder / "summary.json").read_text())
    case = next(c for c in record["cases"] if c["title"] == "[256, 512, 4, 4]")
    found = case["alternatives"]
    found["dbn-g16"]["ratios"] = {"bn": spread(1.51), "floor-g16": spread(0.97)}
    found["loop-g16"]["ratios"]["bn"] = spread(4.44)
    found["newton-g16"]["ratios"]["bn"] = spread(3.33)
    found["bn"]["summary"]["both"]["median"] = 0.00625
    (folder / "summary.json").write_text(json.dumps(record | {"cases": [case]}))
    page = folder / "page.md"
    page.write_text("<!-- bench: summary -->\n<!-- end -->\n")
    fill_page(page, folder)
    row = "| one layer, [256, 512, 4, 4] float32 | DBN G16 | 6.25 | 1.51 | 4.44 | 3.33 | 0.97 |"
    assert row in page.read_text()


def test_a_goal_is_met_up_to_its_value(folder):
    record = json.loads((folder / "memory.json").read_text())
    case = record["cases"][0]
    ratio = case["alternatives"]["dbn-g16"]["ratios"]["bn"]["allocated"]["median"]
    bar = {"alternative": "dbn-g16", "reference": "bn"}
    case["bars"] = [bar | {"at_most": most} for most in (ratio, ratio - 1e-6)]
    (folder / "memory.json").write_text(json.dumps(record | {"cases": [case]}))
    text = render(folder / "memory.json")[0].read_text()
    assert text.count("| met |") == text.count("| not met |") == 1
    assert "1 of 2 goals are met" in text


def test_a_record_of_training_alone_has_no_ratios_of_inference(folder):
    record = json.loads((folder / "network.json").read_text())
    cases = [case for case in record["cases"] if case["info"]["mode"] == "training"]
    (folder / "network.json").write_text(json.dumps(record | {"cases": cases, "only": "train"}))
    text = render(folder / "network.json")[0].read_text()
    assert re.search(r"\| VGG-A, batch 128 \| DBN G8 \| .* \| 4.32 \| - \| - \|", text)


def test_a_page_without_a_place_for_any_record_is_refused(folder):
    page = folder / "page.md"
    page.write_text("<!-- bench: sumary -->\n<!-- end -->\n")
    with pytest.raises(BenchError, match="no place for summary, networks, goals"):
        fill_page(page, folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 0}', '{"format": 1}'])
def test_files_that_are_no_records_are_refused(tmp_path, text):
    path = tmp_path / "summary.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=r"summary\.json .* measure again"):
        render(path)


def test_the_command_names_what_is_wrong(tmp_path):
    page = tmp_path / "page.md"
    page.touch()
    for options, words in (
        (["--suite", "speed"], "unknown suite 'speed'; there are summary, layer, network, memory"),
        (["--suite", "layer", "--only", "no such"], "no case of suite 'layer' has 'no such'"),
        (["--page", str(page)], "holds no records"),
    ):
        code, output = bench(tmp_path, *options)
        assert code == 1
        assert words in output
