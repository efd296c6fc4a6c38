"""Restarts and rolling deploys: muster's members beside Kafka's own consumers.

Each fleet settles first, then lives through:

- *all restart*: every member stops in order, and comes back 5 s after the last has stopped;
- *rolling deploy*: one member after the other stops and is back 5 s later, a new one each second;
- *all are killed* (muster only, with ``--killed``): no member says goodbye; others come 5 s later.

Twice: with plain members, and with instance ids (static members), which muster's members say
goodbye to for a while. A member that comes back is a new process in the same place.

Figures: seconds from the last return until every task has an owner and every member its share;
tasks moved to another place; seconds without an owner, summed over the tasks (the 5 s included).

``python bench/restarts.py [--members 200] [--rivals 50] [--kinds plain] [--killed] [--json]``
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence

from bench_system import BenchSystem, configure, options
from machines import Crew, Crowd
from rivals import PROTOCOLS, Consumers

TASKS_EACH = 10
AWAY_S = 5.0
Figures = dict[str, float]


class Muster:
    """A fleet of muster's members, with the methods of `Consumers`."""

    def __init__(self, crowd: Crowd, crew: Crew, *, static: bool) -> None:
        self.crew, self.owned = crew, crew.owned
        self.come = crew.come
        self.run_for, self.await_gone = crowd.run_for, crowd.await_gone
        self._crowd, self._static = crowd, static

    def go(self, names: Sequence[str]) -> None:
        """As a worker does: with an instance id it leaves for a while."""
        self.crew.go(names, temporary=self._static)

    def settle(self) -> None:
        """Run until the group has settled."""
        self._crowd.settle(self.crew)


class Trial:
    """One fleet, and the figures of what it lives through."""

    def __init__(self, fleet: Muster | Consumers, members: int) -> None:
        self._fleet = fleet
        self._names = [f"member-{n:05d}" for n in range(members)]
        self._life = 1
        self.figures: dict[str, Figures] = {}

    def start(self) -> None:
        """All members come."""
        self._fleet.come(self._names)
        self._fleet.settle()

    def restart(self) -> None:
        """All members restart together."""

        def change() -> None:
            self._fleet.go(self._names)
            self._fleet.await_gone()
            self._fleet.run_for(AWAY_S)
            self._return()

        self._measured("all restart", change)

    def roll(self, every_s: float) -> None:
        """One member after the other restarts."""

        def change() -> None:
            began, fleet = time.monotonic(), self._fleet
            before, after = self._names, self._next()
            steps = [(n * every_s, fleet.go, name) for n, name in enumerate(before)]
            steps += [(n * every_s + AWAY_S, fleet.come, name) for n, name in enumerate(after)]
            for at_s, step, name in sorted(steps, key=lambda each: each[0]):
                fleet.run_for(max(began + at_s - time.monotonic(), 0))
                step([name])
            self._names = after

        self._measured(f"rolling deploy, one each {every_s:g} s", change)

    def kill(self, drop: Callable[[Sequence[str]], None]) -> None:
        """All members are killed."""

        def change() -> None:
            drop(self._names)
            self._fleet.run_for(AWAY_S)
            self._return()

        self._measured("all are killed", change)

    def _return(self) -> None:
        self._names = self._next()
        self._fleet.come(self._names)

    def _next(self) -> list[str]:
        self._life += 1
        return [f"{name.partition('.')[0]}.{self._life}" for name in self._names]

    def _measured(self, what: str, change: Callable[[], None]) -> None:
        before = self._fleet.owned.counts()
        change()
        back_s = time.monotonic()
        self._fleet.settle()
        settled_s, now = time.monotonic() - back_s, self._fleet.owned.counts()
        self.figures[what] = {
            "settled after the last return, s": settled_s,
            "moves": now.moves - before.moves,
            "starts": now.starts - before.starts,
            "task-seconds without owner": now.ownerless_s - before.ownerless_s,
            "overlaps": now.overlaps - before.overlaps,
        }
        print(what, self.figures[what], file=sys.stderr, flush=True)


def ours(
    system: BenchSystem, args: argparse.Namespace, members: int
) -> dict[str, dict[str, Figures]]:
    """Muster's members, plain and static."""
    by_kind = {}
    for kind in args.kinds:
        static, group = kind == "static", f"{kind}-{members}"
        configure(system, group, TASKS_EACH * members)
        with Crowd(system.clients) as crowd:
            crew = crowd.crew(group, TASKS_EACH * members, static=static)
            trial = Trial(Muster(crowd, crew, static=static), members)
            trial.start()
            trial.restart()
            if members <= args.rolling:
                trial.roll(args.every)
            if args.killed:
                trial.kill(crew.drop)
            crew.go(crew.alive)
            crowd.await_gone()
            by_kind[f"muster, {members:,} members, {kind}"] = trial.figures
    return by_kind


def theirs(system: BenchSystem, args: argparse.Namespace) -> dict[str, dict[str, Figures]]:
    """Kafka's consumers, plain and static."""
    by_kind = {}
    for name, protocol in PROTOCOLS.items():
        for kind in args.kinds:
            with Consumers(
                system.address, protocol, TASKS_EACH * args.rivals, static=kind == "static"
            ) as fleet:
                trial = Trial(fleet, args.rivals)
                trial.start()
                trial.restart()
                trial.roll(args.every)
                by_kind[f"{name}, {args.rivals} members, {kind}"] = trial.figures
    return by_kind


def main() -> int:
    """Measure and print; exit code 1 if two of muster's members ran a task at once."""
    parser = options(__doc__)
    parser.add_argument("--members", type=int, default=200, help="of muster (default: 200)")
    parser.add_argument("--rivals", type=int, default=50, help="consumers; 0 = none (default: 50)")
    parser.add_argument("--every", type=float, default=1, help="seconds between stops (default: 1)")
    parser.add_argument(
        "--rolling", type=int, default=200, help="largest fleet that is rolled (default: 200)"
    )
    parser.add_argument("--kinds", nargs="+", default=["plain", "static"], help="default: both")
    parser.add_argument("--killed", action="store_true", help="also all killed (a minute each)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    with BenchSystem(partitions=4) as system:
        by_trial = theirs(system, args) if args.rivals else {}
        system.coordinate()
        for members in sorted({args.rivals or args.members, args.members}):
            by_trial |= ours(system, args, members)
    if args.json:
        print(json.dumps(by_trial, indent=1))
    else:
        print(f"{os.cpu_count()} cores")
        for fleet, phases in by_trial.items():
            for what, figures in phases.items():
                shown = (f"{key} {value:,.1f}" for key, value in figures.items())
                print(f"{fleet}: {what}:", *shown, sep="  ")
    mine = [f for fleet, phases in by_trial.items() if "muster" in fleet for f in phases.values()]
    return 1 if any(figures["overlaps"] for figures in mine) else 0


if __name__ == "__main__":
    sys.exit(main())
