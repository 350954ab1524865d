r"""Records as Markdown: every measured number on a page comes from here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from whitenorm.lab.reporting.markdown import table

__all__ = ["for_page", "is_usual", "report"]

Data = dict[str, Any]

# What the page about performance shows; all else is in the tables beside the records.
PAGE_NETWORKS = {
    "VGG-A": ("dbn-g8", "dbn-g16", "dbn-g64", "dbn-g512"),
    "Res-20": ("dbn-scale", "dbn-all-g16"),
    "Res-56": ("dbn-scale", "dbn-all-g16"),
    "WRN-28-10": ("dbn-all-g16",),
    "Res-50": ("dbn-all-g16",),
    "MLP": ("dbn-g16",),
}
PAGE_LAYERS = ("[64, 64, 32, 32]", "[256, 128, 16, 16]", "[256, 512, 4, 4]", "[256, 128]")
PAGE_FORMATS = "[256, 128, 16, 16]"  # the input that other formats are shown for
MODES = {
    "layer": "forward + backward",
    "training": "training iteration",
    "inference": "inference",
    "memory": "peak memory of a training iteration",
}


def for_page(record: Data) -> str:
    """What the page shows of a record: a short table, and where it was measured."""
    cases = record["cases"]
    if record["suite"] == "bars":
        met = [_is_met(bar, case) for case, bar in _bars_of(cases)]
        text = f"{sum(met)} of {len(met)} goals are met."
    elif record["suite"] == "layer":
        usual = [case for case in cases if is_usual(case) and case["title"] in PAGE_LAYERS]
        other = [case for case in cases if not is_usual(case) and case["title"] == PAGE_FORMATS]
        text = _layers(usual + other, (1, 8, 16, 64))
    elif record["suite"] == "network":
        text = _networks(cases)
    else:
        text = _everything(_page_rows(cases, "memory"))
    return f"{text}\n\n{_where(record)}"


def report(record: Data) -> str:
    """All of a record."""
    parts = [f"# {record['title']}", _where(record)]
    if record["suite"] == "bars":
        parts.append(_bars(record["cases"]))
    if record["suite"] == "layer":
        parts.append(_layers(record["cases"], (1, 4, 8, 16, 32, 64)))
    for mode, words in MODES.items():
        cases = [case for case in record["cases"] if _mode(case) == mode]
        rows = [(case, name) for case in cases for name in case["alternatives"]]
        parts += [f"## All measurements: {words}", _everything(rows)] if rows else []
    return "\n\n".join(parts) + "\n"


def _where(record: Data) -> str:
    """When, on what and how undisturbed."""
    env = record["environment"]
    rounds = sorted({case["rounds"] for case in record["cases"]})
    text = (
        f"{env['date'][:10]}, revision {env['revision'] or 'unknown'}: {env['threads']} threads "
        f"on {env['cores']} cores of {env['cpu']}, torch {env['torch']}, "
        f"{' to '.join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))} rounds."
    )
    tuned = [f"`{name}={value}`" for name, value in env.get("variables", {}).items()]
    text += f" With {', '.join(tuned)}." if tuned else ""
    if record["quick"]:
        text += " **Sizes were shrunk to try the harness: these numbers mean nothing.**"
    if record["only"] is not None:
        text += f" **Only the cases with {record['only']!r} in their name were measured.**"
    reasons = "; ".join(record["disturbances"])
    return f"{text} **The machine was not idle: {reasons}.**" if reasons else text


# --- tables -------------------------------------------------------------------------------------


def _layers(cases: Iterable[Data], groups: Iterable[int]) -> str:
    """Forward and backward against BN, by group size, and the usual ports at group 16."""
    names = [*(f"dbn-g{k}" for k in groups), "loop-g16", "newton-g16"]
    rows = []
    for case in cases:
        largest = [name for name in case["alternatives"] if name.startswith("dbn")][-1]
        ratios = [_ratio(case, name, "bn") for name in names]
        ratios.append(f"{_ratio(case, largest, 'bn')} ({_label(largest).removeprefix('DBN ')})")
        rows.append((_title(case), _value(case, "bn", "both"), *ratios))
    return table(("input", "BN ms", *map(_label, names), "largest DBN"), rows)


def _networks(cases: list[Data]) -> str:
    inferred = {case["title"]: case for case in cases if _mode(case) == "inference"}
    rows = [
        (
            _title(case),
            _label(name),
            _value(case, "bn", "step"),
            _ratio(case, name, "bn", quartiles=True),
            _paper(case, name),
            _ratio(inferred[case["title"]], name, "bn"),
            _ratio(inferred[case["title"]], f"{name}, folded", "bn, folded"),
        )
        for case, name in _page_rows(cases, "training")
    ]
    head = ("network", "normalization", "BN ms", "training / BN", "paper", "inference / BN")
    return table((*head, "both folded"), rows)


def _page_rows(cases: Iterable[Data], mode: str) -> Iterator[tuple[Data, str]]:
    for case in cases:
        title = case["title"].partition(" ")[0]  # older records add sizes to the MLP's title
        if _mode(case) == mode and title in PAGE_NETWORKS:
            names = ("bn", PAGE_NETWORKS[title][-1]) if mode == "memory" else PAGE_NETWORKS[title]
            yield from ((case, name) for name in names if name in case["alternatives"])


def _bars_of(cases: Iterable[Data]) -> list[tuple[Data, Data]]:
    return [(case, bar) for case in cases for bar in case["bars"]]


def _bars(cases: Iterable[Data]) -> str:
    rows = []
    for case, bar in _bars_of(cases):
        ours, reference = bar["alternative"], bar["reference"]
        ports = [ours.replace("dbn", port) for port in ("loop", "newton")]
        rows.append(
            (
                f"{_title(case)}, {MODES[_mode(case)]}: {_label(ours)} / {_label(reference)}",
                _ratio(case, ours, reference, digits=3, quartiles=True),
                f"{bar['at_most']:.2f}",
                "met" if _is_met(bar, case) else "not met",
                *(_ratio(case, port, reference) for port in ports),
            )
        )
    return table(("what", "ratio", "at most", "", "loop over eigh", "Newton-Schulz"), rows)


def _is_met(bar: Data, case: Data) -> bool:
    ratio = case["alternatives"][bar["alternative"]]["ratios"][bar["reference"]][case["main"]]
    return bool(ratio["median"] <= bar["at_most"])


def _everything(rows: Iterable[tuple[Data, str]]) -> str:
    """Alternatives of cases that all measure the same quantities."""
    rows = list(rows)
    first, name = rows[0]
    timed = _mode(first) in ("training", "inference")  # by the paper too
    phases = _mode(first) == "layer"
    quantities = list(first["alternatives"][name]["summary"]) if phases else [first["main"]]
    references = list(dict.fromkeys(name for case, _ in rows for name in case["references"]))
    lines = [
        (
            _title(case),
            _label(name),
            *(_value(case, name, quantity) for quantity in quantities),
            *(_ratio(case, name, reference, 3, quartiles=True) for reference in references),
            *([_paper(case, name)] if timed else []),
        )
        for case, name in rows
    ]
    unit = "MiB" if _mode(first) == "memory" else "ms"
    head = ["what", "alternative", *(f"{quantity} {unit}" for quantity in quantities)]
    head += [f"/ {_label(name)}" for name in references]
    return table([*head, *(["paper"] if timed else [])], lines)


# --- cells --------------------------------------------------------------------------------------


def _label(name: str) -> str:
    """An alternative in words.

    Example:
        >>> _label("dbn-all-g16, folded"), _label("loop-g8"), _label("bn-extra-conv")
        ('DBN everywhere G16, folded', 'loop over eigh G8', 'BN with extra 3x3')
    """
    for key, words in _WORDS.items():
        name = name.replace(key, words)
    return name.replace("-g", " G")


_WORDS = {
    "bn-extra-conv": "BN with extra 3x3",
    "dbn-all": "DBN everywhere",
    "dbn": "DBN",
    "bn": "BN",
    "loop": "loop over eigh",
    "newton": "Newton-Schulz",
    "conv": "3x3 convolution",
}


def _mode(case: Data) -> str:
    return str(case["info"].get("mode", "layer"))


def is_usual(case: Data) -> bool:
    """Whether a case of layers is in the usual format."""
    return (case["info"]["dtype"], case["info"]["layout"]) == ("float32", "contiguous")


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


def _paper(case: Data, name: str) -> str:
    ratios = case["alternatives"][name]["info"].get("paper", {}).values()
    return " / ".join(f"{ratio:.2f}" for ratio in ratios) or "-"
