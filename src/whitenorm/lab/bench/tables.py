r"""Records as Markdown: every measured number on a page comes from here."""

from collections.abc import Iterable
from typing import Any

from whitenorm.lab.bench.ports import PORTS
from whitenorm.lab.bench.suites import NETWORKS
from whitenorm.lab.reporting.markdown import table

Data = dict[str, Any]

MODES = {
    "layer": "forward + backward",
    "training": "training update",
    "inference": "inference",
    "memory": "peak memory of a training update",
}


def for_pages(record: Data) -> dict[str, str]:
    """What pages show of a record, by slot: short tables, and where they were measured."""
    cases, where = record["cases"], _where(record)
    if record["suite"] == "summary":
        networks = [case for case in cases if _mode(case) == "training"]
        slots = {"summary": _summary(cases), "networks": _summary(networks)}
        return {name: f"{text}\n\n{where}" for name, text in slots.items()} | {
            "goals": _goals(cases)
        }
    if record["suite"] == "gpu":
        return {"gpu": f"{on_device(record)}\n\n{where}"}
    return {}


def report(record: Data) -> str:
    """All of a record."""
    cases = record["cases"]
    parts = [f"# {record['title']}", _where(record)]
    if record["suite"] == "summary":
        parts.append(_summary(cases))
    elif record["suite"] == "layer":
        parts.append(_layers(cases))
    elif record["suite"] == "network":
        parts.append(_networks(cases))
    elif record["suite"] == "gpu":
        parts.append(on_device(record))
    if any(case["bars"] for case in cases):
        parts += ["## Goals", _goals(cases)]
    for mode, words in MODES.items():
        some = [case for case in cases if _mode(case) == mode]
        rows = [(case, name) for case in some for name in case["alternatives"]]
        parts += [f"## All measurements: {words}", _everything(rows)] if rows else []
    return "\n\n".join(parts) + "\n"


def _where(record: Data) -> str:
    """When, on what and how undisturbed."""
    env = record["environment"]
    rounds = [case["rounds"] for case in record["cases"]]
    text = (
        f"{env['date'][:10]}, revision {env['revision'] or 'unknown'}: {env['threads']} threads "
        f"on {env['cores']} cores of {env['cpu']}, torch {env['torch']}, "
        f"{' to '.join(map(str, dict.fromkeys((min(rounds), max(rounds)))))} rounds."
    )
    if tuned := [f"`{name}={value}`" for name, value in env["variables"].items()]:
        text += f" With {', '.join(tuned)}."
    if record["quick"]:
        text += " **A quick trial of small cases: these numbers mean nothing.**"
    if record["only"] is not None:
        text += f" **Only the cases with {record['only']!r} in their name were measured.**"
    if reasons := "; ".join(record["disturbances"]):
        text += f" **The machine was not idle: {reasons}.**"
    return text


def _summary(cases: Iterable[Data]) -> str:
    """A training step with each DBN: against BN, beside the ports, and against a layer's floor."""
    rows = []
    for case in cases:
        dbn = [name for name in case["alternatives"] if name.startswith("dbn")]
        for name in dbn if _mode(case) in ("layer", "training") else ():
            what = ("one layer, " if _mode(case) == "layer" else "") + _title(case)
            names = [name, *(name.replace("dbn", port) for port in PORTS)]
            ratios = [_ratio(case, each, "bn") for each in names]
            floor = _ratio(case, name, _floor_of(name))
            rows.append((what, _label(name), _value(case, "bn", case["main"]), *ratios, floor))
    head = ["training step", "with", "BN ms"]
    head += [*(f"{_label(each)} / BN" for each in ("dbn", *PORTS)), "DBN / floor"]
    if all(floor == "-" for *_, floor in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return table(head, rows)


def _layers(cases: Iterable[Data]) -> str:
    """Forward and backward against BN, by group size, and ports and floor at group 16."""
    names = ["dbn-g1", "dbn-g8", "dbn-g16", "dbn-g64", "loop-g16", "newton-g16", "floor-g16"]
    rows = []
    for case in cases:
        largest = [name for name in case["alternatives"] if name.startswith("dbn")][-1]
        ratios = [_ratio(case, name, "bn") for name in names]
        ratios.append(f"{_ratio(case, largest, 'bn')} ({_label(largest).removeprefix('DBN ')})")
        rows.append((_title(case), _value(case, "bn", "both"), *ratios))
    return table(("input", "BN ms", *map(_label, names), "largest DBN"), rows)


def on_device(record: Data) -> str:
    """BN, torch's path and the Triton path on a GPU, with launches and memory."""
    names = ["dbn-g16", "triton-g16"]
    rows = []
    for case in record["cases"]:
        facts = case.get("facts", {})
        counts = [
            " / ".join(str(facts.get(name, {}).get("launches", "-")) for name in ("bn", *names)),
            " / ".join(_mebibytes(facts.get(name, {})) for name in ("bn", *names)),
        ]
        ratios = [_ratio(case, name, "bn", quartiles=True) for name in names]
        rows.append((_title(case), _value(case, "bn", "step"), *ratios, *counts))
    head = ("what", "BN ms", "torch / BN", "Triton / BN", "launches", "peak MiB")
    device = record["device"]
    lines = [
        f"{device['name']}, CUDA {device.get('cuda', '-')}, Triton {record['triton'] or '-'}."
    ]
    if record["without_triton"]:
        lines.append(f"Without the Triton path: {record['without_triton']}.")
    captured = [f"{_label(n)}: {'yes' if ok else 'no'}" for n, ok in record["captures"].items()]
    if captured:
        lines.append(f"Captured in a CUDA graph: {', '.join(captured)}.")
    note = "Launches and memory: BN / torch / Triton."
    return f"{table(head, rows)}\n\n{' '.join([note, *lines])}"


def _mebibytes(facts: Data) -> str:
    return f"{facts['memory'] / 2**20:.0f}" if "memory" in facts else "-"


def _networks(cases: list[Data]) -> str:
    inferred = {case["title"]: case for case in cases if _mode(case) == "inference"}
    rows = []
    for case in cases:
        title = case["title"]
        if _mode(case) != "training" or title not in NETWORKS:  # older records have more
            continue
        inference = inferred.get(title, {"alternatives": {}})  # a partial record may have none
        for name, paper in NETWORKS[title].dbn.items():
            training = _value(case, "bn", "step"), _ratio(case, name, "bn", quartiles=True)
            ratios = (
                _ratio(inference, name, "bn"),
                _ratio(inference, f"{name}, folded", "bn, folded"),
            )
            rows.append((_title(case), _label(name), *training, paper or "-", *ratios))
    head = ("network", "normalization", "BN ms", "training / BN", "paper", "inference / BN")
    return table((*head, "both folded"), rows)


def _goals(cases: Iterable[Data]) -> str:
    rows = []
    for case, bar in ((each, bar) for each in cases for bar in each["bars"]):
        ours, reference, at_most = bar["alternative"], bar["reference"], bar["at_most"]
        ratio = case["alternatives"][ours]["ratios"][reference][case["main"]]["median"]
        rows.append(
            (
                f"{_title(case)}, {MODES[_mode(case)]}: {_label(ours)} / {_label(reference)}",
                _ratio(case, ours, reference, digits=3, quartiles=True),
                f"{at_most:.2f}",
                "met" if ratio <= at_most else "not met",
            )
        )
    met = sum(row[-1] == "met" for row in rows)
    text = table(("what", "ratio", "at most", ""), rows)
    return f"{text}\n\n{met} of {len(rows)} goals are met."


def _everything(rows: Iterable[tuple[Data, str]]) -> str:
    """Alternatives of cases that all measure the same quantities."""
    rows = list(rows)
    first, name = rows[0]
    phases = _mode(first) == "layer"
    quantities = list(first["alternatives"][name]["summary"]) if phases else [first["main"]]
    names = dict.fromkeys(name for case, _ in rows for name in case["references"])
    references = [name for name in names if not name.startswith("floor")]
    floors = len(names) > len(references)
    lines = [
        (
            _title(case),
            _label(name),
            *(_value(case, name, quantity) for quantity in quantities),
            *(_ratio(case, name, reference, 3, quartiles=True) for reference in references),
            *([_ratio(case, name, _floor_of(name), 3, quartiles=True)] if floors else []),
        )
        for case, name in rows
    ]
    unit = "MiB" if _mode(first) == "memory" else "ms"
    head = ["what", "alternative", *(f"{quantity} {unit}" for quantity in quantities)]
    head += [f"/ {_label(name)}" for name in references] + (["/ floor"] if floors else [])
    return table(head, lines)


WORDS = {
    "-all": " everywhere",
    "-scale": " in the first layer",
    "triton": "DBN in Triton",
    "cholesky": "DBN by Cholesky",
    "dbn": "DBN",
    "bn": "BN",
    "loop": "loop over eigh",
    "newton": "Newton-Schulz",
}


def _label(name: str) -> str:
    """An alternative in words.

    Example:
        >>> _label("dbn-all-g16, folded"), _label("loop-scale")
        ('DBN everywhere G16, folded', 'loop over eigh in the first layer')
    """
    for key, words in WORDS.items():
        name = name.replace(key, words)
    return name.replace("-g", " G")


def _floor_of(name: str) -> str:
    return f"floor-g{name.partition('-g')[2]}"


def _mode(case: Data) -> str:
    return str(case["info"].get("mode", "layer"))


def _title(case: Data) -> str:
    info = case["info"]
    if _mode(case) != "layer":
        return f"{case['title']}, batch {info['batch']}"
    last = ", channels last" if info["layout"] == "channels_last" else ""
    return f"{case['title']} {info['dtype']}{last}"


def _value(case: Data, name: str, quantity: str) -> str:
    """A median, in milliseconds or MiB."""
    scale = 2**-20 if _mode(case) == "memory" else 1e3
    value = scale * case["alternatives"][name]["summary"][quantity]["median"]
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _ratio(case: Data, name: str, reference: str, digits: int = 2, quartiles: bool = False) -> str:
    """The ratio of two alternatives in the main quantity; "-" if there is none."""
    ratios = case["alternatives"].get(name, {}).get("ratios", {})
    if reference not in ratios:
        return "-"
    found = ratios[reference][case["main"]]
    middle, low, high = (f"{found[key]:.{digits}f}" for key in ("median", "q1", "q3"))
    return f"{middle} ({low} to {high})" if quartiles and low != high else middle
