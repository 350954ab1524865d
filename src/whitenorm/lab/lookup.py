r"""Names, options and values that must be known: one wording for the error if they aren't."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

_Row = TypeVar("_Row")
_Value = TypeVar("_Value")


def look_up(table: Mapping[str, _Row], kind: str, name: str) -> _Row:
    """The row of that name; ``kind`` says in the error what the table holds."""
    if name not in table:
        raise ValueError(f"unknown {kind} {name!r}; there are {', '.join(table)}")
    return table[name]


def check_options(kind: str, name: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises a ValueError that names the options which a row doesn't have."""
    known = list(known)
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(
            f"{kind} {name!r} has no option {', '.join(map(repr, unknown))}; "
            f"it has {', '.join(known) or 'none'}"
        )


def choose(option: str, value: _Value, choices: Iterable[_Value]) -> _Value:
    """The value, if it is one of the choices."""
    if value not in (choices := list(choices)):
        raise ValueError(f"{option} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value
