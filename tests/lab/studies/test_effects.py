"""Effects over seeds, against the textbook's formulas."""

import math
import statistics

import pytest
from scipy import stats

from whitenorm.lab.studies.effects import difference, mean
from whitenorm.lab.studies.results import Summary

A, B = Summary((1.0, 2.0, 4.0), seeds=(0, 1, 2)), Summary((2.0, 2.5, 6.0), seeds=(0, 1, 2))
T2 = 4.302652729911275  # 97.5% of Student's t with two degrees of freedom


def test_paired_seeds_have_students_interval_of_their_differences():
    found = difference(A, B, paired=True)
    gaps = [-1.0, -0.5, -2.0]
    half = T2 * statistics.stdev(gaps) / math.sqrt(3)
    middle = statistics.fmean(gaps)
    expected = (middle, middle - half, middle + half)
    assert (found.estimate, found.low, found.high) == pytest.approx(expected)


def test_other_seeds_have_welchs_interval():
    found = difference(A, B, paired=False)
    va, vb = statistics.variance(A.values) / 3, statistics.variance(B.values) / 3
    assert found.estimate == pytest.approx(7 / 3 - 3.5)
    freedom = (va + vb) ** 2 / (va**2 / 2 + vb**2 / 2)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(va + vb)
    assert found.high - found.low == pytest.approx(2 * half)


def test_only_seeds_that_both_have_are_paired():
    other = Summary((9.0, 2.0, 2.5), seeds=(7, 0, 1))
    found = difference(A, other, paired=True)
    assert found.estimate == pytest.approx(statistics.fmean([1.0 - 2.0, 2.0 - 2.5]))


def test_ratios_are_differences_of_logarithms():
    found = difference(A, B, paired=True, logarithmic=True)
    logs = Summary(tuple(map(math.log, A.values)), seeds=A.seeds)
    others = Summary(tuple(map(math.log, B.values)), seeds=B.seeds)
    expected = difference(logs, others, paired=True)
    for name in ("estimate", "low", "high"):
        assert getattr(found, name) == pytest.approx(math.exp(getattr(expected, name)))


@pytest.mark.parametrize("bound", [-1.0, 0.0, 0.4])
def test_an_interval_excludes_a_bound_where_a_tail_is_less_than_a_fortieth(bound):
    values = Summary((0.1, 0.3, 0.35, 0.2))
    found = mean(values, bound)
    assert (found.high < bound) == (found.above < 0.025)
    assert (found.low > bound) == (found.below < 0.025)


def test_the_same_in_every_seed_leaves_no_doubt():
    found = difference(Summary((1.0, 1.0)), Summary((3.0, 3.0)), paired=False)
    assert (found.low, found.high, found.above, found.below) == (-2, -2, 0, 1)


def test_one_seed_has_no_interval():
    one = Summary((1.0,), seeds=(0,))
    assert difference(one, one, paired=True) is None
    assert mean(one) is None
