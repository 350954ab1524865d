"""The measurements on a GPU, as far as they can be run without one."""

import json
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from whitenorm.gpu import gate
from whitenorm.lab.bench import BenchError, device, device_suite, fill_page, render, run_suite
from whitenorm.lab.cli import app


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Of small cases, on the CPU in place of a GPU, where the Triton path can't be used."""
    return run_suite(device_suite("cpu", quick=True), tmp_path_factory.mktemp("gpu"), rounds=1)


def test_a_record_compares_layers_and_networks_and_says_what_is_missing(record):
    found = json.loads(record.read_text())
    assert [case["info"]["mode"] for case in found["cases"]] == ["layer", "layer", "training"]
    for case in found["cases"]:
        assert case["alternatives"]["dbn-g16"]["ratios"]["bn"]["step"]["median"] > 0
        assert "triton-g16" not in case["alternatives"]
    assert found["without_triton"] == "the device is cpu, not cuda"
    text = render(record)[0].read_text()
    assert "| [16, 32, 8, 8] bfloat16, channels last |" in text
    assert "Without the Triton path: the device is cpu, not cuda." in text


def test_a_page_is_filled_from_it(record, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- bench: gpu -->\n\nNot measured yet.\n\n<!-- end -->\n")
    assert fill_page(page, record.parent) == ["gpu"]
    assert "Not measured yet" not in page.read_text()
    assert "Res-8, batch 8" in page.read_text()


def test_launches_memory_and_captures_are_shown_where_they_are_known(record, tmp_path):
    found = json.loads(record.read_text())
    found["captures"] = {"bn": True, "dbn-g16": False}
    found["cases"][0]["facts"] = {"bn": {"launches": 4, "memory": 2**21}}
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(found))
    text = render(path)[0].read_text()
    assert "| 4 / - / - | 2 / - / - |" in text
    assert "Captured in a CUDA graph: BN: yes, DBN G16: no." in text


def test_values_are_checked_before_anything_is_measured(monkeypatch):
    monkeypatch.setitem(device.TOLERANCE, "float32", 0.0)
    with pytest.raises(BenchError, match=r"dbn-g16 is off by .* Please report"):
        device._layer(device.SMALL[0], "dbn-g16", torch.device("cpu"))


def test_labels_of_a_profile_are_no_launches():
    found = [("DeviceType.CUDA", False), ("DeviceType.CUDA", True), ("DeviceType.CPU", False)]
    events = [SimpleNamespace(device_type=kind, is_user_annotation=u) for kind, u in found]
    assert device._launches(events) == 1


def test_a_gpu_with_little_memory_leaves_out_what_is_too_large(tmp_path):
    def fails():
        raise torch.OutOfMemoryError("CUDA out of memory")

    whole = device_suite("cpu", quick=True)
    small, *_ = whole.cases
    large = replace(small, name="large", alternatives={"bn": fails, "dbn-g16": fails})
    suite, said = replace(whole, cases=[large, small]), []
    path = run_suite(suite, tmp_path, rounds=1, progress=said.append)
    assert [case["name"] for case in json.loads(path.read_text())["cases"]] == [small.name]
    assert "left out: large needs more memory than there is" in said


def fails():
    with device._path_of("triton-g16"):
        assert gate.is_enabled()
        warnings.warn("the Triton path failed.", stacklevel=1)


def test_a_warning_of_the_triton_path_ends_the_measurement():
    with pytest.raises(BenchError, match=r"the Triton path failed\. Please report"):
        fails()
    assert not gate.is_enabled()


def test_a_machine_without_a_gpu_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for options, words in (
        (["--device", "cuda"], "has no CUDA device; use a machine with one"),
        (["--device", "cuda", "--suite", "layer"], "--suite is for the CPU"),
        (["--device", "mps"], "--device must be 'cpu' or 'cuda', got 'mps'"),
    ):
        done = CliRunner().invoke(app, ["bench", *options, "--out", str(tmp_path)])
        assert done.exit_code == 1
        assert words in done.output.replace("\n", " ")
