r"""What the full-size studies of convolutional networks take: ``whitenorm.lab.reporting.costs``.

Floating-point operations and bytes kept for the backward pass are counted on one update of each
network. Hours are the paper's: its published times (appendix, one GPU, BN) where it has the
network, and else as many operations at the rate that its Res-56 ran at.
"""

from __future__ import annotations

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from whitenorm.lab.bench.paper import TABLES
from whitenorm.lab.networks.build import build_model
from whitenorm.lab.networks.methods import make_method
from whitenorm.lab.randomness import generator
from whitenorm.lab.records.record import environment
from whitenorm.lab.records.run import Run
from whitenorm.lab.reporting.markdown import table
from whitenorm.lab.studies.catalogue import STUDIES
from whitenorm.lab.studies.study import Curve, Scale

__all__ = ["costs_table", "measure_costs"]

EXAMPLES = {"cifar10": 50_000, "cifar100": 50_000, "imagenet": 1_281_167}
CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet": 1000}
NAMES = ("fig6", "fig7", "table1", "table2", "table3")
RATE_OF = "res-56"  # whose published time stands for networks that have none


def measure_costs() -> dict[str, Any]:
    """Operations, memory and runs of each network at scale "paper", with BN."""
    rows = []
    for name in NAMES:
        scale = STUDIES[name].scale("paper")
        for panel in scale.panels:
            for network, curves in groupby(panel.curves, key=lambda curve: _network(curve.run)):
                first, *others = curves
                rows.append(
                    {
                        "study": name,
                        "panel": panel.name,
                        "network": network,
                        "runs": sum(_runs(scale, curve) for curve in (first, *others)),
                        "epochs": first.run.epochs,
                        "batch": first.run.batch_size,
                        "examples": EXAMPLES[first.run.dataset["name"]],
                        **_measure(first.run),
                    }
                )
    return {"environment": environment(), "rows": rows}


def _runs(scale: Scale, curve: Curve) -> int:
    grid = {curve.grid_run(p, scale.selection).id for p in curve.points()} if curve.grid else set()
    point = curve.points()[0]
    return len(grid | {curve.seed_run(point, seed).id for seed in range(scale.seeds)})


def _network(run: Run) -> str:
    model = run.model
    prefix = {"resnet": "res", "imagenet-resnet": "res"}.get(model["name"], model["name"])
    parts = [prefix, *(str(model[key]) for key in ("depth", "widen") if key in model)]
    return "-".join(parts)


def _measure(run: Run, batch: int = 2) -> dict[str, int]:
    """Parameters; operations and kept bytes of an update, an example."""
    side = run.dataset.get("size") or 32
    model = build_model(
        **run.model,
        method=make_method(**run.method),
        num_classes=CLASSES[run.dataset["name"]],
        input_shape=(3, side, side),
        generator=generator(0, "initialisation"),
    )
    own = {p.untyped_storage().data_ptr() for p in [*model.parameters(), *model.buffers()]}
    kept: dict[int, int] = {}

    def keep(t: torch.Tensor) -> torch.Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return t

    x, y = torch.randn(batch, 3, side, side), torch.zeros(batch, dtype=torch.long)
    with (
        FlopCounterMode(display=False) as counter,
        torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t),
    ):
        F.cross_entropy(model(x), y).backward()
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "flops": counter.get_total_flops() // batch,
        "bytes": sum(kept.values()) // batch,
    }


def costs_table(costs: dict[str, Any]) -> str:
    """The costs in Markdown."""
    rate = _rate(costs["rows"])
    rows = []
    for row in costs["rows"]:
        published = _seconds_an_epoch(row)
        operations = row["flops"] * row["examples"]
        seconds = published or operations / rate
        hours = seconds * row["epochs"] / 3600
        memory = row["batch"] * row["bytes"] + 3 * 4 * row["parameters"]
        rows.append(
            (
                row["study"],
                row["panel"],
                row["network"],
                row["runs"],
                row["epochs"],
                f"{row['parameters'] / 1e6:.3g} M",
                f"{row['flops'] / 1e9:.3g} G",
                f"{memory / 2**30:.2g} GiB",
                _hours(hours) + ("" if published else " (by operations)"),
                _hours(hours * row["runs"]),
            )
        )
    head = (
        "study",
        "",
        "network",
        "runs",
        "epochs",
        "parameters",
        "operations an example",
        "memory",
    )
    return table((*head, "GPU hours a run", "all runs"), rows)


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.2g}"


def _seconds_an_epoch(row: dict[str, Any]) -> float | None:
    """As published, for BN on one GPU."""
    network = row["network"]
    if row["study"] == "table3":
        return float(TABLES["DBN_Table4"][network]["bn"][0] * row["examples"] / 32)
    for name in ("DBN_Table1", "DBN_Table2"):
        if network in TABLES[name]:
            return TABLES[name][network]["bn"][0]
    return None


def _rate(rows: list[dict[str, Any]]) -> float:
    """Operations a second of the network whose time is published, in the paper's training."""
    row = next(row for row in rows if row["network"] == RATE_OF)
    return float(row["flops"] * row["examples"] / TABLES["DBN_Table2"][RATE_OF]["bn"][0])


def main(path: str) -> None:
    """Writes the costs to a file, and their table to the terminal."""
    costs = measure_costs()
    Path(path).write_text(json.dumps(costs, indent=1) + "\n", encoding="utf-8")
    print(costs_table(costs))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m whitenorm.lab.reporting.costs FILE.json")
    main(sys.argv[1])
