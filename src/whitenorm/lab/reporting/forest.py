r"""The forest plot: DBN beside BN in every experiment, each effect with its 95% interval."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from whitenorm.lab.reporting.find import is_of_paper
from whitenorm.lab.reporting.style import FIGURE_STYLE, GREY, PALETTE
from whitenorm.lab.studies.claims import GOALS, effect, final, time_to
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.settings import LOSSES
from whitenorm.lab.studies.study import Curve, Effect, Panel, Study
from whitenorm.lab.studies.wording import dataset_title

_STYLE: Any = {**FIGURE_STYLE, "font.size": 9}
_BASELINES = ("BN", "Baseline")
_ERRORS = "test error, DBN \N{MINUS SIGN} BN (points)"
_TIMES = "time to the same training loss, DBN / BN"
_TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5)


@dataclass(frozen=True)
class Row:
    """DBN beside BN in one panel of a study."""

    name: str
    error: Effect | None  # difference of test errors
    time: Effect | None  # ratio of the seconds to a training loss
    goal: float | None  # that loss
    paper: float | None  # the paper's difference of test errors


def rows(judged: Iterable[Results]) -> list[Row]:
    """A row for each DBN beside each BN, in the order of the studies that belong here."""
    found = []
    for results in judged:
        study = results.study
        drawn = (is_of_paper(study) or study.forest) and "test_error" in study.metrics
        for panel in results.scale.panels if drawn else ():
            bases = [c for c in panel.curves if c.label in _BASELINES]
            ours = [c for c in panel.curves if c.label.startswith("DBN")]
            for curve, base in ((c, b) for b in bases for c in ours):
                row = _row(results, panel, curve, base)
                if row.error or row.time:
                    found.append(row)
    return found


def _row(results: Results, panel: Panel, curve: Curve, base: Curve) -> Row:
    time = goal = None
    for goal in sorted((*GOALS, *LOSSES)):  # the lowest that both reach
        if time := effect(time_to(goal, "seconds"), results, curve, base):
            break
    names = [dataset_title(curve.run.dataset["name"]), panel.name, curve.label]
    shown = [n for n in dict.fromkeys(names) if n not in ("DBN", "comparison")]
    name = f"{results.study.forest or results.study.reference}: {', '.join(shown)}"
    error = effect(final("test_error"), results, curve, base)
    return Row(
        name, error, time, goal if time else None, _paper(results.study, panel, curve, base)
    )


def _paper(study: Study, panel: Panel, curve: Curve, base: Curve) -> float | None:
    """The difference of test errors that the paper prints, or that its two numbers have."""
    values = {}
    for number in study.paper:
        if number.panel != panel.name or number.metric != "test_error":
            continue
        if number.curve == curve.label and number.minus == base.label:
            return number.value
        if number.minus is None and number.over is None:
            values[number.curve] = number.value
    if curve.label in values and base.label in values:
        return values[curve.label] - values[base.label]
    return None


def draw_forest(judged: Iterable[Results], folder: Path) -> Path | None:
    """Writes ``forest.png`` and ``forest.svg``; None if nothing can be compared."""
    drawn = rows(judged)
    if not drawn:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9.5, 1.5 + 0.34 * len(drawn)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        _draw(left, [row.error for row in drawn], 0.0)
        _draw(right, [row.time for row in drawn], 1.0)
        for place, row in enumerate(drawn):
            if row.paper is not None:
                left.plot(row.paper, place, "D", color=PALETTE[1], markersize=5, zorder=3)
            if row.goal is not None:
                right.annotate(
                    f"loss {row.goal:g}",
                    (1.01, place),
                    xycoords=("axes fraction", "data"),
                    ha="left",
                    va="center",
                    fontsize=7,
                    color=GREY,
                )
        left.plot([], [], "D", color=PALETTE[1], markersize=5, label="in the paper")
        left.plot([], [], "o-", color=PALETTE[0], label="here, with its 95% interval")
        left.set_yticks(range(len(drawn)), [row.name for row in drawn])
        left.set_ylim(len(drawn) - 0.5, -0.5)
        left.set_xlabel(_ERRORS + "\n← DBN is better")
        right.set_xscale("log")
        low, high = right.get_xlim()
        ticks = [tick for tick in _TICKS if low <= tick <= high]
        right.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        right.xaxis.set_minor_locator(NullLocator())
        right.set_xlabel(_TIMES + "\n← DBN is faster")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=2)
        figure.savefig(folder / "forest.png", dpi=160)
        figure.savefig(folder / "forest.svg", metadata={"Date": None})
    return folder / "forest.png"


def _draw(axes: Any, effects: list[Effect | None], none: float) -> None:
    axes.axvline(none, color=GREY, linewidth=1)
    for place, found in enumerate(effects):
        if found is not None:
            axes.plot([found.low, found.high], [place] * 2, color=PALETTE[0], linewidth=1.8)
            axes.plot(found.estimate, place, "o", color=PALETTE[0], markersize=4.5)
