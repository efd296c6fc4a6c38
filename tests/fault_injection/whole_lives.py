"""Many whole lives in one command: `python -m fault_injection.whole_lives`, with a report.

First runs with faults of every kind (`runs.py`), until they have opened so many generations; then
days of a fleet (`usual_days.py`), for so many generations too; then lives with quarantines and
signing keys (`set_aside_and_signed.py`); then random lives (`muster.random_lives`), in which every
group must come to rest and keep every promise of its assignor. What breaks is made small and
printed. The exit code is 1 then.

With `--keep` the command writes now and then how far it is. If it is ended, by whatever, the next
one goes on from there; a run that was broken is played once more first. Ctrl-C and SIGTERM end it
in order, with a report of what was played; the exit code is 128 and the signal's number. A second
signal ends it at once.
"""

from __future__ import annotations

import argparse
import pickle
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Generic, NamedTuple, TypeVar

from fault_injection import faults, runs, set_aside_and_signed, usual_days
from fault_injection.fault_run import FaultRun
from fault_injection.processor_run import ProcessorRun

from muster.protocol.settings import CONNECT_ASSIGNORS
from muster.random_lives import lives, smallest
from muster.random_lives.random_scenario import ASSIGNORS

SEED = 2_000_000
_Sums = TypeVar("_Sums", runs.Tally, lives.Tally)
_One = TypeVar("_One", runs.Result, lives.Life)


class Stop:
    """Whether a signal has asked the command to end.

    Attributes:
        number: of the signal; 0 = none came.
    """

    number = 0

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Note SIGINT and SIGTERM; a second one does what it does by itself."""
        before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

        def note(number: int, _frame: FrameType | None) -> None:
            self.number = number
            signal.signal(number, signal.SIG_DFL)

        for each in before:
            signal.signal(each, note)
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


class Progress(Generic[_Sums]):
    """How far a part of the work is.

    Attributes:
        tally: the sums so far.
        settled: runs that kept all laws, by the assignor of the beginning.
        seed: of the next run or life.
        seconds: spent so far.
    """

    def __init__(self, seed: int, tally: _Sums, file: Path | None) -> None:
        self.tally = tally
        self.settled: Counter[str] = Counter()
        self.first = self.seed = seed
        self.seconds = 0.0
        self._file = file
        if file is not None and file.exists():
            with file.open("rb") as opened:
                kept = pickle.load(opened)  # a file of this command
            if kept["first"] == seed:
                vars(self).update(kept)

    def save(self) -> None:
        """Write it to its file."""
        if self._file is None:
            return
        part = self._file.with_suffix(".part")
        kept = {name: value for name, value in vars(self).items() if name != "_file"}
        with part.open("wb") as opened:
            pickle.dump(kept, opened)
        part.replace(self._file)


class Report:
    """The report: printed now and then, and written to a file at the end.

    Attributes:
        lines: what it says so far.
        stop: whether the command was asked to end.
    """

    def __init__(self, file: Path | None, every_s: float, stop: Stop) -> None:
        self.lines: list[str] = []
        self.stop = stop
        self._file = file
        self._every_s = every_s
        self._told = time.monotonic()

    def add(self, line: str) -> None:
        """Add lines and print them."""
        self.lines.append(line)
        print(line, flush=True)
        if self._file is not None:
            self._file.write_text("\n".join(self.lines) + "\n", encoding="utf-8")

    def watched(
        self, each: Iterable[_One], progress: Progress[_Sums], line: Callable[[_Sums], str]
    ) -> Iterator[_One]:
        """Yield each one; print and save how far it is from time to time, and at the end.

        A signal ends it between two of them.

        Args:
            each: results of runs or lives.
            progress: what to save; it is at the next seed when one has been yielded.
            line: tally → what a line says of the progress.
        """
        began = self._told = time.monotonic()
        before = progress.seconds
        results = iter(each)
        while not self.stop.number:
            try:
                one = next(results, None)
            except BrokenProcessPool:
                if self.stop.number:  # the signal went to the processes of the pool, too
                    break
                raise
            if one is None:
                break
            yield one
            progress.seed = one.seed + 1
            progress.seconds = before + time.monotonic() - began
            if time.monotonic() - self._told >= self._every_s:
                self._told = time.monotonic()
                progress.save()
                rate = progress.tally.generations / max(progress.seconds, 0.001)
                print(f"  {line(progress.tally)}, {rate:,.0f} a second", flush=True)
        progress.save()


def _spent(progress: Progress[_Sums], processes: int) -> str:
    rate = progress.tally.generations / max(progress.seconds, 0.001)
    return f"{progress.seconds:,.0f} s, {processes} processes, {rate:,.0f} generations a second"


class Kind(NamedTuple):
    """A kind of runs.

    Attributes:
        what: its name in the report.
        file: where `--keep` has how far it is.
        invent: seed → the faults of a run.
        world: the kind of its runs.
    """

    what: str
    file: str
    invent: runs.Invent
    world: runs.World = FaultRun


FAULTS = Kind("runs with faults", "faults.kept", runs.stream)
DAYS = Kind("days of a fleet", "days.kept", usual_days.day)
SET_ASIDE = Kind(
    "lives with quarantines and keys", "set_aside.kept", set_aside_and_signed.life, ProcessorRun
)


def run_faults(
    report: Report, kind: Kind, seed: int, generations: int, processes: int, keep: Path | None
) -> bool:
    """Play runs of a kind; returns whether all laws held."""
    progress = Progress(seed, runs.Tally(), keep and keep / kind.file)
    tally, settled = progress.tally, progress.settled
    if tally.broken is not None:  # of a command before; the code may have been mended since
        again = runs.played(tally.broken.seed, kind.invent, kind.world)
        tally.broken = again.broken
        settled[faults.ASSIGNORS[faults.beginning(again.seed).assignor]] += again.broken is None
    if tally.generations < generations and tally.broken is None:
        rest = generations - tally.generations
        results = runs.results(progress.seed, rest, processes, kind.invent, kind.world)

        def so_far(sums: runs.Tally) -> str:
            return f"{sums.generations:,} of {generations:,} generations, {sums.runs:,} runs"

        for result in report.watched(results, progress, so_far):
            tally.add(result)
            name = faults.ASSIGNORS[faults.beginning(result.seed).assignor]
            settled[name] += result.broken is None
    report.add(f"{kind.what}, seeds {seed:,} to {progress.seed - 1:,}:\n{tally}")
    kinds = ", ".join(f"{settled[name]:,} {name}" for name in faults.ASSIGNORS)
    report.add(f"settled, by the assignor of the beginning: {kinds}")
    report.add(_spent(progress, processes))
    if tally.broken is not None:
        report.add(f"a law is broken: {tally.broken}")
    return tally.broken is None


def run_lives(report: Report, seed: int, count: int, processes: int, keep: Path | None) -> bool:
    """Play random lives; returns whether all promises were kept and every assignor had some."""
    progress = Progress(seed, lives.Tally(), keep and keep / "lives.kept")
    tally = progress.tally
    rest = seed + count - progress.seed

    def so_far(sums: lives.Tally) -> str:
        return f"{sums.lives.total():,} of {count:,} lives"

    played = lives.lives(progress.seed, rest, processes=processes) if rest > 0 else ()
    for life in report.watched(played, progress, so_far):
        tally.add(life)
    report.add(f"random lives, seeds {seed:,} to {progress.seed - 1:,}:\n{tally}")
    report.add(_spent(progress, processes))
    for life in tally.broken:
        report.add(str(life))
    if tally.broken:
        report.add(smallest.smallest(tally.broken[0]))
    missing = sorted({*ASSIGNORS, *CONNECT_ASSIGNORS} - {*tally.lives})
    if missing and count and not report.stop.number:
        report.add(f"no life of {', '.join(missing)}: play more")
    return not tally.broken and (not missing or bool(report.stop.number))


def main() -> int:
    """Play the lives that the command line asks for."""
    parser = argparse.ArgumentParser(prog="fault_injection.whole_lives", description=__doc__)
    parser.add_argument("--generations", type=int, default=1_000_000, help="under faults")
    parser.add_argument("--days", type=int, default=100_000, help="generations in days of a fleet")
    parser.add_argument(
        "--set-aside", type=int, default=20_000, help="generations with quarantines and keys"
    )
    parser.add_argument("--lives", type=int, default=20_000, help="that must come to rest")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=SEED, help="of the first run and life")
    parser.add_argument("--report", type=Path, help="file for the report")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between lines")
    parser.add_argument("--keep", type=Path, help="folder for how far it is; none = not kept")
    given = parser.parse_args()
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    stop = Stop()
    report = Report(given.report, given.every, stop)
    rest = (given.processes, given.keep)
    with stop.heard():
        kept = run_faults(report, FAULTS, given.seed, given.generations, *rest)
        if given.days and kept and not stop.number:
            kept = run_faults(report, DAYS, given.seed, given.days, *rest)
        if given.set_aside and kept and not stop.number:
            kept = run_faults(report, SET_ASIDE, given.seed, given.set_aside, *rest)
        if given.lives and not stop.number:
            kept &= run_lives(report, given.seed, given.lives, *rest)
    if stop.number:
        again = "the same command goes on from here" if given.keep else "not kept (--keep)"
        report.add(f"ended by {signal.Signals(stop.number).name}; {again}")
    report.add("every law and every promise held" if kept else "something is broken: see above")
    return (128 + stop.number if stop.number else 0) if kept else 1


if __name__ == "__main__":
    sys.exit(main())
