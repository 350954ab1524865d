r"""TensorBoard's log of a training, beside its record: the points of its curve as scalars."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from whitenorm.lab.records.run import Run
from whitenorm.lab.training.trainer import Progress

__all__ = ["EventLog"]


class EventLog:
    """Writes each new point of a curve, as ``tensorboard --logdir DIR`` reads it.

    Args:
        folder: Of the logs; a run has a folder of its own below.
        run: What is trained.
    """

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder = Path(folder) / run.id
        self._run = run
        self._writer: Any = None
        self._written = 0.0

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    def watch(self, progress: Progress) -> None:
        """After each update: logs the point of the curve if it is a new one."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # slow to load

            # What was logged after the checkpoint that this goes on from is to come again.
            self._writer = SummaryWriter(str(self.folder), purge_step=progress.iteration)
            settings = "\n".join(f"    {k}: {v}" for k, v in self._run.settings().items())
            self._writer.add_text("settings", settings, progress.iteration)
        step = progress.point.get("iteration") or 0.0
        if step > self._written and step == progress.iteration:
            self._written = step
            for name, value in progress.point.items():
                if value is not None and name != "iteration":
                    self._writer.add_scalar(name.replace("_", "/", 1), value, int(step))
            self._writer.flush()
