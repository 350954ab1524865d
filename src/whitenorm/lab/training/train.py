r"""Trains one run to its end: deterministic given its seed, and resumable from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import torch

from whitenorm.lab.data.datasets import Dataset
from whitenorm.lab.data.images import Pictures
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.checkpoints import Checkpoint
from whitenorm.lab.training.outcome import Outcome, Progress
from whitenorm.lab.training.replicas import Replicas
from whitenorm.lab.training.trainer import Trainer

__all__ = ["Interrupted", "train"]


class Interrupted(Exception):
    """A training was asked to stop, and its state is saved."""


def train(
    run: Run,
    dataset: Dataset | Pictures,
    *,
    device: torch.device | str = "cpu",
    checkpoint: Checkpoint | None = None,
    watch: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    replicas: Replicas | None = None,
) -> Outcome:
    """Trains a run to its end, from its checkpoint if there is one.

    The same run gives the same outcome, times apart, whether it was interrupted or not, on the
    same machine with the same number of threads.

    Args:
        run: What to train.
        dataset: On what; as :func:`whitenorm.lab.data.for_run.load` prepares it.
        device: Where.
        checkpoint: Where to keep the state, if anywhere.
        watch: Called after every iteration.
        stop: Asked after every iteration; if it says True, the state is saved and
            :class:`Interrupted` is raised.
        replicas: The processes that train together, each of which calls this; the main one alone
            reads and writes the checkpoint.
    """
    device, replicas = torch.device(device), replicas or Replicas()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        trainer = Trainer(run, dataset, device, replicas)
        if checkpoint is not None:
            load = checkpoint.load(run, torch.device("cpu")) if replicas.main else None
            if (state := replicas.told(load)) is not None:
                trainer.load_state_dict(state)

        def save() -> None:
            state = trainer.state_dict()
            if checkpoint is not None and replicas.main:
                checkpoint.save(run, state)

        for point in trainer.iterations():
            if watch is not None:
                done = trainer.iteration
                watch(Progress(done, trainer.total, done * trainer.batches.batch_size, point))
            if not trainer.may_ask():
                continue
            due = checkpoint is not None and checkpoint.due()
            answers = replicas.gathered((stop is not None and stop(), due))
            interrupted, due = any(asked for asked, _ in answers), answers[0][1]
            if checkpoint is not None and (interrupted or due):
                save()
            if interrupted:
                saved = f"; the state is in {checkpoint.path}" if checkpoint is not None else ""
                raise Interrupted(
                    f"stopped after {trainer.iteration} of {trainer.total} updates{saved}"
                )
        if checkpoint is not None and checkpoint.final:
            save()
        return trainer.outcome()
