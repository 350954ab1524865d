"""Turns, ratios and repeats, with made-up values and a made-up clock."""

import time

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
        Alternative(name, lambda name=name: Scripted(name, values[name], calls)) for name in values
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

    def alternative(name):
        def make():
            made.append(name)
            return Scripted(name, [99.0, *[float(len(made))] * REBUILD_EVERY], [])

        return Alternative(name, make)

    case = Case("case", "Case", [alternative("a"), alternative("b")], ["a"], warmup=1)
    found = measure(case, rounds=REBUILD_EVERY + 2)
    assert made == ["a", "b", "b", "a"]
    assert found["rounds"] == REBUILD_EVERY + 2
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


def test_quick_cases_go_on_for_the_time_given_and_phases_are_added_up(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    phases = {"forward": lambda: None, "backward": lambda: None}
    make = Alternative("a", lambda: Timed(phases, least=0))
    case = Case("case", "Case", [make], ["a"], total="both")
    assert measure(case, rounds=2)["rounds"] == 2
    found = measure(case, rounds=2, seconds=60)
    assert (found["rounds"], found["main"]) == (20, "both")
    assert set(found["alternatives"]["a"]["summary"]) == {"forward", "backward", "both"}
