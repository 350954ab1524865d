r"""A run of a suite leaves a JSON record, and tables, a figure and a page are made from that."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from whitenorm.lab.bench.harness import BenchError, Suite, measure
from whitenorm.lab.bench.machine import describe, disturbances, keep_memory, time_constant_work
from whitenorm.lab.bench.suites import SUITES
from whitenorm.lab.bench.tables import for_pages, report
from whitenorm.lab.reporting.markdown import fill_slots

FORMAT = 1


def run_suite(
    suite: Suite,
    out: Path,
    *,
    rounds: int | None = None,
    quick: bool = False,
    only: str | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> Path:
    """Measures a suite and writes ``out/<suite>.json``; the path of it.

    ``quick`` (one round of small cases) and ``only`` (cases with this in their name) write
    ``<suite>-quick.json`` and ``<suite>-partial.json``, so that a whole record stays.
    """
    every = [case for case in suite.cases if not quick or suite.small in case.name]
    cases = [case for case in every if only is None or only in case.name]
    if not cases:
        raise BenchError(
            f"no case of suite {suite.name!r} has {only!r} in its name; there are "
            f"{', '.join(repr(case.name) for case in every)}"
        )
    rounds = rounds or (1 if quick else suite.rounds)
    if not quick:
        keep_memory()
    environment, constant_work, found = describe(), time_constant_work(), []
    for number, case in enumerate(cases, start=1):
        progress(f"{number}/{len(cases)} {case.name}")
        try:
            found.append(measure(case, rounds))
        except torch.OutOfMemoryError:  # of a GPU
            progress(f"left out: {case.name} needs more memory than there is")
        constant_work += time_constant_work()
    reasons = disturbances(constant_work)
    for reason in reasons:
        progress(f"the machine was not idle: {reason}")
    record = {
        **{"format": FORMAT, "suite": suite.name, "title": suite.title},
        **{"quick": quick, "only": only, "rounds": rounds},
        **{"environment": environment, "disturbances": reasons, "cases": found},
        **suite.extras(),
    }
    # Five digits are more than any measurement is worth.
    short = json.loads(
        json.dumps(record, allow_nan=False), parse_float=lambda text: float(f"{float(text):.5g}")
    )
    name = suite.name + ("-quick" if quick else "") + ("-partial" if only is not None else "")
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps(short, separators=(",", ":")) + "\n")
    return path


def read_record(path: Path) -> dict[str, Any]:
    """A record of :func:`run_suite`; fields that nothing uses any more are ignored."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        if record["format"] != FORMAT or record["suite"] not in (*SUITES, "gpu"):
            raise ValueError(f"format {record['format']}, suite {record['suite']}")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BenchError(
            f"{path} is no benchmark record of format {FORMAT} ({error!r}); measure again"
        ) from error
    return record


def render(path: Path) -> list[Path]:
    """Writes the tables of a record, and the figure of layers, beside it; their paths."""
    record = read_record(path)
    text, written = report(record), [path.with_suffix(".md")]
    if record["suite"] == "layer":
        from whitenorm.lab.bench.figures import save_layer_figure  # matplotlib loads slowly

        written.append(path.with_name(path.stem.replace("layer", "layer-figure") + ".svg"))
        save_layer_figure(record, written[1])
        text += f"\n![Cost of the layer against BatchNorm]({written[1].name})\n"
    written[0].write_text(text)
    return written


def fill_page(page: Path, out: Path) -> list[str]:
    """Renders a folder's records of whole suites and fills a page's slots; their names."""
    names = (*SUITES, "gpu")
    records = [path for name in names if (path := out / f"{name}.json").exists()]
    if not records:
        raise BenchError(f"{out} holds no records of whole suites; measure with --suite first")
    slots: dict[str, str] = {}
    for path in records:
        render(path)
        slots |= for_pages(read_record(path))
    text, replaced, _ = fill_slots(page.read_text(), "bench", slots)
    if not replaced:
        raise BenchError(
            f"{page} has no place for {', '.join(slots)}; add '<!-- bench: name -->' and "
            "'<!-- end -->', each on a line of its own"
        )
    page.write_text(text)
    return replaced
