"""The ledger's numbers are those of the records, and a page has no others."""

import json
import re
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_study import tiny_study

from whitenorm.lab.execution.runner import run_study
from whitenorm.lab.records.record import RecordError, RecordFile
from whitenorm.lab.reporting.find import find_results
from whitenorm.lab.reporting.ledger import fill_pages, ledger
from whitenorm.lab.reporting.page import build_report
from whitenorm.lab.studies import catalogue as studies
from whitenorm.lab.studies.catalogue import STUDIES
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.wording import effect_text

ROOT = Path(__file__).parents[3]
PAGES = ("README.md", "docs/beyond.md", "docs/ledger.md", "docs/results.md")
BLOCK = re.compile(r"(<!-- results: \S+ -->\n).*?(<!-- end -->)", re.DOTALL)


# --- what is committed --------------------------------------------------------------------------


def test_the_committed_pages_are_what_the_committed_records_give(tmp_path):
    """Emptied of their numbers and filled again, they are the same to the last letter."""
    shutil.copytree(ROOT / "results" / "records", tmp_path / "results" / "records")
    for name in PAGES:
        page = tmp_path / name
        page.parent.mkdir(exist_ok=True)
        page.write_text(BLOCK.sub(r"\1\2", (ROOT / name).read_text()))
    assert fill_pages(tmp_path / "results") == [tmp_path / name for name in PAGES]
    for name in PAGES:
        assert (tmp_path / name).read_text() == (ROOT / name).read_text()


@pytest.mark.parametrize("page", ["beyond", "results"])
def test_the_pages_have_no_numbers_besides(page):
    """What is measured stands in blocks alone: in the prose, numbers would grow old."""
    prose = BLOCK.sub("", (ROOT / "docs" / f"{page}.md").read_text()).replace("95% interval", "")
    assert not re.findall(r"\d\.\d|\d ?%|± \d", prose)


def test_all_records_belong_to_their_study():
    found = find_results(ROOT / "results")
    assert not found.remarks
    for _, results in found.results:
        whole = [panel for panel in results.scale.panels if begun(results, panel)]
        assert whole
        for panel in whole:  # each was run to its end, or not at all
            assert all(results.choice(curve).complete for curve in panel.curves)
            counts = {len(results.records(curve)) for curve in panel.curves}
            assert counts == {results.scale.seeds}


def begun(results, panel):
    """Whether curves that no other panel shares have records; of any curve, if all are shared."""
    shared = [curve.run for other, curve in results.scale.curves() if other.name != panel.name]
    own = tuple(curve for curve in panel.curves if curve.run not in shared) or panel.curves
    runs = replace(results.scale, panels=(replace(panel, curves=own),)).grid_runs()
    drawn = [record.run for curve in own for record in results.records(curve)]
    return any(run.id in results.all for run in (*runs, *drawn))


def test_every_figure_of_the_pages_is_there():
    for name in PAGES:
        text = (ROOT / name).read_text()
        for link in re.findall(r'(?:\]\(|src=")([^)"]+\.(?:png|svg))', text):
            assert ((ROOT / name).parent / link).is_file(), f"{name}: {link}"


# --- how it is made -----------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    study = tiny_study(epochs=1)
    study = type(study)(**{**vars(study), "scales": {"paper": study.scales["small"]}})
    monkeypatch.setitem(studies.STUDIES, "tiny", study)
    run_study(study, "paper", tmp_path / "results", seeds=2)
    return tmp_path / "results"


def test_a_claim_judged_at_two_scales_has_both_verdicts(recorded, monkeypatch):
    one = studies.STUDIES["tiny"]
    assert ledger(results_of(recorded))["scales"].count("\n") == 1  # a heading alone
    scales = {**one.scales, "scripts": replace(one.scales["paper"], setting="again")}
    monkeypatch.setitem(studies.STUDIES, "tiny", replace(one, scales=scales))
    records = recorded / "records"
    again = (records / "tiny-paper.jsonl").read_text().replace('"paper"', '"scripts"')
    (records / "tiny-scripts.jsonl").write_text(again)
    slots = ledger(results_of(recorded))
    (row,) = slots["scales"].splitlines()[2:]
    assert re.search(r"paper: \w+.*; scripts: \w+", row)
    assert "reduced size" not in row
    assert "Settings: again." in slots["ledger"]


def results_of(folder):
    return [results for _, results in find_results(folder).results]


def test_a_number_of_the_ledger_is_the_mean_of_its_records(recorded):
    blocks = ledger(results_of(recorded))
    row = next(line for line in blocks["ledger"].splitlines() if line.startswith("| BN |"))
    chosen = float(re.search(r"lr ([\d.]+)", row)[1])
    lines = (recorded / "records" / "tiny-paper.jsonl").read_text().splitlines()
    losses = [
        record["final"]["train_loss"]
        for record in map(json.loads, lines)
        if record["run"]["method"]["name"] == "bn"
        and record["run"].get("optimiser", {"lr": 0.1})["lr"] == chosen
    ]
    assert len(losses) == 2
    written = re.search(r"([\d.]+) ± ([\d.]+)", row)
    digits = len(written[1].partition(".")[2])
    assert float(written[1]) == round(statistics.fmean(losses), digits)
    assert float(written[2]) == round(statistics.stdev(losses), digits)


def test_a_claim_has_its_words_criterion_numbers_command_and_verdict(recorded):
    blocks = ledger(results_of(recorded))
    verdict = STUDIES["tiny"].claims[0].judge(results_of(recorded)[0])
    text = blocks["ledger"]
    assert "> BN beats plain." in text
    assert f"**{verdict.status}**. What counts: its loss is." in text
    assert f"- {verdict.evidence[0].text}" in text
    assert "(n=2)" in text
    row = f"BN beats plain. | {effect_text(verdict.evidence[0].effect)} | **{verdict.status}** |"
    assert f"{row} 2 seeds, scale paper |" in blocks["claims"]
    assert row in blocks["tiny-verdicts"]
    command = "`whitenorm run tiny --scale paper`: 9 runs, 2 seeds of each curve; a grid of 6 runs"
    assert command in text


def test_core_hours_are_those_of_the_records(recorded):
    lines = (recorded / "records" / "tiny-paper.jsonl").read_text().splitlines()
    hours = sum(json.loads(line)["final"]["seconds"] for line in lines) / 3600
    assert (
        f"| tiny | paper | {len(lines)} | {hours:.2f} |" in ledger(results_of(recorded))["hours"]
    )


def test_hours_that_no_record_has_are_not_zero(recorded):
    file = recorded / "records" / "tiny-paper.jsonl"
    file.write_text(re.sub(r'"seconds":[\d.e-]+,', "", file.read_text()))
    assert "| tiny | paper | 9 | not recorded |" in ledger(results_of(recorded))["hours"]


def test_a_claim_without_records_is_in_the_summary_as_untested(recorded):
    claims = ledger(results_of(recorded))["claims"]
    for claim in STUDIES["fig6"].claims:
        assert f"| {claim.quote} | — | not tested at this scale | not run |" in claims


def test_a_verdict_of_a_smaller_experiment_says_so(recorded, monkeypatch):
    study = studies.STUDIES["tiny"]
    fewer = replace(study.scales["paper"], reduced="fewer pictures")
    smaller = replace(study, scales={"reduced": fewer})
    monkeypatch.setitem(studies.STUDIES, "tiny", smaller)
    file = recorded / "records" / "tiny-paper.jsonl"
    text = file.read_text().replace('"scale":"paper"', '"scale":"reduced"')
    (recorded / "records" / "tiny-reduced.jsonl").write_text(text)
    file.unlink()
    blocks = ledger(results_of(recorded))
    for name in ("claims", "tiny-verdicts", "ledger"):
        assert re.search(r"\*\*(supported|undecided)\*\* \(reduced size\)", blocks[name])


def test_only_pages_that_name_the_records_are_filled(recorded):
    block = "<!-- results: claims -->\n<!-- end -->\n"
    pages = {
        recorded.parent / "README.md": "<!-- records: results -->\n",
        recorded.parent / "docs" / "a.md": "<!-- records: ../results -->\n",
        recorded.parent / "docs" / "b.md": "<!-- records: ../elsewhere -->\n",
        recorded.parent / "docs" / "c.md": "",
    }
    (recorded.parent / "docs").mkdir()
    for page, head in pages.items():
        page.write_text(head + block)
    about_it = [page for page in pages if page.name in ("README.md", "a.md")]
    assert fill_pages(recorded) == about_it
    for page, head in pages.items():
        assert ("BN beats plain." in page.read_text()) == (page in about_it)
        assert page.read_text().startswith(head)


def test_building_a_report_edits_no_page(recorded):
    page = recorded.parent / "README.md"
    text = "<!-- records: results -->\n<!-- results: claims -->\n<!-- end -->\n"
    page.write_text(text)
    build_report(recorded)
    assert page.read_text() == text


def test_a_block_that_the_records_do_not_have_is_an_error(recorded):
    page = recorded.parent / "page.md"
    text = "<!-- records: results -->\n<!-- results: fig9-claims -->\n<!-- end -->\n"
    page.write_text(text)
    with pytest.raises(RecordError, match=r"page.md asks for fig9-claims, .* they give claims"):
        fill_pages(recorded)
    assert page.read_text() == text


def test_an_unfinished_study_is_not_tested(recorded):
    path = recorded / "records" / "tiny-paper.jsonl"
    path.write_text("".join(path.read_text().splitlines(True)[:2]))
    results = Results(STUDIES["tiny"], "paper", RecordFile(path).read())
    assert "not tested at this scale. What counts" in ledger([results])["ledger"]
