"""A table is described once and says the same wherever it is drawn."""

from rich.console import Console

from whitenorm.lab.reporting.tables import Table, markdown, terminal

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
