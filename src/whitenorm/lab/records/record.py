r"""Records of runs: a line of JSON for each run that ended, a file for each study and scale.

Lines are appended and never changed. One process at a time writes a file, under a lock. A line is
flushed to the disk before the next one begins, so a killed process leaves at most one incomplete
line, which reading skips; the next record begins on a line of its own.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock

from whitenorm.lab.records.run import Run

FORMAT = 1
FOLDER = "records"


class RecordError(Exception):
    """A file of records can't be used; the message says which and what to do."""


@dataclass(frozen=True)
class Record:
    """The outcome of one run."""

    run: Run
    study: str  # that it was made for
    scale: str
    status: str = "finished"  # or "diverged", if the loss stopped being a number
    final: Mapping[str, float | None] = field(default_factory=dict)  # last values, by metric
    history: Mapping[str, list[float | None]] = field(default_factory=dict)  # columns of the curve
    probes: Mapping[str, Mapping[str, list[Any]]] = field(default_factory=dict)
    arrays: Mapping[str, Any] = field(default_factory=dict)  # other results of the run's task
    reason: str | None = None  # why it ended, if it didn't simply finish
    environment: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""  # UTC
    line: int | None = field(default=None, compare=False)  # its number, if read from a file

    @property
    def id(self) -> str:
        """The identity of its run."""
        return self.run.id

    def column(self, name: str) -> list[float | None]:
        """A column of the curve, or of a probe as ``"fisher.condition"``; empty if not there."""
        probe, _, column = name.rpartition(".")
        columns = self.probes.get(probe, {}) if probe else self.history
        return list(columns.get(column, []))

    def to_json(self) -> str:
        """As one line, without the line break."""
        values = _compact({"format": FORMAT, "id": self.id, **vars(self)})
        values["run"] = self.run.settings()
        del values["line"]
        return json.dumps(values, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str, line: int | None = None) -> Record:
        """The record that a line holds."""
        values = json.loads(text)
        if values.pop("format", None) != FORMAT:
            raise RecordError(
                f"this version reads records of format {FORMAT}; update whitenorm or run again"
            )
        run, identity = Run(**values.pop("run")), values.pop("id")
        if run.id != identity:
            raise RecordError(f"the settings of record {identity} hash to {run.id}: it was edited")
        return cls(run=run, line=line, **values)


class RecordFile:
    """The records of one study at one scale; the ``.jsonl`` file need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.broken: list[int] = []  # numbers of the incomplete lines that read() found
        self._ids: set[str] = set()

    @classmethod
    def of(cls, out: Path, study: str, scale: str) -> RecordFile:
        """The file of a study below an output folder."""
        return cls(Path(out) / FOLDER / f"{study}-{scale}.jsonl")

    def read(self) -> dict[str, Record]:
        """All complete records by identity."""
        records: dict[str, Record] = {}
        self.broken = []
        lines = self.path.read_bytes().split(b"\n") if self.path.exists() else []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = Record.from_json(line.decode(), number)
            except (json.JSONDecodeError, UnicodeDecodeError):
                self.broken.append(number)
            except (RecordError, TypeError, KeyError, ValueError) as error:
                raise RecordError(f"{self.path}, line {number}: {error}") from error
            else:
                records.setdefault(record.id, record)
        self._ids = set(records)
        return records

    def __enter__(self) -> RecordFile:
        """Takes the file for this process and reads which records it holds."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Not among the records, which may be copied or committed.
        lock = self.path.parent.parent / f".{self.path.stem}.lock"
        self._lock = filelock.FileLock(lock, blocking=False)
        try:
            self._lock.acquire()
            self.read()
        except filelock.Timeout as error:
            raise RecordError(
                f"{self.path} is being written by another process; wait for it, end it, or give "
                "another --out"
            ) from error
        except Exception:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def append(self, record: Record) -> None:
        """Writes a record to the disk, once."""
        if record.id in self._ids:
            raise RecordError(f"{self.path} holds record {record.id} already")
        data = record.to_json().encode() + b"\n"
        with self.path.open("ab+") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # an incomplete line, of a process that was killed
                    data = b"\n" + data
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._ids.add(record.id)


def find_records(folder: Path) -> Iterator[tuple[Path, dict[str, Record], list[int]]]:
    """All files of records below a folder: path, records, numbers of broken lines."""
    for path in sorted(Path(folder).rglob("*.jsonl")):
        if path.parent.name == FOLDER:
            file = RecordFile(path)
            yield path, file.read(), file.broken


def _compact(value: Any) -> Any:
    """Numbers with 8 digits, enough for any figure; None for what JSON has no number for."""
    if isinstance(value, Mapping):
        return {key: _compact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_compact(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else None
    return value
