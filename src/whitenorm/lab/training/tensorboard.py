r"""TensorBoard's log of a training, beside its record: the points of its curve as scalars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whitenorm.lab.records.run import Run
from whitenorm.lab.training.outcome import Progress

__all__ = ["EventLog"]


class EventLog:
    """Writes each new point of a run's curve to a folder of its own below ``folder``."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder = Path(folder) / run.id
        self._run = run
        self._writer: Any = None

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def watch(self, progress: Progress) -> None:
        """After each iteration: logs the point of the curve if it is a new one."""
        iteration, point = progress.iteration, progress.point
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # slow to load

            # Points after the checkpoint that this goes on from come again: drop the old ones.
            self._writer = SummaryWriter(str(self.folder), purge_step=iteration)
            settings = "\n".join(f"    {k}: {v}" for k, v in self._run.settings().items())
            self._writer.add_text("settings", settings, iteration)
        if point.get("iteration") == iteration:
            for name, value in point.items():
                if value is not None and name != "iteration":
                    self._writer.add_scalar(name.replace("_", "/", 1), value, iteration)
            self._writer.flush()
