r"""Effects over seeds: a difference or a ratio with its 95% interval, and what it speaks for."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from whitenorm.lab.studies.results import Summary

LEVEL = 0.95
_Values = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Effect:
    """An estimate with its interval, and the one-sided probabilities behind it.

    ``above`` is the probability of such values, or of ones further below, if the true effect were
    no less than the bound it was compared with; ``below`` the same if it were no more. The
    interval lies below the bound where ``above < 0.025``.
    """

    estimate: float
    low: float
    high: float
    above: float
    below: float


def difference(
    a: Summary, b: Summary, *, paired: bool, bound: float = 0.0, logarithmic: bool = False
) -> Effect | None:
    """a - b over seeds, or a / b on a logarithmic scale; None without two seeds of each.

    Seeds that both have are paired, if they share initialization and order: then the interval is
    Student's, of the differences. Otherwise it is Welch's.
    """
    seeds = [seed for seed in a.seeds if seed in b.seeds] if paired else []
    if len(seeds) >= 2:
        one, other = (np.array([s.values[s.seeds.index(i)] for i in seeds]) for s in (a, b))
    else:
        one, other = np.array(a.values), np.array(b.values)
        paired = False
    if min(len(one), len(other)) < 2:
        return None
    if logarithmic:
        one, other = _log(one), _log(other)
    if paired:
        return _effect(stats.ttest_1samp, (one - other,), bound, logarithmic)
    return _effect(_welch, (one, other), bound, logarithmic)


def mean(values: Summary, bound: float = 0.0) -> Effect | None:
    """The mean over seeds; None without two."""
    if len(values.values) < 2:
        return None
    return _effect(stats.ttest_1samp, (np.array(values.values),), bound, False)


def _welch(a: _Values, b: _Values, popmean: float, alternative: str) -> Any:
    return stats.ttest_ind(a - popmean, b, equal_var=False, alternative=alternative)


def _effect(
    test: Callable[..., Any], samples: Sequence[_Values], bound: float, logarithmic: bool
) -> Effect:
    estimate = float(samples[0].mean() - (samples[1].mean() if len(samples) == 2 else 0.0))
    if all(np.ptp(sample) <= 1e-12 * max(abs(estimate), 1e-300) for sample in samples):
        low = high = estimate  # the same in every seed
        above, below = float(estimate >= bound), float(estimate <= bound)
    else:
        found = {which: test(*samples, bound, alternative=which) for which in ("less", "greater")}
        both = test(*samples, 0.0, alternative="two-sided").confidence_interval(LEVEL)
        low, high = float(both.low), float(both.high)
        above, below = float(found["less"].pvalue), float(found["greater"].pvalue)
    if logarithmic:
        estimate, low, high = (math.exp(min(v, 700.0)) for v in (estimate, low, high))
    return Effect(estimate, low, high, above, below)


def _log(values: _Values) -> _Values:
    logs: _Values = np.log(np.maximum(values, np.finfo(float).tiny))
    return logs
