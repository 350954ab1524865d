"""A table is described once and says the same wherever it is drawn."""

from rich.console import Console
from tiny_study import tiny_results

from whitenorm.lab.reporting.tables import Table, markdown, status_words, terminal
from whitenorm.lab.studies.claims import final, lower
from whitenorm.lab.studies.study import Claim

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
