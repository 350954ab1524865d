r"""A notice board: each run in progress says how far it is, whichever process it runs in."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from whitenorm.lab.training.trainer import Progress

__all__ = ["Board"]


class Board:
    """A folder with a small file for each run in progress.

    On a machine that doesn't share the folder nothing is posted, and nothing breaks.

    Args:
        folder: Made by whoever reads it.
        every: Seconds between two notices of a run.
    """

    def __init__(self, folder: Path, every: float = 0.5) -> None:
        self.folder = Path(folder)
        self.every = every
        self._posted = 0.0

    @classmethod
    def of(cls, out: Path, study: str, scale: str) -> Board:
        """The board of a study below an output folder, which other studies may use too."""
        return cls(Path(out) / f".{study}-{scale}.progress")

    def open(self) -> None:
        """Makes the folder, or takes down what a killed process left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Removes the folder."""
        with contextlib.suppress(OSError):
            self.open()
            self.folder.rmdir()

    def post(self, name: str, progress: Progress) -> None:
        """Says how far a run is, unless it just has."""
        now = time.monotonic()
        if now - self._posted < self.every:
            return
        self._posted = now
        notice = {
            "iteration": progress.iteration,
            "total": progress.total,
            "point": dict(progress.point),
            "time": time.time(),
        }
        temporary = self.folder / f".{name}.{os.getpid()}"
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(notice))
            os.replace(temporary, self.folder / name)

    def take_down(self, name: str) -> None:
        """Removes the notice of a run that has ended."""
        with contextlib.suppress(OSError):
            (self.folder / name).unlink(missing_ok=True)

    def read(self) -> dict[str, dict[str, Any]]:
        """All notices."""
        notices = {}
        with contextlib.suppress(OSError):
            for path in sorted(self.folder.iterdir()):
                if not path.name.startswith("."):
                    with contextlib.suppress(OSError, json.JSONDecodeError):
                        notices[path.name] = json.loads(path.read_text())
        return notices
