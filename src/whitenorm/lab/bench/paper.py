r"""The times in the paper's appendix, ``DBN_Table1`` to ``DBN_Table4``: (training, inference)."""

from __future__ import annotations

__all__ = ["ratio"]

Times = tuple[float, float]

# Seconds an epoch (tables 1 and 2) or an iteration (3 and 4), by network and method.
TABLES: dict[str, dict[str, dict[str, Times]]] = {
    "DBN_Table1": {
        "vgg-a": {
            "bn": (163.68, 11.47),
            "dbn-g8": (707.47, 15.50),
            "dbn-g16": (466.92, 14.41),
            "dbn-g64": (297.25, 13.70),
            "dbn-g256": (440.88, 13.64),
            "dbn-g512": (1004.0, 13.68),
        }
    },
    "DBN_Table2": {
        "res-56": {"bn": (69.53, 4.57), "dbn-scale": (86.80, 5.12)},
        "res-44": {"bn": (55.03, 3.65), "dbn-scale": (72.06, 4.36)},
        "res-32": {"bn": (40.36, 2.80), "dbn-scale": (57.47, 3.33)},
        "res-20": {"bn": (25.97, 1.94), "dbn-scale": (42.87, 2.44)},
        "wrn-40-10": {"bn": (643.94, 25.69), "dbn-scale": (659.55, 26.08)},
        "wrn-28-10": {"bn": (440.0, 36.56), "dbn-scale": (457.0, 38.10)},
    },
    "DBN_Table3": {
        "res-101": {"bn": (1.52, 0.42), "dbn-scale": (4.21, 0.57)},
        "res-50": {"bn": (0.51, 0.19), "dbn-scale": (1.12, 0.25)},
        "res-34": {"bn": (1.21, 0.55), "dbn-scale": (2.04, 0.71)},
        "res-18": {"bn": (0.81, 0.40), "dbn-scale": (1.45, 0.51)},
    },
    "DBN_Table4": {
        "res-101": {"bn": (1.24, 0.35), "dbn-scale": (1.35, 0.37)},
        "res-50": {"bn": (0.69, 0.19), "dbn-scale": (0.80, 0.22)},
        "res-34": {"bn": (0.34, 0.12), "dbn-scale": (0.45, 0.14)},
        "res-18": {"bn": (0.20, 0.07), "dbn-scale": (0.31, 0.09)},
    },
}


def ratio(network: str, method: str, inference: bool = False) -> dict[str, float]:
    """Time against BN by table; empty where the paper has none.

    Example:
        >>> ratio("res-50", "dbn-scale")
        {'DBN_Table3': 2.196, 'DBN_Table4': 1.159}
    """
    return {
        table: round(rows[network][method][inference] / rows[network]["bn"][inference], 3)
        for table, rows in TABLES.items()
        if method != "bn" and method in rows.get(network, {})
    }
