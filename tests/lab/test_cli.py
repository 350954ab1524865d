"""The command line: what it says, how it ends, and that it goes on where it was."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny_study import comparables, tiny_study
from typer.testing import CliRunner

import whitenorm
from whitenorm.lab.cli import app, terminal
from whitenorm.lab.data.datasets import DATASETS
from whitenorm.lab.networks.build import MODELS
from whitenorm.lab.networks.methods import METHODS
from whitenorm.lab.records.record import RecordFile
from whitenorm.lab.studies import catalogue as studies

SOURCE = Path(__file__).parents[2] / "src"
COMMANDS = ["demo", "studies", "run", "report", "train", "data", "bench", "pages"]


@pytest.fixture(autouse=True)
def _wide_lines(monkeypatch):
    for console in (terminal.console, terminal.errors):
        monkeypatch.setattr(console, "_width", 200)


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(studies.STUDIES, "tiny", tiny_study(epochs=1))


@contextmanager
def started(*arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "whitenorm.lab", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell may have started us in the background, where Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


# --- what it says -------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Examples?:.*whitenorm {command}", plain(result.output), re.S)


def test_the_commands_are_listed():
    output = plain(invoke("--help").output)
    for command in COMMANDS:
        assert re.search(rf"^\W*{command} ", output, re.M)


def test_studies_are_listed_with_their_runs_and_data(tmp_path):
    output = plain(invoke("studies", "--data", tmp_path).output)
    for name, study in studies.STUDIES.items():
        assert f"{name:10}{study.reference}: {study.title}" in output
        for scale, plan in study.scales.items():
            assert re.search(rf"{scale} +{plan.count()} runs +{re.escape(plan.duration)}", output)
    assert "mnist (missing)" in output
    assert "digits (missing)" not in output


def test_data_is_listed_with_where_it_is_looked_for(tmp_path):
    output = plain(invoke("data", "--data", tmp_path).output)
    assert "digits            embedded" in output
    assert f"looked for at {tmp_path / 'mnist'}" in output
    assert "whitenorm data --fetch mnist" in output
    assert "whitenorm data --fetch yaleb" not in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "fig9"], "unknown study 'fig9'; there are fig2,"),
        (["run", "fig3", "--scale", "tiny"], "has no scale 'tiny'; it has small, paper"),
        (["run", "demo", "--executor", "slurm"], "unknown executor 'slurm'; there are in-process"),
        (["run", "demo", "--executor", "in-process", "-j", "2"], "does one run at a time"),
        (["run", "fig6", "--panel", "elu"], "unknown panel 'elu'; there are basic, Adam, ELU"),
        (["run", "demo", "--device", "tpu9"], "unknown device 'tpu9'"),
        (["report", "nowhere"], "no records in nowhere"),
        (["train", "--model", "mpl"], "unknown model 'mpl'; there are mlp"),
        (["train", "--method", "dbm"], "unknown method 'dbm'; there are plain"),
        (["train", "--set", "depth"], "--set takes PATH=VALUE, e.g. model.depth=20, got 'depth'"),
        (["train", "--epochs", "1", "--iterations", "1"], "give either epochs or iterations"),
        (["train", "--schedule", "halve"], "schedule 'halve' needs interval: give schedule.inter"),
        (["data", "--fetch", "pie"], "may not be fetched"),
        (["pages", "nowhere"], "no page beside nowhere, or in docs there, has a line"),
    ],
)
def test_errors_say_what_was_given_and_what_there_is(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHITENORM_DATA", str(tmp_path))
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert message in plain(result.output).replace("\n", " ")


# --- what it does -------------------------------------------------------------------------------


def test_a_study_is_run_reported_and_not_run_again(tiny, tmp_path):
    result = invoke("run", "tiny", "--out", tmp_path, "--seeds", 2, "--jobs", 1)
    assert result.exit_code == 0, result.output
    output = plain(result.output)
    assert "A tiny study (no figure, scale small): 9 runs, 1 at a time, in-process" in output
    assert re.search(r"digits · BN · lr 0.5 · seed 0  training loss [\d.]+, test error", output)
    assert re.search(r"BN +│ lr 0.5 │ 2 │ +[\d.]+ ± [\d.]+", output)
    assert f"Report: {tmp_path / 'report.html'}" in output
    again = plain(invoke("run", "tiny", "--out", tmp_path, "--seeds", 2, "--jobs", 1).output)
    assert "grid search: 6 of 6 runs are recorded already" in again
    assert "seed 0  training loss" not in again
    (tmp_path / "report.html").unlink()
    assert invoke("report", tmp_path).exit_code == 0
    assert (tmp_path / "report.html").exists()


def test_a_dry_run_records_nothing(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("run", "tiny", "--dry-run")
    assert result.exit_code == 0, result.output
    assert re.search(r"digits │ DBN +│ +1,242 │ +[\d.]+ │", plain(result.output))
    assert list(tmp_path.iterdir()) == []


def test_a_panel_can_be_run_alone(tmp_path):
    result = invoke("run", "demo", "--panel", "illustration", "--out", tmp_path, "--jobs", 1)
    assert result.exit_code == 0, result.output
    records = RecordFile.of(tmp_path, "demo", "small").read().values()
    assert {record.run.task for record in records} == {"illustration"}
    assert f"{len(records)} runs, 1 at a time" in plain(result.output)
    dry = plain(invoke("run", "fig6", "--panel", "ELU", "--panel", "Adam", "--dry-run").output)
    assert [line.split()[1] for line in dry.splitlines() if "│ BN" in line] == ["Adam", "ELU"]


def test_a_failed_study_ends_with_an_error(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("whitenorm.lab.execution.jobs.load", lambda *_: 1 / 0)
    result = invoke("run", "tiny", "--out", tmp_path, "--jobs", 1)
    assert result.exit_code == 1
    assert "6 runs failed; their traces are in" in plain(result.output)
    assert len(list((tmp_path / "failures").iterdir())) == 6


def test_one_configuration_is_trained_and_reported(tmp_path):
    common = ["train", "--epochs", 2, "--out", tmp_path, "--threads", 1]
    first = invoke(*common, "--method", "dbn", "--set", "method.group_size=4")
    assert first.exit_code == 0, first.output
    assert "finished: " in plain(first.output)
    second = invoke(*common, "--method", "bn", "--lr", 0.5, "--precision", "bf16")
    assert second.exit_code == 0, second.output
    assert (
        "Trained already"
        in invoke(*common, "--method", "dbn", "--set", "method.group_size=4").output
    )
    records = RecordFile.of(tmp_path, "train", "single").read()
    assert sorted(r.run.method["name"] for r in records.values()) == ["bn", "dbn"]
    assert invoke("report", tmp_path).exit_code == 0
    page = (tmp_path / "report.html").read_text()
    assert "mlp, dbn, lr 0.1" in page
    assert "mlp, bn, lr 0.5" in page


def test_ctrl_c_keeps_what_a_study_has(tmp_path):
    file = RecordFile.of(tmp_path, "demo", "small")
    deadline = time.monotonic() + 300
    with started("run", "demo", "--out", tmp_path, "--jobs", 2) as process:
        while len(file.read()) < 3:
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    kept = file.read()
    assert len(kept) >= 3
    assert f"Stopped: {len(kept)} runs are recorded in {file.path}" in output
    assert "the same command goes on from there" in output
    assert "Traceback" not in output
    for line in file.path.read_text().splitlines():
        json.loads(line)


def test_ctrl_c_keeps_a_checkpoint_of_a_training(tmp_path):
    options = ["train", "--method", "dbn", "--epochs", 40, "--seed", 5, "--threads", 1]
    with started(*options, "--out", tmp_path / "stopped") as process:
        for line in process.stdout:
            if line.startswith("epoch"):
                break
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert re.search(r"Stopped: stopped after \d+ of 440 updates; the state is in", output)
    (checkpoint,) = (tmp_path / "stopped" / "checkpoints").iterdir()
    assert checkpoint.stat().st_size > 1000
    refused = invoke(*options, "--out", tmp_path / "stopped")
    assert refused.exit_code == 1
    assert "give --resume to go on from it" in plain(refused.output).replace("\n", " ")
    resumed = invoke(*options, "--out", tmp_path / "stopped", "--resume")
    assert resumed.exit_code == 0, resumed.output
    straight = invoke(*options, "--out", tmp_path / "straight")
    assert straight.exit_code == 0, straight.output
    ends = [
        RecordFile.of(tmp_path / name, "train", "single").read()
        for name in ("stopped", "straight")
    ]
    assert comparables(ends[0]) == comparables(ends[1])


# --- the first hour -----------------------------------------------------------------------------


def test_the_version_is_said():
    result = invoke("--version")
    assert (result.exit_code, result.output.strip()) == (0, whitenorm.__version__)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "tiny", "--jobs", "1"],
        ["demo"],
        ["train", "--epochs", "1"],
        ["bench", "--suite", "memory", "--quick"],
    ],
)
def test_an_output_folder_that_is_a_file_is_one_sentence(tiny, arguments, tmp_path):
    (tmp_path / "taken").write_text("")
    result = invoke(*arguments, "--out", tmp_path / "taken")
    assert result.exit_code == 1
    output = plain(result.output)
    assert "Traceback" not in output
    last = output.strip().splitlines()[-1]
    assert re.fullmatch(rf"error: .*{tmp_path / 'taken'}.*; give another --out", last)


def test_a_full_disk_is_one_sentence(tiny, tmp_path, monkeypatch):
    def full(self, record):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RecordFile, "append", full)
    result = invoke("run", "tiny", "--jobs", "1", "--out", tmp_path)
    assert result.exit_code == 1
    last = plain(result.output).strip().splitlines()[-1]
    assert last == "error: can't read or write: No space left on device; give another --out"


def test_without_the_laboratory_the_command_says_how_to_install_it(tmp_path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('no typer', name='typer')")
    result = subprocess.run(
        [sys.executable, "-m", "whitenorm.lab", "--version"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "typer isn't installed: pip install 'whitenorm[lab]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_unreadable_data_is_one_error_before_anything_runs(tmp_path):
    folder = tmp_path / "data" / "yaleb"
    folder.mkdir(parents=True)
    (folder / "YaleB_32x32.mat").write_bytes(b"no MATLAB file")
    result = invoke("run", "fig4", "--data", tmp_path / "data", "--out", tmp_path / "out")
    assert result.exit_code == 1
    last = plain(result.output).strip().splitlines()[-1]
    assert last.startswith(f"error: {folder / 'YaleB_32x32.mat'}: ")
    assert not (tmp_path / "out").exists()
    output = plain(invoke("data", "--data", tmp_path / "data").output)
    assert re.search(r"yaleb +unreadable", output)


def test_a_study_whose_data_is_there_is_suggested(tmp_path):
    output = plain(invoke("studies", "--data", tmp_path).output)
    name = re.search(r"Run one: whitenorm run (\w+) --scale small", output)[1]
    assert set(studies.STUDIES[name].scale("small").datasets()) <= {"digits", "none"}


def test_help_has_whole_lists():
    output = plain(invoke("train", "--help").output)
    assert "..." not in output
    for name in (*DATASETS, *MODELS, *METHODS):
        assert name in output


def test_every_epoch_of_a_short_training_is_said(tmp_path):
    result = invoke("train", "--epochs", "7", "--out", tmp_path, "--no-tensorboard")
    assert re.findall(r"^epoch (\d+)", plain(result.output), re.M) == list("1234567")


def test_what_goes_into_a_pipe_is_not_wrapped():
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    result = subprocess.run(
        [sys.executable, "-m", "whitenorm.lab", "studies"],
        env={**environment, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    for name, study in studies.STUDIES.items():
        assert f"{name:10}{study.reference}: {study.title}\n" in result.stdout


@pytest.mark.parametrize("width", [40, 60])
def test_narrow_terminals_keep_names_whole(tiny, tmp_path, monkeypatch, width):
    monkeypatch.setattr(terminal.console, "_width", width)
    output = plain(invoke("run", "tiny", "--jobs", "1", "--out", tmp_path).output)
    for name in ("plain", "BN", "DBN"):
        assert re.search(rf"│ {name} +│", output)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("jobs", [1, 2])
def test_warnings_of_runs_are_said_once_and_by_the_command(jobs, tmp_path, monkeypatch):
    study = tiny_study(epochs=1, batch_size=8)  # too few for groups of 16
    monkeypatch.setitem(studies.STUDIES, "tiny", study)
    result = invoke("run", "tiny", "--jobs", jobs, "--out", tmp_path)
    assert result.exit_code == 0
    assert plain(result.output).count("cannot show how 16 channels vary") == 1
    assert "warning of digits · DBN" in plain(result.output)
