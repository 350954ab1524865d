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

__all__ = ["Record", "RecordError", "RecordFile", "find_records"]

FORMAT = 1
FOLDER = "records"


class RecordError(Exception):
    """A file of records can't be used; the message says which and what to do."""


@dataclass(frozen=True)
class Record:
    """The outcome of one run.

    Args:
        run: Its settings.
        study: Name of the study that it was made for.
        scale: Name of the study's scale, such as "small" or "paper".
        status: "finished", or "diverged" if the loss stopped being a number.
        final: Last values, by metric: train_loss, train_error, test_error, seconds and so on.
        history: The curve: a list for each column, None where there is no number.
        probes: The columns of each probe.
        arrays: Other results of the run's task, as nested lists.
        reason: Why it ended, if it didn't simply finish.
        environment: Versions, processor, threads.
        started: When, UTC.
        line: Number of its line, if it was read from a file.
    """

    run: Run
    study: str
    scale: str
    status: str = "finished"
    final: Mapping[str, float | None] = field(default_factory=dict)
    history: Mapping[str, list[float | None]] = field(default_factory=dict)
    probes: Mapping[str, Mapping[str, list[float | None]]] = field(default_factory=dict)
    arrays: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""
    line: int | None = field(default=None, compare=False)

    @property
    def id(self) -> str:
        """The identity of its run."""
        return self.run.id

    def column(self, name: str) -> list[float | None]:
        """A column of the curve, or of a probe as ``"fisher.condition"``; empty if not there."""
        probe, dot, column = name.partition(".")
        if dot:
            return list(self.probes.get(probe, {}).get(column, []))
        return list(self.history.get(name, []))

    def to_json(self) -> str:
        """As one line, without the line break."""
        values = {
            "format": FORMAT,
            "id": self.id,
            "study": self.study,
            "scale": self.scale,
            "status": self.status,
            "reason": self.reason,
            "run": self.run.settings(),
            "final": _compact(self.final),
            "history": _compact(self.history),
            "probes": _compact(self.probes),
            "arrays": _compact(self.arrays),
            "environment": self.environment,
            "started": self.started,
        }
        return json.dumps(values, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str, line: int | None = None) -> Record:
        """The record that a line holds."""
        values = json.loads(text)
        if values.pop("format", None) != FORMAT:
            raise RecordError(
                f"this version reads records of format {FORMAT}; update whitenorm or run again"
            )
        run, identity = Run.from_settings(values.pop("run")), values.pop("id")
        if run.id != identity:
            raise RecordError(f"the settings of record {identity} hash to {run.id}: it was edited")
        return cls(run=run, line=line, **values)


class RecordFile:
    """The records of one study at one scale.

    Args:
        path: Of the ``.jsonl`` file, which need not exist.

    Attributes:
        broken: Numbers of the incomplete lines that the last :meth:`read` found.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.broken: list[int] = []
        self._ids: set[str] = set()

    @classmethod
    def of(cls, out: Path, study: str, scale: str) -> RecordFile:
        """The file of a study below an output folder."""
        return cls(Path(out) / FOLDER / f"{study}-{scale}.jsonl")

    def read(self) -> dict[str, Record]:
        """All complete records by identity; sets ``broken`` to the numbers of other lines."""
        records: dict[str, Record] = {}
        self.broken = []
        if self.path.exists():
            lines = self.path.read_bytes().split(b"\n")
            for number, line in enumerate(lines, start=1):
                if line.strip():
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
        except filelock.Timeout as error:
            raise RecordError(
                f"{self.path} is being written by another process; wait for it, end it, or give "
                "another --out"
            ) from error
        try:
            self.read()
        except BaseException:
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
