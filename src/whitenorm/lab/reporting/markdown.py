r"""Places of a Markdown page that are filled by a program, and the tables that go there.

A block stands between ``<!-- kind: name -->`` and ``<!-- end -->``; nothing else is touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Row", "fill_blocks", "table"]

Row = Sequence[object]


def fill_blocks(
    text: str, kind: str, blocks: Mapping[str, str]
) -> tuple[str, list[str], list[str]]:
    """The text with its blocks of a kind replaced; names of those replaced, and of the others.

    Example:
        >>> fill_blocks("<!-- x: a -->\\nold<!-- end -->", "x", {"a": "new"})
        ('<!-- x: a -->\\n\\nnew\\n\\n<!-- end -->', ['a'], [])
    """
    replaced: list[str] = []
    unknown: list[str] = []

    def replacement(match: re.Match[str]) -> str:
        name = match[1]
        if name not in blocks:
            unknown.append(name)
            return match[0]
        replaced.append(name)
        return f"<!-- {kind}: {name} -->\n\n{blocks[name]}\n\n<!-- end -->"

    pattern = re.compile(rf"<!-- {kind}: (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)
    return pattern.sub(replacement, text), replaced, unknown


def table(head: Row, rows: Iterable[Row]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
