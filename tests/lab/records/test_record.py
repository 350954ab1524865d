"""Records survive what happens to the process that writes them."""

import json
import math

import pytest
from tiny_study import BASE

from whitenorm.lab.records.environment import environment
from whitenorm.lab.records.record import Record, RecordError, RecordFile, find_records


def record(seed=0, **values):
    history = {"iteration": [1, 2], "train_loss": [2.5, 0.1 + 0.2]}
    return Record(BASE.changed({"seed": seed}), "tiny", "small", history=history, **values)


def test_a_record_comes_back_from_its_line():
    written = record(final={"train_loss": 0.25}, reason="why", environment=environment())
    read = Record.from_json(written.to_json(), 7)
    assert read.run == written.run
    assert read.column("train_loss") == [2.5, 0.3]  # 8 digits are kept
    assert (read.final, read.reason, read.line) == ({"train_loss": 0.25}, "why", 7)
    assert {"torch", "whitenorm", "cpu", "threads"} <= set(read.environment)


def test_what_is_no_number_is_null():
    probes = {"fisher": {"at_smallest": [math.inf, 3.0]}}
    line = record(final={"train_loss": math.nan}, probes=probes).to_json()
    assert json.loads(line, parse_constant=pytest.fail)["final"] == {"train_loss": None}
    assert Record.from_json(line).column("fisher.at_smallest") == [None, 3.0]


def test_records_are_read_as_they_were_appended(tmp_path):
    with RecordFile.of(tmp_path, "tiny", "small") as file:
        for seed in range(3):
            file.append(record(seed))
    found = list(find_records(tmp_path))
    assert [(path, broken) for path, _, broken in found] == [(file.path, [])]
    assert [r.run.seed for r in found[0][1].values()] == [0, 1, 2]
    assert [r.line for r in found[0][1].values()] == [1, 2, 3]


def test_a_half_written_last_line_is_survived(tmp_path):
    """Whatever byte the writer was killed at, what came before is read, and writing goes on."""
    whole = "".join(record(seed).to_json() + "\n" for seed in range(2)).encode()
    start = whole.index(b"\n") + 1
    path = tmp_path / "records" / "tiny-small.jsonl"
    path.parent.mkdir()
    for cut in [start + 1, start + 40, (start + len(whole)) // 2, len(whole) - 3, len(whole) - 2]:
        path.write_bytes(whole[:cut])
        with RecordFile(path) as file:
            assert file.broken == [2]
            for seed in (1, 2):
                file.append(record(seed))
        assert [r.run.seed for r in RecordFile(path).read().values()] == [0, 1, 2]
    path.write_bytes(whole[:-1])  # only the end of the line is missing
    with RecordFile(path) as file:
        assert file.broken == []
        file.append(record(2))
    assert [r.run.seed for r in RecordFile(path).read().values()] == [0, 1, 2]


def test_a_record_is_written_once(tmp_path):
    with RecordFile.of(tmp_path, "tiny", "small") as file:
        file.append(record())
        with pytest.raises(RecordError, match=f"holds record {record().id} already"):
            file.append(record())
    with RecordFile(file.path) as again, pytest.raises(RecordError, match="already"):
        again.append(record())
    assert file.path.read_bytes().count(b"\n") == 1


def test_a_file_has_one_writer_at_a_time(tmp_path):
    file = RecordFile.of(tmp_path, "tiny", "small")
    with file, pytest.raises(RecordError, match="is being written by another process"):
        RecordFile(file.path).__enter__()
    with RecordFile(file.path):
        pass


def test_an_edited_record_is_found_out(tmp_path):
    path = tmp_path / "records" / "tiny-small.jsonl"
    path.parent.mkdir()
    path.write_text(record().to_json().replace('"epochs":4', '"epochs":5') + "\n")
    with pytest.raises(RecordError, match=r"tiny-small.jsonl, line 1: .* it was edited"):
        RecordFile(path).read()
    path.write_text(record().to_json().replace('"format":1', '"format":9') + "\n")
    with pytest.raises(RecordError, match="reads records of format 1"):
        RecordFile(path).read()
