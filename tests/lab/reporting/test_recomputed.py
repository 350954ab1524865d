"""Means, intervals and marks of the ledger, worked out again from the JSON alone."""

import json
import math
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LEDGER = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
T = {3: 4.302652729911275, 5: 2.7764451051977987}  # 97.5% of Student's t, by number of seeds


def records(name):
    lines = (ROOT / "results" / "records" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def seeds(rows, grid_metric="train_loss"):
    """The last values of the best learning rate of a grid, by seed; rows are of one curve."""
    held_out = [r for r in rows if r["run"].get("validation")]
    not_drawn = [r for r in rows if r["run"].get("seed", 0) == 100]
    grid = held_out or not_drawn or [r for r in rows if r["run"].get("seed", 0) == 0]

    def rate(row):
        return row["run"].get("optimiser", {}).get("lr", 0.1)

    scores = {
        rate(r): math.inf if r["final"][grid_metric] is None else r["final"][grid_metric]
        for r in grid
    }
    best = min(scores, key=scores.get)
    drawn = [r for r in rows if rate(r) == best and r not in held_out + not_drawn]
    return [r for _, r in sorted((r["run"].get("seed", 0), r) for r in drawn)]


def interval(a, b):
    """Of the mean difference of pairs."""
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    half = T[len(gaps)] * statistics.stdev(gaps) / math.sqrt(len(gaps))
    middle = statistics.fmean(gaps)
    return middle, middle - half, middle + half


def mark(low, high, none=0.0):
    return "✓" if high < none else "✗" if low > none else "·"


def section(reference, scale):
    """The ledger's lines about a figure or table at a scale."""
    pattern = rf"^## {reference}: [^\n]* \(scale {scale}\)$(.*?)(?=^## |\Z)"
    (found,) = re.findall(pattern, LEDGER, re.MULTILINE | re.DOTALL)
    return found.splitlines()


def line(rows, pattern):
    """The line of a comparison: its mark, and the numbers of its effect."""
    (found,) = {row for row in rows if re.match(rf"- . {pattern}", row)}
    effect = found.rpartition("; ")[2]
    return found[2], [float(n) for n in re.findall(r"-?\d+\.?\d*(?:e[+-]\d+)?", effect)]


@pytest.mark.parametrize("panel", ["basic", "Adam", "ELU", "after non-linearity"])
def test_differences_of_test_errors(panel):
    def of(run):
        if run.get("optimiser", {}).get("name") == "adam":
            return "Adam"
        model = run["model"]
        return {"elu": "ELU"}.get(
            model.get("activation"), "after non-linearity" if "norm_position" in model else "basic"
        )

    rows = [r for r in records("fig6-long") if of(r["run"]) == panel]
    errors = {}
    for method in ("dbn", "bn"):
        own = [r for r in rows if r["run"]["method"]["name"] == method]
        errors[method] = [r["final"]["test_error"] for r in seeds(own, "test_error")]
    expected = interval(errors["dbn"], errors["bn"])
    found, numbers = line(section("Figure 6", "long"), f"{panel}, test error: DBN ")
    assert found == mark(*expected[1:])
    assert numbers == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("label", ["DBN-scale-L1", "DBN everywhere"])
def test_differences_of_test_errors_without_a_grid(label):
    errors = {}
    for row in sorted(records("table1-long"), key=lambda row: row["run"].get("seed", 0)):
        run = row["run"]
        whitened = "DBN-scale-L1" if "placement" in run["model"] else "DBN everywhere"
        name = "Baseline" if run["method"]["name"] == "bn" else whitened
        errors.setdefault(name, []).append(row["final"]["test_error"])
    expected = interval(errors[label], errors["Baseline"])
    found, numbers = line(section("Table 1", "long"), f"Res-20, test error: {label} .*, Baseline ")
    assert found == mark(*expected[1:])
    assert numbers == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("scale", ["paper", "scripts"])
@pytest.mark.parametrize("goal", [0.1, 0.01, 0.001])
def test_ratios_of_times_to_a_loss(goal, scale):
    def time(record):
        points = zip(record["history"]["seconds"], record["history"]["train_loss"], strict=True)
        return next(t for t, loss in points if loss <= goal)

    rows, logs = records(f"fig5-{scale}"), {}
    for name, method in {"dbn": {"group_size": 16}, "bn": {}}.items():
        own = [
            r
            for r in rows
            if r["run"]["method"]["name"] == name
            and all(r["run"]["method"].get(k, v) == v for k, v in method.items())
        ]
        logs[name] = [math.log(time(r)) for r in seeds(own)]
    expected = [math.exp(v) for v in interval(logs["dbn"], logs["bn"])]
    pattern = rf"comparison, seconds to loss {goal:g}: DBN [^,]*, BN "
    found, numbers = line(section("Figure 5", scale), pattern)
    assert found == mark(*expected[1:], none=1.0)
    assert numbers == pytest.approx(expected, rel=0.006)


def test_a_verdict_is_that_of_its_comparisons():
    """Supported if all are; contradicted if one is at a level that counts them all."""
    claims = re.findall(
        r"\n> .*\n\n(.*?)\. What counts: .*\n\n((?:- .*\n)*)", LEDGER.replace("**", "")
    )
    assert len(claims) > 20
    for status, evidence in claims:
        marks = re.findall(r"^- ([✓✗·])", evidence, re.MULTILINE)
        if not marks:
            assert status.startswith("not tested")
        elif set(marks) == {"✓"}:
            assert status.startswith("supported")
        elif "✗" not in marks:
            assert status.startswith("undecided")
        else:
            assert status.startswith(("undecided", "contradicted"))
