r"""Words for what is measured, and numbers with as many digits as are certain."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from whitenorm.lab.studies.results import Results, Summary
from whitenorm.lab.studies.study import Effect, View

_COLUMNS = {
    "iteration": "update",
    "epoch": "epoch",
    "seconds": "training time (s)",
    "batch_size": "batch size (examples)",
    "train_loss": "training loss (nats)",
    "train_error": "training error (%)",
    "test_loss": "test loss (nats)",
    "test_error": "test error (%)",
    "test_top5_error": "top-5 test error (%)",
    "seconds_per_iteration": "time an update (ms)",
    "swapped": "share of axes that swapped",
    "drift": "drift of the axes",
    "distance": "squared distance of two views",
    "effective_rank": "effective rank of the embeddings",
    "spread": "spread of the embeddings",
    "neighbour_error": "nearest-neighbour error (%)",
    "snd": "stochastic normalization disturbance",
    "snd_small": "SND in the smallest batches",
    "snd_large": "SND in the largest batches",
    "fisher.at_90_percent": "condition number (at 90%)",
    "fisher.at_smallest": "condition number",
    "jacobian.median": "median singular value",
    "jacobian.log10_deviation": "deviation of log10 of singular values",
    "jacobian.log10_rms": "RMS of log10 of singular values",
    "whiteness.largest": "largest variance of whitened test activations",
    "whiteness.mean": "mean variance of whitened test activations",
    "activations.correlation": "mean |correlation|",
    "activations.condition": "condition number",
}
CLOCKS = {"iteration": "updates", "epoch": "epochs", "seconds": "seconds"}
_FACTORS = {"seconds_per_iteration": 1e3}


def metric_name(column: str) -> str:
    """A column in words, with its unit.

    Example:
        >>> metric_name("iteration@0.1"), metric_name("test_error@0.1")
        ('updates to loss 0.1', 'test error (%) at loss 0.1')
        >>> metric_name("epoch@30%"), metric_name("test_error@same time")
        ('epochs to test error 30%', "test error (%) in the quickest one's time")
    """
    measured, _, goal = column.partition("@")
    if goal == "same time":
        return f"{metric_name(measured)} in the quickest one's time"
    reached = f"test error {goal}" if goal.endswith("%") else f"loss {goal}"
    if goal and measured in CLOCKS:
        return f"{CLOCKS[measured]} to {reached}"
    if goal:
        return f"{metric_name(measured)} at {reached}"
    return _COLUMNS.get(column, column.replace("_", " ").replace(".", ": "))


def without_unit(column: str) -> str:
    """A column in words, without its unit.

    Example:
        >>> without_unit("test_error@0.1")
        'test error at loss 0.1'
    """
    return re.sub(r" \([^)]*\)", "", metric_name(column))


_DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "digits": "digits",
    "mnist": "MNIST",
    "photographs": "photographs",
    "pie": "PIE",
    "tiny-imagenet-20": "Tiny-ImageNet",
    "yaleb": "Yale-B",
}


_REMARKS = {"pie": "PIE's pictures are JPEG-recompressed, not the original file."}
CLASSES = {
    "cifar10": 10,
    "cifar100": 100,
    "digits": 10,
    "mnist": 10,
    "photographs": 2,
    "pie": 68,
    "yaleb": 38,
}


def dataset_title(name: str) -> str:
    """A data set as it is written in titles."""
    return _DATASETS.get(name, name)


def notes(results: Results) -> list[str]:
    """What is to be known about a study, and about the data that it uses at this scale."""
    used = results.scale.datasets()
    return [*results.study.notes, *(_REMARKS[name] for name in used if name in _REMARKS)]


def counted(count: object, noun: str) -> str:
    """How many of something: "1 run", "3 to 5 seeds"."""
    return f"{count} {noun}" if str(count) == "1" else f"{count} {noun}s"


def solid_and_dashed(view: View) -> str:
    """Which of a view's two columns is drawn how; nothing if it has one."""
    if len(view.y) == 1:
        return ""
    solid, dashed = map(without_unit, view.y)
    return f"solid: {solid}, dashed: {dashed}"


def axis_title(view: View, axis: str) -> str:
    """The title of a view's axis."""
    if axis == "x":
        return metric_name(view.x)
    if len(view.y) == 2 and view.y[0].replace("train", "test") == view.y[1]:
        return metric_name(view.y[0]).replace("training ", "")
    return metric_name(view.y[0])


def number(value: float, spread: float | None = None) -> str:
    """A number to as many digits as its spread leaves certain; four without one.

    Example:
        >>> number(7.7712, 0.031), number(1234.5), number(0.0001234)
        ('7.77 ± 0.03', '1234', '0.0001234')
    """
    if not math.isfinite(value):
        return "—"
    if spread is None or not math.isfinite(spread) or spread == 0:
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.3e}"
    digits = -math.floor(math.log10(spread))
    if digits > 6 or abs(value) >= 1e5:
        return f"{value:.3g} ± {spread:.1g}"
    digits = max(digits, 0)
    return f"{value:.{digits}f} ± {spread:.{digits}f}"


def effect_text(effect: Effect) -> str:
    """An effect with its interval.

    Example:
        >>> effect_text(Effect(-0.52, -0.811, -0.2, 0.01, 0.99))
        'difference -0.52 [-0.81, -0.20]'
    """
    return f"{'ratio' if effect.ratio else 'difference'} {interval_text(effect)}"


def interval_text(effect: Effect) -> str:
    """An effect's number with its interval, both with the digits that the interval leaves."""
    values, width = (effect.estimate, effect.low, effect.high), effect.high - effect.low
    form = ".3g"
    if not effect.ratio and width > 0:
        form = f".{min(max(1 - math.floor(math.log10(width)), 0), 6)}f"
    estimate, *ends = (f"{value:{form}}" for value in values)
    return f"{effect.beyond} {estimate} [{', '.join(ends)}]".strip()


def summary(values: Summary, metric: str) -> str:
    """Mean and spread in the unit of :func:`metric_name`."""
    if values.n == 0:
        return "—"
    if values.diverged:
        return f"{values.diverged} of {values.n} diverged"
    factor = _FACTORS.get(metric, 1.0)
    return number(values.mean * factor, values.spread * factor)


def point_text(point: Mapping[str, Any] | None) -> str:
    """A point of a grid in words: ``lr 0.5, eps 0.1``."""
    values = {path.partition(".")[2] or path: value for path, value in (point or {}).items()}
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in values.items())
