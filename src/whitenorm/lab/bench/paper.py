r"""The times in the paper's appendix, against BN."""

from __future__ import annotations

__all__ = ["ratio"]

# (training, inference): seconds an epoch in tables 1 and 2, an iteration in 3 and 4.
TIMES = {
    "DBN_Table1": {
        "VGG-A": {
            "bn": (163.68, 11.47),
            "dbn-g8": (707.47, 15.50),
            "dbn-g16": (466.92, 14.41),
            "dbn-g64": (297.25, 13.70),
            "dbn-g256": (440.88, 13.64),
            "dbn-g512": (1004.0, 13.68),
        }
    },
    "DBN_Table2": {
        "Res-20": {"bn": (25.97, 1.94), "dbn-scale": (42.87, 2.44)},
        "Res-32": {"bn": (40.36, 2.80), "dbn-scale": (57.47, 3.33)},
        "Res-44": {"bn": (55.03, 3.65), "dbn-scale": (72.06, 4.36)},
        "Res-56": {"bn": (69.53, 4.57), "dbn-scale": (86.80, 5.12)},
        "WRN-28-10": {"bn": (440.0, 36.56), "dbn-scale": (457.0, 38.10)},
    },
    "DBN_Table3": {  # several GPUs
        "Res-18": {"bn": (0.81, 0.40), "dbn-scale": (1.45, 0.51)},
        "Res-34": {"bn": (1.21, 0.55), "dbn-scale": (2.04, 0.71)},
        "Res-50": {"bn": (0.51, 0.19), "dbn-scale": (1.12, 0.25)},
        "Res-101": {"bn": (1.52, 0.42), "dbn-scale": (4.21, 0.57)},
    },
    "DBN_Table4": {  # one GPU
        "Res-18": {"bn": (0.20, 0.07), "dbn-scale": (0.31, 0.09)},
        "Res-34": {"bn": (0.34, 0.12), "dbn-scale": (0.45, 0.14)},
        "Res-50": {"bn": (0.69, 0.19), "dbn-scale": (0.80, 0.22)},
        "Res-101": {"bn": (1.24, 0.35), "dbn-scale": (1.35, 0.37)},
    },
}


def ratio(network: str, method: str, inference: bool = False) -> dict[str, float]:
    """Time against BN by table; empty where the paper has none.

    Example:
        >>> ratio("Res-50", "dbn-scale")
        {'DBN_Table3': 2.196, 'DBN_Table4': 1.159}
    """
    return {
        table: round(rows[network][method][inference] / rows[network]["bn"][inference], 3)
        for table, rows in TIMES.items()
        if method != "bn" and method in rows.get(network, {})
    }
