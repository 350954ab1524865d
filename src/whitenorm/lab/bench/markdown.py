r"""Cells of tables in Markdown."""

from __future__ import annotations

from typing import Any

__all__ = [
    "cell",
    "label",
    "milliseconds",
    "ratio_of",
    "size_text",
    "with_quartiles",
]


def label(name: str) -> str:
    """An alternative in words.

    Example:
        >>> label("dbn-all-g16, folded"), label("loop-g8"), label("bn-extra-conv")
        ('DBN everywhere G16, folded', 'loop over eigh G8', 'BN, extra 3x3')
    """
    for key, words in _WORDS.items():
        name = name.replace(key, words)
    return name.replace("-g", " G")


_WORDS = {
    "bn-extra-conv": "BN, extra 3x3",
    "dbn-scale": "DBN-scale",
    "dbn-all": "DBN everywhere",
    "dbn": "DBN",
    "bn": "BN",
    "loop": "loop over eigh",
    "newton": "Newton-Schulz",
    "conv": "3x3 convolution",
}


def ratio_of(case: dict[str, Any], name: str, reference: str, quantity: str) -> dict[str, float]:
    """Median and quartiles of the ratio of two alternatives in one quantity."""
    found: dict[str, float] = case["alternatives"][name]["ratios"][reference][quantity]
    return found


def cell(
    case: dict[str, Any],
    name: str,
    reference: str,
    quantity: str = "both",
    quartiles: bool = False,
    digits: int = 2,
) -> str:
    """A ratio, or "-" where there is none to be had."""
    known = case["alternatives"]
    if name not in known or reference not in known[name]["ratios"]:
        return "-"
    ratio = ratio_of(case, name, reference, quantity)
    return with_quartiles(ratio, digits) if quartiles else f"{ratio['median']:.{digits}f}"


def with_quartiles(ratio: dict[str, float], digits: int = 2) -> str:
    """A ratio and its quartiles."""
    return (
        f"**{ratio['median']:.{digits}f}** ({ratio['q1']:.{digits}f} to {ratio['q3']:.{digits}f})"
    )


def milliseconds(case: dict[str, Any], name: str, quantity: str) -> str:
    """What an alternative took."""
    return f"{1e3 * case['alternatives'][name]['summary'][quantity]['median']:.3g}"


def size_text(count: float) -> str:
    """Bytes."""
    return f"{count / 2**20:.4g} MiB"
