r"""The command that trains a single configuration."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from whitenorm.lab.cli.terminal import (
    CheckpointEvery,
    Data,
    Device,
    Out,
    Stopped,
    console,
    find_device,
)
from whitenorm.lab.execution.single import train_one
from whitenorm.lab.records.run import Run
from whitenorm.lab.training.replicas import number_of_replicas
from whitenorm.lab.training.train import Interrupted

__all__ = ["train"]


def train(
    dataset: Annotated[str, typer.Option(help="`digits`, `mnist`, `cifar10`, ...")] = "digits",
    model: Annotated[str, typer.Option(help="`mlp`, `vgg-a`, `resnet`, `wrn`, ...")] = "mlp",
    method: Annotated[str, typer.Option(help="`plain`, `bn`, `ln`, `nnn`, `dbn`, ...")] = "dbn",
    optimiser: Annotated[str, typer.Option(help="`sgd` or `adam`.")] = "sgd",
    lr: Annotated[float, typer.Option(help="Learning rate at the start.")] = 0.1,
    momentum: Annotated[float | None, typer.Option(help="Of SGD.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of all parameters.")] = None,
    schedule: Annotated[
        str,
        typer.Option(
            help="`constant`; `halve` every `schedule.interval` iterations; `steps`, times "
            "`schedule.factor` at the epochs `schedule.at`."
        ),
    ] = "constant",
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the data; 10.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Or: how many iterations.")] = None,
    batch_size: Annotated[int, typer.Option(min=0, help="0 for all examples at once.")] = 128,
    seed: Annotated[int, typer.Option(help="Of everything that is random.")] = 0,
    precision: Annotated[
        str, typer.Option(help="`float32`, `float64`, or `bf16` (autocast).")
    ] = "float32",
    accumulate: Annotated[
        int, typer.Option(min=1, help="Parts that a batch is cut into, to save memory.")
    ] = 1,
    channels_last: Annotated[
        bool, typer.Option("--channels-last", help="Channels last in memory, for pictures.")
    ] = False,
    sync: Annotated[
        bool, typer.Option("--sync", help="DBN layers whiten with the statistics of all replicas.")
    ] = False,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Any other setting of a run; VALUE is JSON or text.",
        ),
    ] = None,
    out: Out = Path("runs/train"),
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from this run's checkpoint in the output folder."),
    ] = False,
    checkpoint_every: CheckpointEvery = 60.0,
    data: Data = None,
    device: Device = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="By default one a core.")] = None,
    tensorboard: Annotated[
        bool, typer.Option(help="Log to DIR/tensorboard too, for `tensorboard --logdir`.")
    ] = True,
) -> None:
    """Train one configuration, with checkpoints, and write its record.

    Ctrl-C stops after the iteration at hand and keeps a checkpoint; `--resume` goes on from it, to
    the same result as if nothing had happened.

    Started by torchrun, its processes train together: a batch is shared out among them, and each
    normalizes with its own part, as the paper's GPUs did, unless `--sync` is given.

    Examples:

    - `whitenorm train --method dbn --set method.group_size=8 --epochs 20`

    - `whitenorm train --dataset mnist --set model.hidden=[100,100] --lr 0.5 --precision bf16`

    - `whitenorm train --dataset cifar10 --set dataset.augment=crop+flip --model resnet
      --set model.depth=20 --momentum 0.9 --weight-decay 1e-4 --schedule steps
      --set schedule.at=[80,120] --epochs 160 --out runs/res20`

    - `torchrun --nproc-per-node 2 -m whitenorm.lab train --dataset mnist --method dbn --sync`
    """
    given = {"momentum": momentum, "weight_decay": weight_decay}
    chosen = Run(
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
    main = os.environ.get("RANK", "0") == "0"
    try:
        train_one(
            console if main else Console(quiet=True),
            chosen,
            out,
            resume=resume,
            checkpoint_every=checkpoint_every,
            data=data,
            device=find_device(device),
            threads=threads,
            tensorboard=tensorboard,
        )
    except Interrupted as interruption:
        raise Stopped(f"{interruption}, and the same command with --resume goes on") from None


def _setting(text: str) -> tuple[str, Any]:
    path, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set takes PATH=VALUE, e.g. model.depth=20, got {text!r}")
    try:
        return path, json.loads(value)
    except json.JSONDecodeError:
        return path, value
