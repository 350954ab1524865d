"""The benchmark harness: that it measures what it says. Speed itself is never asserted."""

import importlib.util
import json
import math
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from whitenorm import DecorrelatedBatchNorm2d
from whitenorm.lab.bench import SUITES, BenchError, fill, machine, render, run_bench
from whitenorm.lab.bench.alternatives import Network, TrainingStep, baselines, inference, layer
from whitenorm.lab.bench.bare import BareLayer
from whitenorm.lab.bench.cases import networks
from whitenorm.lab.bench.machine import disturbances
from whitenorm.lab.bench.memory import PeakMemory
from whitenorm.lab.bench.roofline import bound
from whitenorm.lab.bench.tables import tables
from whitenorm.lab.bench.timing import MADE_ANEW, Alternative, Bar, Case, Timed, measure

ROOT = Path(__file__).parents[3]
TIMED = {"layer": None, "parts": None, "network": "res-8", "scaling": None}  # and which cases


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Quick records of the suites that need no processes of their own, by suite."""
    out = tmp_path_factory.mktemp("records")
    return {s: run_bench(s, 1, out, 1, quick=True, only=only) for s, only in TIMED.items()}


# --- timing -------------------------------------------------------------------------------------


class Scripted:
    """A sampler that plays values back and notes when it was called."""

    def __init__(self, name, values, calls):
        self.name, self.values, self.calls, self.info = name, iter(values), calls, {}

    def __call__(self):
        self.calls.append(self.name)
        return {"step": next(self.values)}

    def check(self):
        self.calls.append(f"check {self.name}")


def scripted_case(calls, **values):
    alternatives = [
        Alternative(name, lambda name=name: Scripted(name, values[name], calls)) for name in values
    ]
    return Case("case", "Case", alternatives, ["a"], warmup=1)


def test_ratios_are_taken_within_a_round_and_warm_up_is_dropped():
    case = scripted_case([], a=[99.0, 1.0, 2.0, 4.0], b=[99.0, 3.0, 4.0, 4.0])
    found = measure(case, rounds=3)["alternatives"]["b"]
    assert found["values"] == {"step": [3.0, 4.0, 4.0]}
    assert found["summary"]["step"] == {"median": 4.0, "q1": 3.5, "q3": 4.0}
    assert found["ratios"]["a"]["step"]["median"] == 2.0  # of 3, 2 and 1
    assert found["ratios"]["a"]["step"]["of_medians"] == 2.0


def test_every_alternative_takes_every_place_in_the_order():
    calls = []
    case = scripted_case(calls, a=[1.0] * 9, b=[1.0] * 9, c=[1.0] * 9)
    measure(case, rounds=MADE_ANEW)
    taken = 3 * (1 + MADE_ANEW)
    turns = [calls[i : i + 3] for i in range(0, taken, 3)]
    assert all(set(turn) == set("abc") for turn in turns)
    for place in range(3):
        assert {turn[place] for turn in turns} == set("abc")
    assert len({tuple(turn) for turn in turns}) > 3  # backwards too, not only rotated
    assert calls[taken:] == ["check a", "check b", "check c"]


def test_alternatives_are_made_anew_in_another_order_and_warmed_up_again():
    calls, made = [], []

    def alternative(name):
        def make():
            made.append(name)
            return Scripted(name, [99.0, *[float(len(made))] * MADE_ANEW], calls)

        return Alternative(name, make)

    case = Case("case", "Case", [alternative("a"), alternative("b")], ["a"], warmup=1)
    found = measure(case, rounds=MADE_ANEW + 2)
    assert made == ["a", "b", "b", "a"]
    assert found["rounds"] == MADE_ANEW + 2
    assert found["alternatives"]["a"]["values"] == {"step": [1.0] * MADE_ANEW + [4.0] * 2}
    assert found["alternatives"]["b"]["values"] == {"step": [2.0] * MADE_ANEW + [3.0] * 2}
    assert calls.count("check a") == calls.count("check b") == 2


def test_quick_cases_go_on_for_the_time_given():
    phases = {"wait": lambda: None}
    case = Case("case", "Case", [Alternative("a", lambda: Timed(phases))], ["a"])
    assert measure(case, rounds=2)["rounds"] == 2
    assert measure(case, rounds=2, seconds=60)["rounds"] == 20


def test_phases_run_in_order_and_often_enough_for_the_clock():
    log = []
    timed = Timed({"one": lambda: log.append(1), "two": lambda: log.append(2)}, least=1e-4)
    assert timed.info["repeats"] > 1
    log.clear()
    assert set(timed()) == {"one", "two"}
    assert log == [1, 2] * timed.info["repeats"]


def test_what_comes_before_a_phase_is_outside_its_time(monkeypatch):
    log = []
    phases = {"one": lambda: log.append("one"), "two": lambda: log.append("two")}
    monkeypatch.setattr(time, "perf_counter", lambda: float(log.count("before")))
    timed = Timed(phases, before=lambda: log.append("before"), least=0)
    log.clear()
    assert timed() == {"one": 0.0, "two": 0.0}
    assert log == ["before", "one", "before", "two"]


def test_a_sum_of_phases_has_its_own_statistics():
    phases = {"forward": lambda: None, "backward": lambda: None}
    case = Case("c", "C", [Alternative("a", lambda: Timed(phases, least=0))], ["a"], "both")
    found = measure(case, rounds=1)["alternatives"]["a"]
    total = found["values"]["forward"][0] + found["values"]["backward"][0]
    assert found["summary"]["both"]["median"] == total
    assert set(found["values"]) == {"forward", "backward"}


# --- what is timed ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bn", "conv", "dbn-g4", "loop-g4", "newton-g4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "last"), [((4, 8, 3, 3), 0), ((4, 8, 3, 3), 1), ((16, 8), 0)])
def test_layers_run_in_every_format(name, dtype, shape, last):
    sampler = layer(name, shape, dtype, bool(last))
    assert set(sampler()) == {"forward", "backward"}
    assert sampler.info["calls"] >= 2
    sampler.check()


@pytest.mark.parametrize(("name", "whitening"), [("EighLoop", "zca"), ("NewtonSchulz", "newton")])
@pytest.mark.parametrize("shape", [(6, 8, 5, 5), (6, 12, 3, 4)])
def test_baselines_compute_what_whitenorm_does(name, whitening, shape):
    channels = shape[1]
    ours = DecorrelatedBatchNorm2d(channels, group_size=4, whitening=whitening).double()
    theirs = getattr(baselines(), name)(channels, 4).double()
    with torch.no_grad():
        for module in (ours, theirs):
            module.weight.copy_(torch.linspace(0.5, 2, channels))
            module.bias.copy_(torch.linspace(-1, 1, channels))
    x = (torch.randn(shape, dtype=torch.float64).cumsum(1) + 3).requires_grad_()
    g = torch.randn(shape, dtype=torch.float64)
    expected, found = ours(x), theirs(x)
    assert_close(found, expected)
    assert_close(
        torch.autograd.grad(found, [x, *theirs.parameters()], g),
        torch.autograd.grad(expected, [x, *ours.parameters()], g),
    )
    assert_close(theirs.running_mean.flatten(), ours.running_mean)
    assert_close(theirs.running_whitening, ours.running_whitening)
    assert_close(theirs.eval()(x), ours.eval()(x))


def test_the_parts_of_a_layer_are_less_than_the_layer(records):
    record = json.loads(records["parts"].read_text())
    layers, steps = (
        [line.split("|")[1:-1] for line in tables(record)[name].splitlines()[2:]]
        for name in ("parts", "parts-steps")
    )
    calls = [case for case in record["cases"] if case["info"]["mode"] == "calls"]
    assert len(layers) + len(steps) + len(calls) == len(record["cases"])
    assert len(steps) == len([case for case in record["cases"] if "bare" in case["alternatives"]])
    for row in layers:
        theirs, ours, passes, eigenvalues, rest, ratio, least = map(float, row[2:])
        assert passes + eigenvalues + rest == pytest.approx(ours, rel=0.02)
        assert ratio == pytest.approx(ours / theirs, rel=0.02)
        assert least == pytest.approx((passes + eigenvalues) / theirs, rel=0.02, abs=0.01)


def test_small_layers_are_shown_alone_and_after_others(records):
    record = json.loads(records["parts"].read_text())
    rows = [line.split(" | ") for line in tables(record)["parts-calls"].splitlines()[2:]]
    cases = [case for case in record["cases"] if case["info"]["mode"] == "calls"]
    assert len(rows) == 2 * len(cases) > 0
    for theirs, ours in zip(rows[::2], rows[1::2], strict=True):
        assert float(theirs[2]) < float(ours[2])  # operations
        assert float(theirs[3]) < float(ours[3])  # milliseconds


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", [(64, 8), (6, 8, 5, 5), (6, 8, 1, 2)])
def test_the_bound_does_the_work_and_normalizes_nothing(shape, last):
    x, g = torch.randn(shape), torch.randn(shape)
    if last and len(shape) == 4:
        x = x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    y = BareLayer(8, group_size=4)(x)
    assert_close(y, x / x.std())
    assert_close(torch.autograd.grad(y, x, g)[0], g / x.std())
    with pytest.raises(ValueError, match="10 channels aren't groups of 4"):
        BareLayer(10, group_size=4)


def test_a_network_is_laid_bare_of_all_its_whitening():
    options = {"model_options": {"depth": 8}, "everywhere": 16}
    whitened, *_ = Network("resnet", "bn", 2, (3, 32, 32), **options).build()
    step = TrainingStep(Network("resnet", "bn", 2, (3, 32, 32), **options, bare=True))
    counts = [
        sum(isinstance(module, kind) for module in network.modules())
        for network, kind in ((whitened, DecorrelatedBatchNorm2d), (step.network, BareLayer))
    ]
    assert counts[0] == counts[1] == 7
    assert not any(
        isinstance(module, DecorrelatedBatchNorm2d) for module in step.network.modules()
    )
    step()
    step.check()


def test_a_training_step_updates_and_notices_when_it_went_astray():
    network = Network("mlp", "dbn", 32, (16,), 4, {"hidden": (8,)}, {"group_size": 4})
    step = TrainingStep(network)
    before = [p.clone() for p in step.network.parameters()]
    step()
    step.check()
    assert all((p != q).any() for p, q in zip(step.network.parameters(), before, strict=True))
    step.loss = math.nan
    with pytest.raises(RuntimeError, match="loss became nan"):
        step.check()


@pytest.mark.parametrize("name", networks(quick=True))
def test_every_network_trains_with_every_normalization(name):
    _, choices = networks(quick=True)[name]
    assert len(choices) > 2
    for network in choices.values():
        step = TrainingStep(network)
        step()
        step.check()


def test_a_network_can_be_rebuilt_from_json():
    network = Network("resnet", "bn", 2, (3, 32, 32), model_options={"depth": 8}, everywhere=16)
    again = Network(**json.loads(json.dumps(network.settings())))
    (model, x, y), (other, *rest) = network.build(), again.build()
    assert_close([x, y], rest)
    assert_close(dict(model.state_dict()), dict(other.state_dict()))
    kinds = {type(m).__name__ for m in model.modules()}
    assert "DecorrelatedBatchNorm2d" in kinds
    assert "BatchNorm2d" not in kinds


def test_inference_folds_every_normalization():
    network = Network("resnet", "dbn", 2, (3, 32, 32), model_options={"depth": 8})
    sampler = inference(network, folded=True)
    assert sampler.info["kept"] == 0
    assert sampler.info["folded"] == 7
    assert "folded" not in inference(network).info


# --- suites -------------------------------------------------------------------------------------


def test_the_bars_are_those_to_be_met():
    cases = SUITES["bars"].cases(False)
    bars = [bar for case in cases for bar in case.bars]
    limits = sorted({(bar.quantity, bar.at_most) for bar in bars})
    assert limits == [
        ("allocated", 1.05),
        ("both", 0.25),
        ("both", 1.5),
        ("both", 1.8),
        ("inference", 1.01),
        ("step", 1.02),
        ("step", 1.04),
        ("step", 1.05),
        ("step", 1.12),
        ("step", 1.4),
        ("step", 1.6),
    ]
    for case in cases:
        names = {alternative.name for alternative in case.alternatives}
        for bar in case.bars:
            assert {bar.alternative, bar.reference, *bar.beside} <= names
            assert bar.reference in case.references
    vgg = {bar.alternative: bar for bar in cases[0].bars}
    papers = {"dbn-g8": "4.32", "dbn-g16": "2.85", "dbn-g64": "1.82", "dbn-g512": "6.13"}
    assert {name: bar.paper for name, bar in vgg.items()} == papers
    assert cases[0].info["batch"] == 128


@pytest.mark.parametrize("suite", SUITES)
def test_names_are_unique(suite):
    for quick in (False, True):
        cases = SUITES[suite].cases(quick)
        assert len({case.name for case in cases}) == len(cases)
        for case in cases:
            names = [alternative.name for alternative in case.alternatives]
            assert len(set(names)) == len(names)


@pytest.mark.parametrize("suite", TIMED)
def test_a_record_holds_values_summaries_ratios_and_its_environment(records, suite):
    record = json.loads(records[suite].read_text())
    assert record["suite"] == suite
    assert record["quick"] is True
    assert record["only"] == TIMED[suite]
    assert records[suite].stem == f"{suite}-quick{'-partial' if TIMED[suite] else ''}"
    assert {"cpu", "cores", "threads", "torch", "revision", "date"} <= set(record["environment"])
    assert record["environment"]["threads"] == 1
    assert len(record["load"]) == len(record["calibrations"]) == 2
    assert [case["name"] for case in record["cases"]] == [
        case.name for case in SUITES[suite].cases(True) if (TIMED[suite] or "") in case.name
    ]
    for case in record["cases"]:
        assert set(case["watch"]) == {"seconds", "others", "stolen"}
        for name, alternative in case["alternatives"].items():
            for values in alternative["values"].values():
                assert len(values) == case["rounds"] == 1
                assert min(values) > 0
            assert case["main"] in alternative["summary"]
            assert set(alternative["ratios"]) == set(case["references"]) - {name}


@pytest.mark.parametrize("kind", ["train", "layer", "infer"])
def test_bars_run_and_are_judged(tmp_path, kind):
    lines = []
    path = run_bench("bars", 1, tmp_path, 1, lines.append, quick=True, only=kind)
    assert path.name == "bars-quick-partial.json"
    record = json.loads(path.read_text())
    cases = [case for case in SUITES["bars"].cases(True) if kind in case.name]
    expected = [bar for case in cases for bar in case.bars]
    table = tables(record)["bars"]
    assert f"of {len(expected)} bars are met" in table
    assert table.count("| met |") + table.count("| **not met** |") == len(expected)
    for number, case in enumerate(cases, start=1):
        assert any(line.startswith(f"{number}/{len(cases)} {case.name} (") for line in lines)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators can't be told")
def test_freed_memory_can_be_kept():
    """In a process of its own, for it can't be taken back."""
    program = """
from pathlib import Path
import torch
from whitenorm.lab.bench.machine import keep_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

assert keep_memory()
before = resident()
torch.ones(2**25)
assert resident() - before > 2**25 * 4 / 65536
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_memory_is_measured_in_a_process_of_its_own(tmp_path):
    record = json.loads(run_bench("memory", 1, tmp_path, 1, quick=True, only="mlp").read_text())
    (case,) = record["cases"]
    weights = 4 * (1024 * 32 + 32 * 32 + 32 * 68)
    for alternative in case["alternatives"].values():
        # At the peak all gradients are there, and little else in so small a network.
        assert weights < alternative["values"]["allocated"][0] < 3 * weights
        assert alternative["values"]["resident"][0] > 0


def test_a_failed_process_says_why():
    with pytest.raises(RuntimeError, match="unknown model 'nothing'"):
        PeakMemory(Network("nothing", "bn", 2, (4,)))()


def test_unknown_suites_and_cases_are_named(tmp_path):
    with pytest.raises(BenchError, match="unknown suite 'speed'; there are bars, layer"):
        run_bench("speed", out=tmp_path)
    with pytest.raises(BenchError, match=r"no case .* 'nothing' .* 'growth with batch'"):
        run_bench("scaling", out=tmp_path, quick=True, only="nothing")
    with pytest.raises(BenchError, match="positive"):
        run_bench("scaling", 0, tmp_path)


def test_a_record_says_what_tuned_memory_and_threads(monkeypatch, tmp_path):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "123")
    path = run_bench("bars", 1, tmp_path, 1, quick=True, only="layer")
    assert (
        json.loads(path.read_text())["environment"]["variables"]["MALLOC_TRIM_THRESHOLD_"] == "123"
    )
    assert "`MALLOC_TRIM_THRESHOLD_=123`" in render(path, tmp_path)[0].read_text()


def test_threads_are_set_for_the_run_alone(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        path = run_bench("scaling", 1, tmp_path, 1, quick=True, only="samples")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert json.loads(path.read_text())["environment"]["threads"] == 1


# --- the machine --------------------------------------------------------------------------------

QUIET = {"seconds": 1.0, "others": 0.01, "stolen": 0.0}
STEADY = {"median": 1e-3, "spread": 0.02}


@pytest.mark.parametrize(
    ("watch", "calibrations", "load", "words"),
    [
        (QUIET | {"others": 0.9}, [STEADY, STEADY], 0.0, "other processes used"),
        (QUIET | {"stolen": 0.5}, [STEADY, STEADY], 0.0, "the host took"),
        (QUIET | {"others": None}, [STEADY, STEADY], 2.0, "load average was 2.00"),
        (QUIET, [STEADY | {"spread": 0.5}, STEADY], 0.0, "varied by 50% before"),
        (QUIET, [STEADY, STEADY | {"median": 2e-3}], 0.0, "changed its speed by +100%"),
    ],
)
def test_a_busy_machine_is_noticed(watch, calibrations, load, words):
    (reason,) = disturbances({"case": watch}, calibrations, [load, load])
    assert words in reason


def test_an_idle_machine_is_not_suspected_of_its_own_load():
    assert disturbances({"case": QUIET}, [STEADY, STEADY], [2.0, 2.0]) == []


def test_own_work_is_not_counted_as_that_of_others(monkeypatch):
    clock, busy, own = iter([0.0, 10.0]), iter([(5.0, 0.0), (13.0, 1.0)]), iter([1.0, 7.0])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(machine, "_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(machine.os, "times", lambda: (next(own), 0.0, 0.0, 0.0, 0.0))
    watch = machine.Watch()
    assert watch.stop() == pytest.approx({"seconds": 10.0, "others": 0.2, "stolen": 0.1})


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system doesn't tell")
def test_the_system_tells_how_busy_it_is():
    first = machine._busy_seconds()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    second = machine._busy_seconds()
    assert second[0] - first[0] >= 0.2
    assert second[1] >= first[1] >= 0


def test_the_bound_follows_the_largest_part():
    shape = [64, 64, 32, 32]
    size = 4 * math.prod(shape)
    flat = [[1e3, 1e9], [1e9, 1e9]]
    rates = {"copy": flat, "fresh": flat, "gemm": 1e12, "call": 1e-6, "products": [[16, 1e8]]}
    rates["eigh"] = [[1, 1e-6], [64, 1e-3]]
    small = bound(shape, 1, 4, 10, rates)
    assert small["by"] == "memory"
    assert small["bound"] == pytest.approx(8 * size / 1e9)
    fresh = bound(shape, 1, 4, 10, rates | {"fresh": [[1e3, 1e8], [1e9, 1e8]]})
    assert fresh["by"] == "fresh"
    assert fresh["bound"] == pytest.approx(4 * size / 1e9 + 4 * size / 1e8)
    large = bound(shape, 64, 4, 10, rates | {"gemm": 1e9})
    assert large["by"] == "arithmetic"
    assert large["bound"] == pytest.approx(10 * 64 * math.prod(shape) / 1e9 + 1e-3)
    assert bound([8, 16], 16, 4, 500, rates)["by"] == "calls"


# --- pages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("suite", TIMED)
def test_tables_and_figures_come_from_the_record_alone(records, tmp_path, suite):
    first = {path.name: path.read_bytes() for path in render(records[suite], tmp_path / "a")}
    second = {path.name: path.read_bytes() for path in render(records[suite], tmp_path / "b")}
    assert first == second
    page = first[f"{records[suite].stem}.md"].decode()
    assert "Sizes were shrunk" in page
    assert all(name in page for name in first if name.endswith(".svg"))


def publishable(path, folder):
    """A copy of a quick record that claims to be a whole one."""
    record = json.loads(path.read_text()) | {"quick": False, "only": None}
    copy = folder / f"{record['suite']}.json"
    copy.write_text(json.dumps(record))
    return copy


def test_the_page_is_filled_again_and_again(records, tmp_path):
    page = tmp_path / "docs" / "performance.md"
    page.parent.mkdir()
    text = (ROOT / "docs" / "performance.md").read_text()
    page.write_text(text)
    copies = [publishable(records[suite], tmp_path) for suite in TIMED]
    replaced = fill(page, copies, tmp_path / "figures")
    once = page.read_text()
    assert {"layer", "network-training", "scaling-figure"} <= set(replaced)
    assert "](../figures/layer-figure.svg)" in once
    assert (tmp_path / "figures" / "layer-figure.svg").exists()
    assert "| [32, 16, 4, 4] |" in once
    fill(page, copies, tmp_path / "figures")
    assert page.read_text() == once
    outside = [block.split("<!-- bench")[0] for block in text.split("<!-- end -->")]
    assert outside == [block.split("<!-- bench")[0] for block in once.split("<!-- end -->")]


def test_quick_records_are_not_published(records, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("")
    with pytest.raises(BenchError, match="not for publication"):
        fill(page, [records["layer"]], tmp_path)


def test_a_page_without_a_place_for_a_block_is_refused(records, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- bench: scaling -->\n<!-- end -->\n")
    with pytest.raises(BenchError, match="no block for scaling-figure, scaling-where"):
        fill(page, [publishable(records["scaling"], tmp_path)], tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 0}'])
def test_files_that_are_no_records_are_refused(tmp_path, text):
    path = tmp_path / "bars.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=r"bars\.json"):
        render(path, tmp_path)


def test_the_command_measures_and_renders(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location(
        "benchmarks_main", ROOT / "benchmarks" / "__main__.py"
    )
    command = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(command)
    quick = ["--suite", "scaling", "--quick", "--only", "samples", "--rounds", "1"]
    assert command.main([*quick, "--threads", "1", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "scaling-quick-partial.json").exists()
    assert "growth with samples" in capsys.readouterr().out
    assert command.main(["--render", "--out", str(tmp_path)]) == 1
    assert "holds no records" in capsys.readouterr().err
    assert command.main([]) == 2


def test_a_bar_is_met_up_to_its_value():
    bar = Bar("what", "b", "a", "step", 1.5)
    case = scripted_case([], a=[1.0] * 3, b=[1.5] * 3)
    record = {"suite": "bars", "cases": [measure(case, 2) | {"bars": [vars(bar)]}]}
    record["cases"][0]["watch"] = QUIET
    record |= {"load": [0, 0], "disturbances": [], "notes": [], "quick": False, "only": None}
    record["environment"] = dict.fromkeys(("date", "revision", "threads", "cores", "cpu"), "x")
    record["environment"]["torch"] = "2"
    assert "1 of 1 bars are met" in tables(record)["bars"]
    record["cases"][0]["bars"] = [vars(bar) | {"at_most": 1.499}]
    assert "0 of 1 bars are met" in tables(record)["bars"]
