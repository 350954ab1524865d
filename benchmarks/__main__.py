r"""``python -m benchmarks``: measures suites, and puts their tables into the documentation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from whitenorm.lab.bench import SUITES, BenchError, fill, render, run_bench

ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; 0 if it went well."""
    options = _parser().parse_args(arguments)
    try:
        for suite in options.suite:
            path = run_bench(
                suite,
                options.rounds,
                options.out,
                options.threads,
                lambda line: print(line, flush=True),
                quick=options.quick,
                only=options.only,
                fresh_memory=options.fresh_memory,
            )
            print(*[path, *render(path, options.out)], sep="\n")
        if options.render:
            records = [path for name in SUITES if (path := options.out / f"{name}.json").exists()]
            if not records:
                raise BenchError(f"{options.out} holds no records; measure with --suite first")
            print(f"{options.page}: {', '.join(fill(options.page, records, options.out))}")
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    if not options.suite and not options.render:
        print("nothing to do: give --suite, --render or both", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--suite", choices=list(SUITES), action="append", default=[], help="may be repeated")
    add("--rounds", type=int, help="of each case at least (default: the suite's own)")
    add("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of records")
    add("--threads", type=int, help="of torch (default: as many as there are cores)")
    add("--quick", action="store_true", help="tiny sizes, to see that it works; doesn't count")
    add("--only", metavar="TEXT", help="cases with this in their name alone; doesn't count")
    add("--fresh-memory", action="store_true", help="let the allocator give memory back; noisy")
    add("--render", action="store_true", help="put all records of --out into --page")
    add("--page", type=Path, default=ROOT / "docs" / "performance.md", help="to put them into")
    return parser


if __name__ == "__main__":
    sys.exit(main())
