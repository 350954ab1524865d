r"""What a run tells on its way, and what it leaves at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Outcome", "Point", "Progress"]

Point = Mapping[str, float | None]
"""The values of a curve at one iteration, by column; None where there is no number."""


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: the fields of a record that aren't known beforehand."""

    status: str
    final: Point
    history: Mapping[str, list[float | None]] = field(default_factory=dict)
    probes: Mapping[str, Mapping[str, list[float | None]]] = field(default_factory=dict)
    arrays: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True)
class Progress:
    """How far a training is: told after every iteration, with the last point of its curve."""

    iteration: int
    total: int
    examples: int
    point: Point = field(default_factory=dict)
