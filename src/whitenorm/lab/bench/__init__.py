r"""Speed and memory, side by side with what a user would pick instead.

:mod:`~whitenorm.lab.bench.suites` lists what is compared, :mod:`~whitenorm.lab.bench.harness`
measures it, and every table and figure is made from the records alone.
"""

from whitenorm.lab.bench.device import suite as device_suite
from whitenorm.lab.bench.harness import BenchError
from whitenorm.lab.bench.records import fill_page, render, run_suite
from whitenorm.lab.bench.suites import SUITES

__all__ = ["SUITES", "BenchError", "device_suite", "fill_page", "render", "run_suite"]
