r"""Places of a Markdown page that are filled by a program, and the tables that go there.

A slot stands between ``<!-- kind: name -->`` and ``<!-- end -->``; nothing else is touched.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

Row = Sequence[object]


def fill_slots(text: str, kind: str, slots: Mapping[str, str]) -> tuple[str, list[str], list[str]]:
    """The text with its slots of a kind replaced; names of those replaced, and of the others.

    Example:
        >>> fill_slots("<!-- x: a -->\\nold<!-- end -->", "x", {"a": "new"})
        ('<!-- x: a -->\\n\\nnew\\n\\n<!-- end -->', ['a'], [])
    """

    def replacement(match: re.Match[str]) -> str:
        new = slots.get(match[1])
        return match[0] if new is None else f"<!-- {kind}: {match[1]} -->\n\n{new}\n\n<!-- end -->"

    pattern = re.compile(rf"<!-- {kind}: (\S+) -->\n.*?<!-- end -->", re.DOTALL)
    names = pattern.findall(text)
    known = [name for name in names if name in slots]
    return pattern.sub(replacement, text), known, [name for name in names if name not in slots]


def table(head: Row, rows: Iterable[Row]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
