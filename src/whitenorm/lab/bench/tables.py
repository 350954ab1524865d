r"""Records as Markdown: every number in a page comes from here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from whitenorm.lab.bench.markdown import (
    cell,
    label,
    milliseconds,
    ratio_of,
    size_text,
    with_quartiles,
)
from whitenorm.lab.bench.roofline import bound
from whitenorm.lab.reporting.markdown import Row, table

__all__ = ["bars_of", "curve", "layer_bounds", "main_layers", "slope", "tables"]

ITEMSIZE = {"float32": 4, "bfloat16": 2}


def tables(record: dict[str, Any]) -> dict[str, str]:
    """The Markdown blocks of a record by name."""
    suite = record["suite"]
    blocks = {f"{suite}-where": _where(record)}
    blocks.update((name, make(record)) for name, make in _BLOCKS[suite].items())
    return blocks


def _where(record: dict[str, Any]) -> str:
    """When, on what and how undisturbed."""
    env, cases = record["environment"], record["cases"]
    minutes = sum(case["watch"]["seconds"] for case in cases) / 60
    rounds = [case["rounds"] for case in cases]
    count = f"{min(rounds)} to {max(rounds)}" if min(rounds) < max(rounds) else f"{rounds[0]}"
    text = (
        f"{env['date'][:10]}, revision {env['revision'] or 'unknown'}: {env['threads']} threads "
        f"on {env['cores']} cores of {env['cpu']}, torch {env['torch']}; {count} rounds, "
        f"{minutes:.1f} minutes; load average {record['load'][0]:.2f} before, "
        f"{record['load'][1]:.2f} after."
    )
    text += " Freed memory was kept." if env.get("memory_kept") else ""
    tuned = [f"`{name}={value}`" for name, value in env.get("variables", {}).items()]
    text += f" With {', '.join(tuned)}." if tuned else ""
    warnings = [f"The machine was not idle: {reason}." for reason in record["disturbances"]]
    if record["quick"]:
        warnings.insert(0, "Sizes were shrunk to try the harness: these numbers mean nothing.")
    if record["only"] is not None:
        warnings.insert(0, f"Only the cases with {record['only']!r} in their name were measured.")
    warnings += [f"Measured {note}." for note in record["notes"]]
    return "\n".join([text, *(f"\n> **{warning}**" for warning in warnings)])


# --- the bars -----------------------------------------------------------------------------------


def bars_of(record: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each bar with the case that it is about."""
    for case in record["cases"]:
        for bar in case["bars"]:
            yield bar, case


def _bars(record: dict[str, Any]) -> str:
    rows, met = [], 0
    for bar, case in bars_of(record):
        ratio = ratio_of(case, bar["alternative"], bar["reference"], bar["quantity"])
        beside = [
            f"{cell(case, name, bar['reference'], bar['quantity'])} ({label(name)})"
            for name in bar["beside"]
            if name in case["alternatives"]
        ]
        holds = ratio["median"] <= bar["at_most"]
        met += holds
        rows.append(
            (
                bar["what"],
                bar["paper"],
                ", ".join(beside) or "-",
                with_quartiles(ratio, 3),
                f"{ratio['of_medians']:.3f}",
                f"<= {bar['at_most']:.2f}",
                "met" if holds else "**not met**",
            )
        )
    head = ("what", "paper", "usual ports, same run", "ratio (quartiles)", "of medians", "bar", "")
    return f"{met} of {len(rows)} bars are met.\n\n{table(head, rows)}"


# --- layers -------------------------------------------------------------------------------------


def main_layers(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The cases in the usual format, float32 and contiguous."""
    usual = {"dtype": "float32", "layout": "contiguous"}
    return [case for case in record["cases"] if usual.items() <= case["info"].items()]


def _layer(record: dict[str, Any]) -> str:
    """Forward and backward against BN, by group size."""
    cases = main_layers(record)
    sizes = sorted({k for case in cases for k in _groups(case)} & {1, 4, 8, 16, 32, 64})
    rows = []
    for case in cases:
        groups = _groups(case)
        cells = [cell(case, f"dbn-g{k}", "bn") for k in sizes]
        full = f"{cell(case, f'dbn-g{groups[-1]}', 'bn')} (G{groups[-1]})"
        start = (case["info"]["network"], case["title"], milliseconds(case, "bn", "both"))
        rows.append((*start, *cells, full))
    return table(("network", "input", "BN ms", *(f"G{k}" for k in sizes), "largest"), rows)


def _groups(case: dict[str, Any]) -> list[int]:
    infos = [alternative["info"] for alternative in case["alternatives"].values()]
    return [info["group"] for info in infos if info["kind"] == "dbn"]


def _phases(record: dict[str, Any]) -> str:
    """Each pass by itself, and everything else that one might use, at group 16."""
    rows = []
    for case in main_layers(record):
        for k in dict.fromkeys(k for k in _groups(case) if k in (16, _groups(case)[-1])):
            ours = f"dbn-g{k}"
            rows.append(
                (
                    case["title"],
                    f"G{k}",
                    *(milliseconds(case, ours, q) for q in ("forward", "backward")),
                    *(cell(case, ours, "bn", q) for q in ("forward", "backward", "both")),
                    cell(case, f"loop-g{k}", "bn"),
                    cell(case, f"newton-g{k}", "bn"),
                    cell(case, ours, "conv"),
                )
            )
    head = ("input", "group", "forward ms", "backward ms", "forward / BN", "backward / BN")
    more = ("both / BN", "loop over eigh / BN", "Newton-Schulz / BN", "both / convolution")
    return table((*head, *more), rows)


def _formats(record: dict[str, Any]) -> str:
    """The same in other formats, each against BN in that format."""
    others = [case for case in record["cases"] if case not in main_layers(record)]
    rows = [
        (
            case["title"],
            case["info"]["dtype"],
            case["info"]["layout"],
            milliseconds(case, "bn", "both"),
            cell(case, "dbn-g16", "bn"),
            cell(case, "dbn-g64", "bn"),
            cell(case, "loop-g16", "bn"),
            cell(case, "newton-g16", "bn"),
            cell(case, "dbn-g16", "conv"),
        )
        for case in others
    ]
    head = ("input", "dtype", "layout", "BN ms", "G16 / BN", "G64 / BN")
    more = ("loop over eigh G16 / BN", "Newton-Schulz G16 / BN", "G16 / convolution")
    return table((*head, *more), rows)


def layer_bounds(record: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """(case, alternative, bound) of BN and every DBN, with what was measured as "seconds"."""
    for case in main_layers(record):
        for name, alternative in case["alternatives"].items():
            info = alternative["info"]
            if info["kind"] in ("bn", "dbn"):
                itemsize = ITEMSIZE[case["info"]["dtype"]]
                limits = bound(
                    case["info"]["shape"], info["group"], itemsize, info["calls"], record["rates"]
                )
                seconds = alternative["summary"]["both"]["median"]
                yield case, name, {**limits, "seconds": seconds, "group": info["group"]}


def _bounds(record: dict[str, Any]) -> str:
    names = ("memory", "fresh", "arithmetic", "calls", "eigh")
    rows = []
    for case, name, limits in layer_bounds(record):
        if name == "bn" or limits["group"] in (1, 16, 64, _groups(case)[-1]):
            parts = (limits[key] for key in names)
            rows.append(
                (
                    case["title"],
                    label(name),
                    *(f"{1e3 * part:.3g}" for part in parts),
                    f"{1e3 * limits['bound']:.3g}",
                    f"{1e3 * limits['seconds']:.3g}",
                    f"{limits['seconds'] / limits['bound']:.1f}",
                    limits["by"],
                )
            )
    head = ("input", "layer", *names, "bound", "measured", "measured / bound", "largest part")
    return table(head, rows)


def _machine(record: dict[str, Any]) -> str:
    rates = record["rates"]
    rows = [
        (f"copy of {size_text(size)}{where}", f"{rate / 1e9:.1f} GB/s")
        for key, where in (("copy", ""), ("fresh", " into fresh memory"))
        for size, rate in rates[key]
    ]
    rows.append(("large matrix product, float32", f"{rates['gemm'] / 1e9:.0f} Gflop/s"))
    rows += [
        (f"products of {k}x{k} matrices with long ones", f"{rate / 1e9:.0f} Gflop/s")
        for k, rate in rates["products"]
    ]
    rows += [(f"eigh, {k}x{k}, float64", f"{1e6 * s:.3g} µs") for k, s in rates["eigh"]]
    rows.append(("call of an operation", f"{1e6 * rates['call']:.2g} µs"))
    return table(("what", "rate"), rows)


def _parts(record: dict[str, Any]) -> str:
    """The parts of a layer, and what is left of its time."""
    rows = []
    for case in record["cases"]:
        if case["info"]["mode"] != "layer":
            continue
        (against,) = case["references"]
        names = (case["info"]["ours"], "passes", "eigenvalues", against)
        seconds = [case["alternatives"][name]["summary"]["both"]["median"] for name in names]
        ours, passes, eigenvalues, theirs = seconds
        times = (theirs, ours, passes, eigenvalues, ours - passes - eigenvalues)
        shares = (ours / theirs, (passes + eigenvalues) / theirs)
        rows.append(
            (
                case["title"],
                label(against),
                *(f"{1e3 * t:.3g}" for t in times),
                *(f"{share:.2f}" for share in shares),
            )
        )
    head = ("input", "against", "its ms", "DBN ms", "passes", "eigenvalues", "the rest")
    return table((*head, "ratio", "without the rest"), rows)


def _calls(record: dict[str, Any]) -> str:
    """Layers on small inputs, alone and with other layers' passes in between."""
    rows = []
    for case in record["cases"]:
        if case["info"]["mode"] == "calls":
            for name in ("bn", "dbn-g16"):
                calls = case["alternatives"][name]["info"]["calls"]
                times = (milliseconds(case, which, "both") for which in (name, f"{name}, cold"))
                rows.append((case["title"], label(name), f"{calls}", *times))
    return table(("input", "layer", "operations", "alone, ms", "after other layers, ms"), rows)


def _bound_steps(record: dict[str, Any]) -> str:
    """Training steps, and the same with only the passes and the eigenvalues in each layer."""
    rows = []
    for case in record["cases"]:
        if case["info"]["mode"] == "training":
            ours = case["info"]["ours"]
            ratios = (ratio_of(case, name, "bn", "step") for name in (ours, "bare"))
            rows.append(
                (
                    f"{case['title']}, batch {case['info']['batch']}",
                    label(ours),
                    milliseconds(case, "bn", "step"),
                    *(with_quartiles(ratio, 3) for ratio in ratios),
                )
            )
    return table(("network", "normalization", "BN ms", "DBN / BN", "without the rest"), rows)


# --- networks -----------------------------------------------------------------------------------


def _networks(mode: str, quantity: str) -> Callable[[dict[str, Any]], str]:
    def make(record: dict[str, Any]) -> str:
        rows: list[Row] = []
        for case in record["cases"]:
            if case["info"]["mode"] != mode:
                continue
            for name, alternative in case["alternatives"].items():
                folded = name.endswith(", folded")
                base = "bn, folded" if folded else "bn"
                twin = base.replace("bn", "bn-extra-conv")
                rows.append(
                    (
                        f"{case['title']}, batch {case['info']['batch']}",
                        label(name),
                        milliseconds(case, name, quantity),
                        cell(case, name, base, quantity, quartiles=True),
                        cell(case, name, twin, quantity, quartiles=True),
                        " / ".join(f"{r:.2f}" for r in alternative["info"]["paper"].values())
                        or "-",
                    )
                )
        head = ("network", "normalization", "ms", "against BN", "against BN with extra 3x3")
        return table((*head, "paper"), rows)

    return make


def _memory(record: dict[str, Any]) -> str:
    rows = []
    for case in record["cases"]:
        for name, alternative in case["alternatives"].items():
            summary = alternative["summary"]
            rows.append(
                (
                    f"{case['title']}, batch {case['info']['batch']}",
                    label(name),
                    size_text(summary["allocated"]["median"]),
                    cell(case, name, "bn", "allocated", digits=3),
                    size_text(summary["resident"]["median"]),
                    cell(case, name, "bn", "resident"),
                )
            )
    head = ("network", "normalization", "allocated", "against BN", "resident", "against BN")
    return table(head, rows)


# --- growth -------------------------------------------------------------------------------------


def slope(points: Iterable[tuple[float, float]]) -> float:
    """The exponent p of y = c x^p that fits best in logarithms.

    Example:
        >>> round(slope([(1, 3.0), (2, 12.0), (4, 48.0)]), 6)
        2.0
    """
    logs = [(math.log(x), math.log(y)) for x, y in points]
    x0 = sum(x for x, _ in logs) / len(logs)
    y0 = sum(y for _, y in logs) / len(logs)
    return sum((x - x0) * (y - y0) for x, y in logs) / sum((x - x0) ** 2 for x, _ in logs)


def _scaling(record: dict[str, Any]) -> str:
    rows = []
    for case in record["cases"]:
        ours, theirs = (curve(case, kind) for kind in ("dbn", "bn"))
        half = len(ours) // 2
        span = f"{ours[0][0]} to {ours[-1][0]}"
        fits = (slope(ours), slope(ours[half:]), slope(theirs), slope(theirs[half:]))
        rows.append((case["title"], span, "1", *(f"{fit:.2f}" for fit in fits)))
    head = ("growth with", "from", "O(m d k)", "DBN", "DBN, upper half", "BN", "BN, upper half")
    return table(head, rows)


def curve(case: dict[str, Any], kind: str) -> list[tuple[float, float]]:
    """(x, seconds of forward and backward) of BN or DBN in a case of the scaling suite."""
    return [
        (alternative["info"]["x"], alternative["summary"]["both"]["median"])
        for alternative in case["alternatives"].values()
        if alternative["info"]["kind"] == kind
    ]


_BLOCKS: dict[str, dict[str, Callable[[dict[str, Any]], str]]] = {
    "bars": {"bars": _bars},
    "layer": {
        "layer": _layer,
        "layer-phases": _phases,
        "layer-formats": _formats,
        "layer-bounds": _bounds,
        "layer-machine": _machine,
    },
    "parts": {"parts": _parts, "parts-calls": _calls, "parts-steps": _bound_steps},
    "network": {
        "network-training": _networks("training", "step"),
        "network-inference": _networks("inference", "inference"),
    },
    "scaling": {"scaling": _scaling},
    "memory": {"memory": _memory},
}
