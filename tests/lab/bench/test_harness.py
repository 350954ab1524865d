"""Turns, ratios and repeats, with made-up values and a made-up clock."""

import time
from functools import partial

from whitenorm.lab.bench.harness import REBUILD_EVERY, Alternative, Case, Timed, measure


class Scripted:
    """A sampler that plays values back and notes when it was called."""

    def __init__(self, name, values, calls):
        self.name, self.values, self.calls = name, iter(values), calls

    def __call__(self):
        self.calls.append(self.name)
        return {"step": next(self.values)}

    def check(self):
        self.calls.append(f"check {self.name}")


def scripted_case(calls, **values):
    alternatives = [
        Alternative(name, partial(Scripted, name, each, calls)) for name, each in values.items()
    ]
    return Case("case", "Case", alternatives, ["a"], warmup=1)


def test_ratios_are_taken_within_a_round_and_warm_up_is_dropped():
    case = scripted_case([], a=[99.0, 1.0, 2.0, 4.0], b=[99.0, 3.0, 4.0, 4.0])
    found = measure(case, rounds=3)["alternatives"]["b"]
    assert found["values"] == {"step": [3.0, 4.0, 4.0]}
    assert found["summary"]["step"] == {"median": 4.0, "q1": 3.5, "q3": 4.0}
    assert found["ratios"]["a"]["step"]["median"] == 2.0  # of 3, 2 and 1


def test_every_alternative_takes_every_place_in_the_order():
    calls = []
    case = scripted_case(calls, a=[1.0] * 9, b=[1.0] * 9, c=[1.0] * 9)
    measure(case, rounds=REBUILD_EVERY)
    taken = 3 * (1 + REBUILD_EVERY)
    turns = [calls[i : i + 3] for i in range(0, taken, 3)]
    assert all(set(turn) == set("abc") for turn in turns)
    for place in range(3):
        assert {turn[place] for turn in turns} == set("abc")
    assert len({tuple(turn) for turn in turns}) > 3  # backwards too, not only rotated
    assert calls[taken:] == ["check a", "check b", "check c"]


def test_alternatives_are_built_again_in_another_order_and_warmed_up_again():
    made = []

    def make(name):
        made.append(name)
        return Scripted(name, [99.0, *[float(len(made))] * REBUILD_EVERY], [])

    alternatives = [Alternative(name, partial(make, name)) for name in "ab"]
    found = measure(Case("case", "Case", alternatives, ["a"], warmup=1), REBUILD_EVERY + 2)
    assert made == ["a", "b", "b", "a"]
    assert found["alternatives"]["a"]["values"] == {"step": [1.0] * REBUILD_EVERY + [4.0] * 2}


def test_a_sample_repeats_its_phases_in_order_until_it_is_long_enough(monkeypatch):
    log = []
    clock = {"one": 1.0, "two": 2.0}
    monkeypatch.setattr(time, "perf_counter", lambda: sum(clock[name] for name in log))
    phases = {name: lambda name=name: log.append(name) for name in clock}
    timed = Timed(phases, least=7.0)
    log.clear()
    assert timed() == {"one": 1.0, "two": 2.0}
    assert log == ["one", "two"] * 3
