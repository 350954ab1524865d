"""A directive that writes out the commands of ``whitenorm`` with their options."""

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective
from typer.main import get_command

from whitenorm.lab.cli import app


class CommandLine(SphinxDirective):
    """Every command: its help, and a table of its options."""

    def run(self):
        """What stands in the place of the directive."""
        lines = []
        for name, command in get_command(app).commands.items():
            lines += [f"## `whitenorm {name}`", "", command.help or "", ""]
            rows = [_row(parameter) for parameter in command.params if parameter.name != "help"]
            if rows:
                lines += ["| | | default |", "|---|---|---|", *rows, ""]
        text = "\n".join(lines).splitlines()
        section = nodes.section()
        self.state.nested_parse(StringList(text, self.env.docname), 0, section, match_titles=True)
        return section.children


def _row(parameter):
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    words = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    default = parameter.default
    shown = "" if default is None or callable(default) or parameter.required else f"`{default}`"
    return f"| {names} | {words} | {shown} |"


def setup(app):
    """Registers the directive."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
