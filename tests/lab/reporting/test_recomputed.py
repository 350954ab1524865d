"""Choices, means, intervals, marks and verdicts, worked out again from the JSON of the records.

Only what belongs together is taken from the studies: which settings a curve has, and which curves
are compared by what. Choosing, measuring and judging are written here once more, otherwise.
"""

import functools
import json
import math
import statistics
from pathlib import Path

import pytest
from scipy.stats import t as student

from whitenorm.lab.reporting.find import find_results, is_of_paper
from whitenorm.lab.studies.catalogue import STUDIES

ROOT = Path(__file__).parents[3]
LEDGER = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
RECORDS = ROOT / "results" / "records"
KEYS = sorted(path.stem for path in RECORDS.glob("*.jsonl"))
OF_PAPER = [key for key in KEYS if is_of_paper(STUDIES[key.partition("-")[0]])]
CLOCKS = {"updates": "iteration", "epochs": "epoch", "seconds": "seconds"}
COLUMNS = {
    "training loss": "train_loss",
    "training error": "train_error",
    "test error": "test_error",
    "time an update": "seconds_per_iteration",
    "share of axes that swapped": "swapped",
    "effective rank of the embeddings": "effective_rank",
    "spread of the embeddings": "spread",
    "nearest-neighbour error": "neighbour_error",
    "SND in the smallest batches": "snd_small",
    "SND in the largest batches": "snd_large",
}
PROBES = {
    "condition number": ("fisher", "at_90_percent"),
    "RMS of log10 of singular values": ("jacobian", "log10_rms"),
    "largest variance of whitened test activations": ("whiteness", "largest"),
}
DEFAULT = {"name": "sgd", "lr": 0.1}  # of optimisers, which records then leave out
RATIOS = ("training loss", "time an update", " to loss ", "median ")  # others are subtracted
# Where a claim names bounds of its own, and not only which of two is lower.
WITHIN = {"The model with DBN is 2x slower than the model with BN per iteration.": (1.5, 2.5)}
VALUE = "On the 4-layer MLP, DBN-PCA behaves similarly to random guessing."


@functools.cache
def found():
    return {
        f"{results.study.name}-{results.scale_name}": results
        for _, results in find_results(ROOT / "results").results
    }


def at(settings, path):
    for name in path.split("."):
        settings = settings.get(name, {}) if isinstance(settings, dict) else {}
    return settings


def without(settings, paths):
    """Settings less those that differ between the runs of a curve."""
    left = json.loads(json.dumps({"optimiser": DEFAULT, **settings}))
    for path in ("seed", "validation", "probes", *paths):
        *outer, last = path.split(".")
        place = left
        for name in outer:
            place = place.get(name, {})
        place.pop(last, None)
    return left


def curve_of(key, panel, label):
    (drawn_together,) = [p for p in found()[key].scale.panels if p.name == panel]
    return next(curve for curve in drawn_together.curves if curve.label == label)


@functools.cache
def rows_of(key):
    lines = (RECORDS / f"{key}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        row["run"].setdefault("optimiser", DEFAULT)
    return rows


@functools.cache
def drawn(key, panel, label):
    """The runs of the best point of a curve's grid, by seed, and how many diverged."""
    curve, selection = curve_of(key, panel, label), found()[key].scale.selection
    settings = curve.run.settings()
    fixed = without(settings, curve.grid)
    own = [row for row in rows_of(key) if without(row["run"], curve.grid) == fixed]

    def point(row):
        return tuple(at(row["run"], path) for path in curve.grid)

    first_seed = 0 in selection.seeds
    best = ()
    if curve.grid:
        tried = {}
        for row in own:
            run = row["run"]
            held_out = run.get("validation", 0) == selection.validation
            if held_out and not run.get("probes") and run.get("seed", 0) in selection.seeds:
                score = row["final"].get(selection.metric)
                tried.setdefault(point(row), []).append(math.inf if score is None else score)
        best = min(tried, key=lambda key: statistics.median(tried[key]))
    chosen = {}
    for row in own:
        run = row["run"]
        same = run.get("probes", {}) == settings.get("probes", {}) and "validation" not in run
        grid = not first_seed and curve.grid and run.get("seed", 0) in selection.seeds
        if same and not grid and point(row) == best:
            chosen[run.get("seed", 0)] = row
    finished = {seed: row for seed, row in sorted(chosen.items()) if row["status"] == "finished"}
    return finished, len(chosen) - len(finished)


def measured(row, name):
    """A measure of a record, infinite where it isn't reached or no number; and its least value."""
    history = row["history"]
    if " to loss " in name:
        clock, _, goal = name.partition(" to loss ")
        times = history[CLOCKS[clock]]
        points = zip(times, history["train_loss"], strict=True)
        reached = [time for time, loss in points if loss is not None and loss <= float(goal)]
        return (reached[0] if reached else math.inf), times[-1]
    if name.startswith("test error at loss "):
        points = zip(history["test_error"], history["train_loss"], strict=True)
        goal = float(name.rpartition(" ")[2])
        return next((error for error, loss in points if loss <= goal), math.inf), None
    if name.startswith("median ") or name.endswith((" at the start", " at the end")):
        what = (
            name.removeprefix("median ").removesuffix(" at the start").removesuffix(" at the end")
        )
        probe, column = PROBES[what]
        values = [math.inf if v is None else v for v in row["probes"][probe][column]]
        if name.startswith("median "):
            return statistics.median(values), None
        return values[0 if name.endswith("start") else -1], None
    return row["final"][COLUMNS[name]], None


def same_start(one, other):
    def start(curve):
        settings = without(curve.run.settings(), ["model.placement"])
        return [settings.get(name) for name in ("dataset", "model", "batch_size", "subset")]

    return start(one) == start(other)


def student_of(a, b, paired):
    """Mean difference, its standard error and degrees of freedom."""
    if paired:
        gaps = [x - y for x, y in zip(a, b, strict=True)]
        n = len(gaps)
        return statistics.fmean(gaps), statistics.stdev(gaps) / math.sqrt(n), n - 1
    parts = [statistics.variance(values) / len(values) for values in (a, b)]
    error = math.sqrt(sum(parts))
    below = sum(p**2 / (len(v) - 1) for p, v in zip(parts, (a, b), strict=True))
    middle = statistics.fmean(a) - statistics.fmean(b)
    return middle, error, sum(parts) ** 2 / below if below else math.inf


def judged(key, comparison):
    """Estimate and interval, whether each side ended too soon, and a test against a bound."""
    curves = [curve_of(key, comparison.panel, label) for label in comparison.labels]
    runs = [drawn(key, comparison.panel, label)[0] for label in comparison.labels]
    sides = [{seed: measured(row, comparison.measure) for seed, row in of.items()} for of in runs]
    late = [any(math.isinf(value) for value, _ in of.values()) for of in sides]
    finite = [v for of in sides for v, _ in of.values() if math.isfinite(v)]
    values = [
        {
            seed: min(value, max(finite) if least is None else least)
            for seed, (value, least) in of.items()
        }
        for of in sides
    ]
    ratio = any(word in comparison.measure for word in RATIOS)
    if ratio:
        values = [{seed: math.log(v) for seed, v in of.items()} for of in values]
    common = sorted(values[0].keys() & values[1].keys())
    paired = same_start(*curves) and len(common) >= 2
    compared = [[of[s] for s in common] if paired else list(of.values()) for of in values]
    middle, error, freedom = student_of(*compared, paired)
    alike = error <= 1e-9 * abs(middle)

    def probability_of_more(bound):
        if alike:
            return float(middle <= bound)
        return float(student.sf((middle - bound) / error, freedom))

    half = 0.0 if alike else float(student.ppf(0.975, freedom)) * error
    ends = [middle, middle - half, middle + half]
    if ratio:
        ends = [math.exp(end) for end in ends]
    return ends, late, probability_of_more


def marked(key, claim, comparison):
    """The mark of a comparison of the paper's claims, and what speaks against it."""
    (_, low, high), late, more = judged(key, comparison)
    if claim.quote in WITHIN:
        least, most = WITHIN[claim.quote]
        against = min(1 - more(math.log(least)), more(math.log(most)))
        fits = least <= low and high <= most
    else:
        none = 1.0 if comparison.effect.ratio else 0.0
        fits = high < none and not late[0]
        against = 1.0 if late[1] else more(0.0)
    return "supported" if fits else "contradicted" if against < 0.025 else "undecided", against


@functools.cache
def verdicts(key):
    results = found()[key]
    return [(claim, claim.judge(results)) for claim in results.study.claims]


@pytest.mark.parametrize("key", KEYS)
def test_effects_and_their_intervals(key):
    for _, verdict in verdicts(key):
        for comparison in verdict.evidence:
            assert f"- {comparison.text}\n" in LEDGER
            if comparison.effect is None:
                continue
            ends, late, _ = judged(key, comparison)
            effect = comparison.effect
            shown = [effect.estimate, effect.low, effect.high]
            assert shown == pytest.approx(ends, rel=1e-6, abs=1e-9), comparison.text
            beyond = "" if late[0] == late[1] else "at least" if late[0] else "at most"
            assert effect.beyond == beyond, comparison.text


@pytest.mark.parametrize("key", OF_PAPER)
def test_marks_and_verdicts_of_the_papers_claims(key):
    """Supported if all comparisons are; contradicted if one is at a level that counts them all."""
    for claim, verdict in verdicts(key):
        tested = [c for c in verdict.evidence if c.mark != "not tested"]
        if claim.quote == VALUE or not tested:
            continue
        told = [c for c in tested if c.effect is not None]
        again = [marked(key, claim, comparison) for comparison in told]
        assert [c.mark for c in told] == [mark for mark, _ in again], claim.quote
        marks = {c.mark for c in tested}
        doubts = [against for mark, against in again if mark != "supported"]
        if marks == {"supported"}:
            assert verdict.status == "supported"
        elif len(told) == len(tested):
            contradicted = min(doubts) * len(tested) < 0.025
            assert verdict.status == ("contradicted" if contradicted else "undecided")


@pytest.mark.parametrize(("key", "lost"), [("fig3-paper", 0), ("fig3-scripts", 2)])
def test_an_error_above_a_value(key, lost):
    """Of the one claim about a value, not about two curves."""
    finished, diverged = drawn(key, "4-layer MLP", "DBN-PCA")
    assert diverged == lost
    (verdict,) = [verdict for claim, verdict in verdicts(key) if claim.quote == VALUE]
    if diverged:  # those that finished are the better ones
        assert verdict.status == "undecided"
        return
    errors = [row["final"]["train_error"] for row in finished.values()]
    error = statistics.stdev(errors) / math.sqrt(len(errors))
    below = student.sf((80 - statistics.fmean(errors)) / error, len(errors) - 1)
    assert (verdict.status == "contradicted") == (below < 0.025)
    assert verdict.evidence[0].against == pytest.approx(below)
