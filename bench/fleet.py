"""A whole fleet against the real job: the cost of its start, its changes and its quiet time.

Thousands of members are real protocol machines (`muster.worker.session`) in this one process
(`machines.py`), beside a real broker and the real job. They are one group with default settings. A
phase with changes ends when every task has one owner and every member its share:

0. One worker alone has a group of ten tasks.
1. All members join together.
2. Nothing happens; then a member of another group joins and leaves repeatedly (event → answer).
3. One joins, one leaves, 5 % leave and join again.
4. All leave and join again.
5. A rolling deploy: one member after the other leaves and joins again seconds later, first with a
   plain leave, then with a temporary one.
6. With ``--killed`` all are killed, and others join.

For each phase: seconds, tasks started, tasks moved between members, records read, CPU of the job
and of the broker. For the whole run: tasks that two members ran at once (must be 0).

``python bench/fleet.py [--members 1000] [--tasks 10000] [--json]``
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from machines import Crew
from stage import Coordinator, Stage, cpu_s, next_message, quantile

from muster.protocol.events import GroupConfig, Join, Leave
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TopicKind, topic_name

GROUP, ALONE, PROBED = "fleet", "alone", "probe"
ALONE_TASKS = 10
Figures = dict[str, float]


class Trial:
    """One fleet, and the figures of its phases."""

    def __init__(self, stage: Stage, coordinator: Coordinator, members: int, tasks: int) -> None:
        self._stage = stage
        self._pids = {"job": coordinator.process.pid, "broker": stage.broker_pid}
        self._names = [f"member-{number:05d}" for number in range(members)]
        self.crew = Crew(stage.clients, GROUP, tasks)
        self.found: dict[str, Figures] = {}

    @contextmanager
    def _measured(self, phase: str) -> Iterator[Figures]:
        crew = self.crew
        before = (crew.starts, crew.moves, crew.records)
        spent = {name: cpu_s(pid) for name, pid in self._pids.items()}
        began = time.monotonic()
        figures = self.found.setdefault(phase, {})
        yield figures
        seconds = time.monotonic() - began
        figures["seconds"] = seconds
        now = (crew.starts, crew.moves, crew.records)
        names = ("starts", "moves", "records read")
        figures |= dict(zip(names, (b - a for a, b in zip(before, now, strict=True)), strict=True))
        for name, pid in self._pids.items():
            figures[f"{name}, cores"] = (cpu_s(pid) - spent[name]) / seconds
        print(phase, *(f"{key} {value:,.2f}" for key, value in figures.items()), file=sys.stderr)

    def _changes(self, phase: str, change: Callable[[], None]) -> None:
        with self._measured(phase):
            change()
            self.crew.settle()

    def start(self) -> None:
        """All members join together."""
        self._changes("all join together", lambda: self.crew.come(self._names))

    def alone(self, rounds: int) -> None:
        """One worker joins its own group, gets all tasks and leaves, `rounds` times."""
        spent = []
        with Crew(self._stage.clients, ALONE, ALONE_TASKS) as crew:
            for _ in range(rounds):
                began = time.monotonic()
                crew.come(["W"])
                crew.settle()
                spent.append((time.monotonic() - began) * 1000)
                crew.go(["W"])
                crew.await_gone()
        self.found["one worker alone: join to tasks"] = spread(spent)

    def quiet(self, seconds: float, probes: int) -> None:
        """Nothing happens; then a member of another group joins and leaves meanwhile."""
        with self._measured("quiet"):
            self.crew.run_for(seconds)
        if probes:
            with self._measured("quiet, probed") as figures:
                figures |= spread(list(self._probed(probes)))

    def _probed(self, probes: int) -> Iterator[float]:
        """Milliseconds from an event to the first record it causes."""
        reader = self._stage.tail(topic_name(TopicKind.ASSIGNMENTS))
        group, member = GroupId(PROBED), MemberId("P")
        for number in range(probes // 2):
            incarnation = time.time_ns() + number
            for event in (
                Join(group=group, member=member, incarnation=incarnation),
                Leave(group=group, member=member, incarnation=incarnation),
            ):
                began = time.perf_counter()
                self._stage.write(TopicKind.MEMBERSHIP, event)
                while not (next_message(reader).key() or b"").startswith(PROBED.encode()):
                    pass
                yield (time.perf_counter() - began) * 1000
                self.crew.run_for(0.05)
        reader.close()

    def change(self) -> None:
        """One member joins, one leaves, one in twenty leaves, and those join again."""
        crew, names = self.crew, self._names
        twentieth = names[::20]
        self._changes("one joins", lambda: crew.come(["newcomer"]))
        self._changes("one leaves", lambda: crew.go(["newcomer"]))
        self._changes("5 % leave", lambda: crew.go(twentieth))
        self._changes("they join", lambda: crew.come(twentieth))

    def restart(self) -> None:
        """All members leave; when all have left, they join again."""
        with self._measured("all restart"):
            self.crew.go(self._names)
            self.crew.await_gone()
            self.crew.come(self._names)
            self.crew.settle()

    def roll(self, count: int, away_s: float) -> None:
        """One member after the other leaves and joins again `away_s` seconds later."""
        for temporary, how in ((False, "leave"), (True, "leave for a while")) if count else ():
            phase = f"rolling deploy of {count}: they {how}"
            with self._measured(phase) as figures:
                for name in self._names[:count]:
                    self.crew.go([name], temporary=temporary)
                    self.crew.run_for(away_s)
                    self.crew.come([name])
                    self.crew.settle()
            figures["moves a member"] = figures["moves"] / count

    def kill(self) -> None:
        """All members are killed; as many others join, and start when the first have expired."""
        with self._measured("all killed, others come"):
            self.crew.drop_all()
            self.crew.come([f"other-{number:05d}" for number in range(len(self._names))])
            self.crew.settle()


def spread(spent_ms: list[float]) -> Figures:
    """Median and 99th percentile of times in ms."""
    return {"p50, ms": quantile(spent_ms, 0.5), "p99, ms": quantile(spent_ms, 0.99)}


def configure(stage: Stage, tasks: int) -> None:
    """Configure the groups; the group of the probes has no initial delay."""
    for group, count, values in (
        (GROUP, tasks, {}),
        (ALONE, ALONE_TASKS, {}),
        (PROBED, 1, {"initial.rebalance.delay.ms": 0}),
    ):
        event = GroupConfig(
            group=GroupId(group),
            assignor="sticky",
            settings=parse_settings(values, "sticky"),
            tasks=(Subtopology("0", count),),
        )
        stage.write(TopicKind.CONFIG, event)


def measure(args: argparse.Namespace) -> dict[str, Figures]:
    """All phases, on their own broker and job."""
    with Stage(partitions=args.partitions) as stage:
        coordinator = stage.coordinate(page="/readyz")
        configure(stage, args.tasks)
        trial = Trial(stage, coordinator, args.members, args.tasks)
        trial.alone(args.alone)
        with trial.crew:
            trial.start()
            trial.quiet(args.quiet, args.probes)
            trial.change()
            trial.restart()
            trial.roll(min(args.rolling, args.members), args.away)
            if args.killed:
                trial.kill()
        trial.found["all of it"] = {
            "overlaps": trial.crew.overlaps,
            "sessions lost": trial.crew.losses,
            "machine's cores": float(os.cpu_count() or 0),
        }
        return trial.found


def main() -> int:
    """Measure and print; exit code 1 if two members ran a task at once."""
    parser = argparse.ArgumentParser(
        description=str(__doc__).partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument("--members", type=int, default=1_000, help="default: 1000")
    parser.add_argument("--tasks", type=int, help="default: ten a member")
    parser.add_argument("--partitions", type=int, default=4, help="of each topic (default: 4)")
    parser.add_argument("--alone", type=int, default=7, help="starts of one worker (default: 7)")
    parser.add_argument("--quiet", type=float, default=20, help="seconds (default: 20)")
    parser.add_argument("--probes", type=int, default=60, help="events; 0 = none (default: 60)")
    parser.add_argument("--rolling", type=int, default=10, help="members; 0 = none (default: 10)")
    parser.add_argument("--away", type=float, default=2, help="seconds each (default: 2)")
    parser.add_argument("--killed", action="store_true", help="also all killed (a minute)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    args.tasks = args.tasks or 10 * args.members
    found = measure(args)
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        print(f"{args.members:,} members, {args.tasks:,} tasks")
        for phase, figures in found.items():
            told = (f"{key} {value:,.2f}" for key, value in figures.items())
            print(f"{phase:44}", *told, sep="  ")
    return 1 if found["all of it"]["overlaps"] else 0


if __name__ == "__main__":
    sys.exit(main())
