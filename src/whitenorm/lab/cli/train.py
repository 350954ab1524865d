r"""The command that trains a single configuration."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from typer import Option

from whitenorm.lab.cli import terminal
from whitenorm.lab.data.datasets import DATASETS
from whitenorm.lab.execution.jobs import Job
from whitenorm.lab.execution.single import train_one
from whitenorm.lab.networks.build import MODELS
from whitenorm.lab.networks.methods import METHODS
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.optim import OPTIMISERS
from whitenorm.lab.training.replicas import number_of_replicas
from whitenorm.lab.training.trainer import Interrupted

SCHEDULES = (
    "`constant`; `halve` every `schedule.interval` updates; `steps`, times `schedule.factor` at "
    "the epochs `schedule.at`; `one-cycle`, up until the epoch `schedule.peak` and down until "
    "`schedule.epochs`."
)


def _names(table: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in table) + "."


SYNC = "DBN layers whiten with the statistics of all replicas."
RESUME = "Go on from this run's checkpoint in the output folder."
LOG = "Log to DIR/tensorboard too, for `tensorboard --logdir`."


def train(
    dataset: Annotated[str, Option(help=_names(DATASETS))] = "digits",
    model: Annotated[str, Option(help=_names(MODELS))] = "mlp",
    method: Annotated[str, Option(help=_names(METHODS))] = "dbn",
    optimiser: Annotated[str, Option(help=_names(OPTIMISERS))] = "sgd",
    lr: Annotated[float, Option(help="Learning rate at the start.")] = 0.1,
    momentum: Annotated[float | None, Option(help="Of SGD; by default 0.")] = None,
    weight_decay: Annotated[float | None, Option(help="Of all parameters; by default 0.")] = None,
    schedule: Annotated[str, Option(help=SCHEDULES)] = "constant",
    epochs: Annotated[
        int | None, Option(min=1, help="Passes over the data; by default 10.")
    ] = None,
    iterations: Annotated[int | None, Option(min=1, help="Updates, in place of epochs.")] = None,
    batch_size: Annotated[int, Option(min=0, help="0 for all examples at once.")] = 128,
    seed: Annotated[int, Option(help="Of everything that is random.")] = 0,
    precision: Annotated[
        str, Option(help="`float32`, `float64` or `bf16` (autocast).")
    ] = "float32",
    accumulate: Annotated[int, Option(min=1, help="Parts of a batch, to save memory.")] = 1,
    channels_last: Annotated[
        bool, Option("--channels-last", help="Channels last in memory.")
    ] = False,
    sync: Annotated[bool, Option("--sync", help=SYNC)] = False,
    options: Annotated[
        list[str] | None,
        Option("--set", metavar="PATH=VALUE", help="Any other setting of a run, as JSON or text."),
    ] = None,
    out: terminal.Out = Path("runs/train"),
    resume: Annotated[bool, Option("--resume", help=RESUME)] = False,
    checkpoint_every: terminal.CheckpointEvery = 60.0,
    data: terminal.Data = None,
    device: terminal.Device = "auto",
    threads: Annotated[
        int | None, Option(min=1, help="Threads of torch; by default one a core.")
    ] = None,
    tensorboard: Annotated[bool, Option(help=LOG)] = True,
) -> None:
    """Train one configuration, with checkpoints, and write its record.

    Ctrl-C stops after the update at hand and keeps a checkpoint; `--resume` goes on from it, to
    the same result as if nothing had happened.

    Started by torchrun, its processes train together: a batch is shared out among them, and each
    normalizes with its own part, as the paper's GPUs did, unless `--sync` is given.

    Examples:

    - `whitenorm train --method dbn --set method.group_size=8 --epochs 20`

    - `whitenorm train --dataset cifar10 --set dataset.augment=crop+flip --model resnet
      --set model.depth=20 --momentum 0.9 --weight-decay 1e-4 --schedule steps
      --set schedule.at=[80,120] --epochs 160 --out runs/res20`

    - `torchrun --nproc-per-node 2 -m whitenorm.lab train --dataset mnist --method dbn --sync`
    """
    given = {"momentum": momentum, "weight_decay": weight_decay}
    run = Run(
        {"name": dataset},
        {"name": model},
        {"name": method},
        {"name": optimiser, "lr": lr, **{k: v for k, v in given.items() if v is not None}},
        {"name": schedule},
        epochs=10 if epochs is None and iterations is None else epochs,
        iterations=iterations,
        batch_size=batch_size or None,
        precision=precision,
        accumulate=accumulate,
        channels_last=channels_last,
        replicas=number_of_replicas(),
        synchronized=sync,
        seed=seed,
    ).changed(dict(map(_setting, options or [])))
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # replicas on this machine
    threads = threads or max((os.cpu_count() or 1) // sharing, 1)
    device = terminal.find_device(device)
    job = Job(run, "train", "single", None, data, device, threads, checkpoint_every)
    console = terminal.console if os.environ.get("RANK", "0") == "0" else Console(quiet=True)
    try:
        train_one(console, job, out, resume=resume, tensorboard=tensorboard)
    except Interrupted as interruption:
        hint = "and the same command with --resume goes on"
        raise terminal.Stopped(f"{interruption}, {hint}") from None


def _setting(text: str) -> tuple[str, Any]:
    path, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set takes PATH=VALUE, e.g. model.depth=20, got {text!r}")
    try:
        return path, json.loads(value)
    except json.JSONDecodeError:
        return path, value
