r"""Speed and memory, side by side with what a user would pick instead.

Alternatives are timed in turns within one run; a run leaves one JSON record, and every table and
figure is made from such records alone.
"""

from whitenorm.lab.bench.pages import fill, render
from whitenorm.lab.bench.run import BenchError, run_bench
from whitenorm.lab.bench.suites import SUITES

__all__ = ["SUITES", "BenchError", "fill", "render", "run_bench"]
