"""Many whole lives in one command: `python -m fault_injection.whole_lives`, with a report.

First runs with faults of every kind (`runs.py`), until they have opened so many generations; then
random lives (`muster.simulation.lives`), in which every group must come to rest and keep every
promise of its assignor. What breaks is made small and printed. The exit code is 1 then.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from fault_injection import faults, runs
from fault_injection.runs import Result, Tally

from muster.cli import lives
from muster.simulation.lives import ASSIGNORS

SEED = 2_000_000
_One = TypeVar("_One")


class Report:
    """The report: printed now and then, and written to a file at the end."""

    def __init__(self, file: Path | None, every_s: float) -> None:
        self.lines: list[str] = []
        self._file = file
        self._every_s = every_s
        self._told = time.monotonic()

    def add(self, line: str) -> None:
        """Add lines and print them."""
        self.lines.append(line)
        print(line, flush=True)
        if self._file is not None:
            self._file.write_text("\n".join(self.lines) + "\n", encoding="utf-8")

    def watched(self, each: Iterator[_One], line: Callable[[], str]) -> Iterator[_One]:
        """Yield each one; print a line about all so far from time to time."""
        for one in each:
            yield one
            if time.monotonic() - self._told >= self._every_s:
                self._told = time.monotonic()
                print(line(), flush=True)


def run_faults(report: Report, seed: int, generations: int, processes: int) -> bool:
    """Play runs with faults; returns whether all laws held."""
    tally, began = Tally(), time.monotonic()
    settled: Counter[str] = Counter()
    results = runs.results(seed, generations, processes)

    def line() -> str:
        return f"  {tally.generations:,} of {generations:,} generations, {tally.runs:,} runs"

    result: Result
    for result in report.watched(results, line):
        tally.add(result)
        settled[faults.ASSIGNORS[result.seed % len(faults.ASSIGNORS)]] += result.broken is None
    report.add(f"runs with faults, seeds {seed:,} to {seed + tally.runs - 1:,}:\n{tally}")
    kinds = ", ".join(f"{settled[name]:,} {name}" for name in faults.ASSIGNORS)
    report.add(f"settled, by the assignor of the beginning: {kinds}")
    report.add(f"{time.monotonic() - began:,.0f} s, {processes} processes")
    if tally.broken is not None:
        report.add(f"a law is broken: {tally.broken}")
    return tally.broken is None


def run_lives(report: Report, seed: int, count: int, processes: int) -> bool:
    """Play random lives; returns whether all promises were kept and every assignor had some."""
    tally, began = lives.Tally(), time.monotonic()

    def line() -> str:
        return f"  {tally.lives.total():,} of {count:,} lives"

    for life in report.watched(lives.lives(seed, count, processes=processes), line):
        tally.add(life)
    report.add(f"random lives, seeds {seed:,} to {seed + count - 1:,}:\n{tally}")
    report.add(f"{time.monotonic() - began:,.0f} s, {processes} processes")
    for life in tally.broken:
        report.add(str(life))
    if tally.broken:
        report.add(lives.smallest(tally.broken[0]))
    missing = sorted(set(ASSIGNORS) - set(tally.lives))
    if missing and count:
        report.add(f"no life of {', '.join(missing)}: play more")
    return not tally.broken and not missing


def main() -> int:
    """Play the lives that the command line asks for."""
    parser = argparse.ArgumentParser(prog="fault_injection.whole_lives", description=__doc__)
    parser.add_argument("--generations", type=int, default=1_000_000, help="under faults")
    parser.add_argument("--lives", type=int, default=20_000, help="that must come to rest")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=SEED, help="of the first run and life")
    parser.add_argument("--report", type=Path, help="file for the report")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between lines")
    given = parser.parse_args()
    report = Report(given.report, given.every)
    kept = run_faults(report, given.seed, given.generations, given.processes)
    kept &= not given.lives or run_lives(report, given.seed, given.lives, given.processes)
    report.add("every law and every promise held" if kept else "something is broken: see above")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
