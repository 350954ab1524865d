"""Turns, ratios and repeats, with made-up values and a made-up clock."""

import time
from functools import partial

from whitenorm.lab.bench.harness import REBUILD_EVERY, WARMUP, Case, Timed, measure


def scripted(name, values, calls):
    """A sampler that plays values back, after those of the warm-up, and notes its calls."""
    rest = iter([99.0] * WARMUP + values)

    def sample():
        calls.append(name)
        return {"step": next(rest)}

    return sample


def measured(makes, rounds):
    return measure(Case("case", "Case", makes, ["a"], {}), rounds)["alternatives"]


def test_ratios_are_taken_within_a_round_and_warm_up_is_dropped():
    values = {"a": [1.0, 2.0, 4.0], "b": [3.0, 4.0, 4.0]}
    found = measured({n: partial(scripted, n, each, []) for n, each in values.items()}, 3)["b"]
    assert found["values"] == {"step": [3.0, 4.0, 4.0]}
    assert found["summary"]["step"] == {"median": 4.0, "q1": 3.5, "q3": 4.0}
    assert found["ratios"]["a"]["step"]["median"] == 2.0  # of 3, 2 and 1


def test_every_alternative_takes_every_place_in_the_order():
    calls = []
    measured({n: partial(scripted, n, [1.0] * 9, calls) for n in "abc"}, REBUILD_EVERY)
    turns = [calls[i : i + 3] for i in range(0, len(calls), 3)]
    assert all(set(turn) == set("abc") for turn in turns)
    for place in range(3):
        assert {turn[place] for turn in turns} == set("abc")
    assert len({tuple(turn) for turn in turns}) > 3  # backwards too, not only rotated


def test_alternatives_are_built_again_in_another_order_and_warmed_up_again():
    made = []

    def make(name):
        made.append(name)
        return scripted(name, [float(len(made))] * REBUILD_EVERY, [])

    found = measured({name: partial(make, name) for name in "ab"}, REBUILD_EVERY + 2)
    assert made == ["a", "b", "b", "a"]
    assert found["a"]["values"] == {"step": [1.0] * REBUILD_EVERY + [4.0] * 2}


def test_a_sample_repeats_its_phases_in_order_until_it_is_long_enough(monkeypatch):
    log = []
    clock = {"one": 1.0, "two": 2.0}
    monkeypatch.setattr(time, "perf_counter", lambda: sum(clock[name] for name in log))
    timed = Timed({name: partial(log.append, name) for name in clock}, least=7.0)
    log.clear()
    assert timed() == {"one": 1.0, "two": 2.0}
    assert log == ["one", "two"] * 3
