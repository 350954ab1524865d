r"""Checkpoints of a training, replaced atomically: the old one is valid until the new is whole."""

import contextlib
import io
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from whitenorm.lab.records.run import Run

FORMAT = 2


class CheckpointError(Exception):
    """A checkpoint can't be written or used; the message says which and why."""


@dataclass
class Checkpoint:
    """Where a training keeps its state, and how often."""

    path: Path  # its folder is made
    every: float = 60.0  # seconds between two writings
    final: bool = False  # whether to write the state at the end too
    _written: float = field(default_factory=time.monotonic, init=False, repr=False)

    def due(self) -> bool:
        """Whether the last writing was long enough ago."""
        return time.monotonic() - self._written >= self.every

    def save(self, run: Run, state: Mapping[str, Any]) -> None:
        """Writes the state of a run in place of the last one."""
        buffer = io.BytesIO()
        torch.save({"format": FORMAT, "run": run.settings(), **state}, buffer)
        path = self.path
        temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(buffer.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise CheckpointError(
                f"can't write checkpoint {path}: {error.strerror}; the checkpoint before it, if "
                "any, is still valid. Make room and start again to go on from it."
            ) from error
        self._written = time.monotonic()

    def load(self, run: Run, device: torch.device) -> dict[str, Any] | None:
        """The last state of this very run; None if nothing was written yet."""
        path = self.path
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
            if state["format"] != FORMAT:
                raise ValueError(f"format {state['format']}, this version reads {FORMAT}")
            there, here = state["run"], run.settings()
        except Exception as error:  # torch.load fails in many ways on a broken file
            raise CheckpointError(
                f"{path} isn't a whole checkpoint of this version ({error}); remove it to start "
                "anew"
            ) from error
        if differences := [
            f"its {key} is {there.get(key, 'the default')}, not {here.get(key, 'the default')}"
            for key in {**there, **here}
            if there.get(key) != here.get(key)
        ]:
            raise CheckpointError(
                f"{path} is of another run: {'; '.join(differences)}. Give the same settings, "
                "another --out, or remove the file to start anew."
            )
        return state

    def remove(self) -> None:
        """Deletes the file, once the run's record is safe, and what killed writers left of it."""
        path = self.path
        path.unlink(missing_ok=True)
        for part in path.parent.glob(f".{path.name}.*.part"):
            part.unlink(missing_ok=True)
