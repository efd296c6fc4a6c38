"""The long search: `python -m exploration.run`, two scenarios at a time, each in its own process.

A search that is cut off is kept in a file, and the next run with the same `--keep` goes on from it.
The rows it prints are those of the table in README.md.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import as_completed
from functools import partial
from pathlib import Path

from exploration.exact import Exact
from exploration.explore import Exploration, Found
from exploration.reduction import Blocks
from exploration.scenarios import SCENARIOS
from exploration.steps import System

from muster import parallel

HEAD = "| scenario | states | steps | depth | all | seconds | states a second |\n|" + " --- |" * 7


def search(
    name: str,
    states: int | None,
    seconds: float | None,
    keep: Path | None,
    kind: type[System] = Blocks,
) -> Found:
    """Explore a scenario.

    Args:
        name: of the scenario.
        states: at which it stops; None = none.
        seconds: of one core, after which it stops; None = never.
        keep: folder of the files of searches that were cut off; None = none are kept.
        kind: `Blocks`, or `Exact` for single steps that leave nothing out.
    """
    file = None if keep is None else keep / f"{list(SCENARIOS).index(name):02d}.search"
    goes_on = file is not None and file.exists()
    fresh = Exploration(SCENARIOS[name], kind)
    exploration = Exploration.resumed(file) if file and goes_on else fresh
    if (exploration.scenario, exploration.kind) != (SCENARIOS[name], kind):
        exploration = fresh
    found = exploration.run(states, seconds)
    if file is not None and not found.law:
        exploration.save(file)
    return found


def row(name: str, found: Found) -> str:
    """A row of the table."""
    rate = found.states / max(found.seconds, 0.001)
    return (
        f"| {name} | {found.states:,} | {found.steps:,} | {found.depth} | "
        f"{'yes' if found.complete else 'no'} | {found.seconds:,.0f} | {rate:,.0f} |"
    )


def main() -> int:
    """Explore scenarios; 1 = a law is broken."""
    parser = argparse.ArgumentParser(prog="exploration.run", description=__doc__)
    parser.add_argument("scenario", nargs="*", help="part of a scenario's name; none = all")
    parser.add_argument("--states", type=int, help="at which a search stops")
    parser.add_argument("--seconds", type=float, help="of one core, after which a search stops")
    parser.add_argument("--single", action="store_true", help="single steps, nothing left out")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder for searches that are cut off")
    given = parser.parse_args()
    parts = given.scenario or [""]
    names = [name for name in SCENARIOS if any(part in name for part in parts)]
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    work = partial(search, states=given.states, seconds=given.seconds, keep=given.keep)
    work = partial(work, kind=Exact if given.single else Blocks)
    states = broken = 0
    print(HEAD, flush=True)
    # A process a scenario: what one has computed takes memory and does not help another.
    with parallel.pool(given.processes, tasks_each=1) as pool:
        waiting = {pool.submit(work, name): name for name in names}
        for done in as_completed(waiting):
            found = done.result()
            print(row(waiting[done], found), flush=True)
            states += found.states
            broken += bool(found.law)
            if found.law:
                print("\n".join((found.law, *found.story)), flush=True)
    print(f"{states:,} states of {len(names)} scenarios, {broken} with a broken law")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
