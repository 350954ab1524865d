"""A table is described once and says the same wherever it is drawn."""

from dataclasses import replace

from rich.console import Console
from tiny_study import tiny_results

from whitenorm.lab.reporting.tables import Table, markdown, status_words, terminal
from whitenorm.lab.studies.claims import final, lower
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import Claim, Panel, Scale

TABLE = Table(
    "Claims",
    {"where": "text", "n": "number", "again": "code", "verdict": "status"},
    (
        ("[bold]Figure 1[/]", "5", "whitenorm run fig1", "undecided (reduced size)"),
        ("Figure 2", "12", "whitenorm run fig2", "not tested at this scale"),
    ),
)


def test_markdown_has_commands_as_code_and_verdicts_in_bold():
    assert markdown(TABLE).splitlines() == [
        "| where | n | again | verdict |",
        "| --- | --- | --- | --- |",
        "| [bold]Figure 1[/] | 5 | `whitenorm run fig1` | **undecided** (reduced size) |",
        "| Figure 2 | 12 | `whitenorm run fig2` | not tested at this scale |",
    ]


def test_a_terminal_shows_cells_as_they_are_and_colours_verdicts():
    console = Console(width=120, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        console.print(terminal(TABLE))
    text = captured.get()
    assert "\x1b[33mundecided (reduced size)\x1b[0m" in text
    assert "│ [bold]Figure 1[/] │  5 │ whitenorm run fig1 │" in text
    assert "│ Figure 2          │ 12 │" in text


def test_a_verdict_says_what_speaks_against_the_claim_even_where_that_is_too_little():
    claim = Claim("a wins.", "", lower(final("train_loss"), [("a", "b"), ("a", "c")]))
    losses = {"a": [1.0, 1.0, 1.0], "c": [2.0, 2.1, 2.2]}
    unsure = status_words(claim, tiny_results(**losses, b=[0.92, 0.82, 0.85]))
    assert unsure == "undecided (1 of 2 comparisons supports it; 1 contradicts it)"
    sure = status_words(claim, tiny_results(**losses, b=[0.5, 0.51, 0.52]))
    assert sure == "contradicted (1 of 2 comparisons supports it; 1 contradicts it)"
    assert status_words(claim, tiny_results(**losses, b=[2.0, 2.1, 2.2])) == "supported"


def of_two_cases(results, there):
    """The same results of a study whose full size compares a with b, and a with c as b."""
    a, b, c = (results.scale.panels[0].curve(label) for label in "abc")
    whole = Scale((Panel("one", (a, b)), Panel("two", (a, replace(c, label="b")))), duration="")
    scales = {"small": whole.only(there), "paper": whole}
    return Results(replace(results.study, scales=scales), "small", results.all)


def test_a_verdict_says_on_how_many_of_the_papers_cases_it_rests():
    claim = Claim("a wins.", "", lower(final("train_loss"), [("a", "b")]))
    sides = {"a": [1.0, 1.0, 1.1], "b": [2.0, 2.1, 2.2]}
    both = tiny_results(**sides, c=[3.0, 3.1, 3.2])
    assert status_words(claim, of_two_cases(both, ["one", "two"])) == "supported"
    assert status_words(claim, of_two_cases(both, ["one"])) == "supported (1 of 2 cases run)"
    diverged = of_two_cases(tiny_results(**sides, c=[None, None, 3.0]), ["one", "two"])
    assert status_words(claim, diverged) == "supported (1 of 2 cases judged)"
