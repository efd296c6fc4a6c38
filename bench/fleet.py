"""A whole fleet against the real job: what it costs while nothing happens, and how fast it changes.

Thousands of members are real protocol machines (`muster.worker.session`) in this one process
(`machines.py`), beside a real broker and the real job. They are one group, or with ``--groups``
many groups of five, with default settings. A phase with changes ends when every task has one owner
and every member its share:

1. No member: what job and broker cost (the idle floor), and event → answer.
2. All members join together.
3. Nothing happens but heartbeats, evenly spread: what job and broker cost above the floor, and what
   they write.
4. A member of another group joins and leaves repeatedly: event → answer beside the heartbeats.
5. One joins, one leaves, 5 % leave and come back, the configuration changes (1 % more tasks).
6. The job is killed (SIGKILL) and started again: until the next join is answered.

With ``--together`` there is no topic on which members heartbeat apart: all heartbeats go through
the query. With ``--busy`` the probes of 1 and 4 are repeated while another process computes on each
core.

Events are timed by a process of its own (`probe.py`). "tool" is the CPU of this process: all
members together. For the whole run: tasks that two members ran at once (must be 0).

``python bench/fleet.py [--members 1000] [--tasks 10000] [--groups 1] [--json]``
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_system import BenchSystem, configure, options, quantile
from confluent_kafka import Consumer
from machines import Crew, Crowd
from meters import Meters, rates
from probe import GROUP as PROBED

from muster.protocol.events import Join
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.settings import parse_settings
from muster.protocol.topics import TopicKind, topic_name

WARM_UP = 100
"""Events that are not counted: the JVM compiles meanwhile."""
HEARTBEAT_S = parse_settings({}, "sticky").heartbeat_interval_ms / 1000
PROBE_S = 40
"""Longest time for the events of one phase; slow ones are fewer."""
EACH = 5
"""Members of a group where there are many."""
Figures = dict[str, float]


class Trial:
    """One fleet, and the figures of its phases."""

    def __init__(self, system: BenchSystem, args: argparse.Namespace) -> None:
        self._system, self._args = system, args
        self._coordinator = system.coordinate(page="/readyz")
        self.crowd = Crowd(system.clients)
        self._meters = Meters(system, lambda: self._coordinator)
        self.found: dict[str, Figures] = {}
        share = args.tasks // args.groups
        names = [f"group-{n:05d}" for n in range(args.groups)]
        for name in names:
            configure(system, name, share)
        configure(system, PROBED, 1, {"initial.rebalance.delay.ms": 0})
        self._crews = [self.crowd.crew(name, share) for name in names]
        each = args.members // args.groups
        self._names = {
            crew.group: [f"member-{number:05d}" for number in range(each)] for crew in self._crews
        }

    def run(self) -> None:
        """All phases."""
        with self.crowd, self._meters:
            self._idle()
            self._changes("all join together", self._start, per_task=True)
            self._quiet()
            self._change()
            self._kill_job()
        self.found["all of it"] = {
            "overlaps": self.crowd.counts().overlaps,
            "sessions lost": self.crowd.losses,
            "machine's cores": float(os.cpu_count() or 0),
        }

    # ---- phases

    def _idle(self) -> None:
        self._probed(WARM_UP)
        self._probe("event → answer, query idle")
        with self._metered("no member"):
            self.crowd.run_for(self._args.quiet / 2)

    def _start(self) -> None:
        for crew in self._crews:
            crew.come(self._names[crew.group])

    def _quiet(self) -> None:
        self.crowd.scatter(HEARTBEAT_S)
        self.crowd.run_for(3 * HEARTBEAT_S)
        with self._metered("quiet"):
            self.crowd.run_for(self._args.quiet)
        quiet, floor = self.found["quiet"], self.found["no member"]
        for name in ("job", "broker"):
            above = quiet[f"{name}, cores"] - floor[f"{name}, cores"]
            quiet[f"{name}, cores above the floor"] = above
        quiet |= self._meters.memory()
        self._probe("event → answer, fleet heartbeats")

    def _change(self) -> None:
        first, twentieth = self._crews[0], self._twentieth()

        def each(act: str) -> None:
            for crew, names in twentieth:
                getattr(crew, act)(names)

        self._changes("one joins", lambda: first.come(["newcomer"]))
        self._changes("one leaves", lambda: first.go(["newcomer"]))
        self._changes("5 % leave", lambda: each("go"))
        self._changes("5 % come back", lambda: each("come"))
        self._changes("1 % more tasks", lambda: self._grow(first))

    def _twentieth(self) -> list[tuple[Crew, list[str]]]:
        every = [(crew, name) for crew in self._crews for name in self._names[crew.group]][::20]
        chosen: dict[str, list[str]] = {}
        for crew, name in every:
            chosen.setdefault(crew.group, []).append(name)
        return [(crew, chosen[crew.group]) for crew in self._crews if crew.group in chosen]

    def _grow(self, crew: Crew) -> None:
        crew.owned.tasks += max(crew.owned.tasks // 100, 1)
        configure(self._system, crew.group, crew.owned.tasks)

    def _kill_job(self) -> None:
        reader = self._system.tail(topic_name(TopicKind.ASSIGNMENTS))
        with self._timed("SIGKILL of the job → next join answered"):
            os.kill(self._coordinator.process.pid, signal.SIGKILL)
            self._coordinator.process.wait(30)
            join = Join(group=GroupId(PROBED), member=MemberId("P"), incarnation=time.time_ns())
            self._system.write(TopicKind.MEMBERSHIP, join)
            self._coordinator = self._system.coordinate(page="")
            self.crowd.run_until(lambda: self._is_answered(reader), "answered")
        self._coordinator.await_page("/readyz")
        self._changes("after the kill: one joins", lambda: self._crews[0].come(["newcomer"]))

    @staticmethod
    def _is_answered(reader: Consumer) -> bool:
        message = reader.poll(0)
        return message is not None and (message.key() or b"").startswith(PROBED.encode())

    # ---- measuring

    @contextmanager
    def _timed(self, phase: str) -> Iterator[Figures]:
        figures = self.found.setdefault(phase, {})
        began = time.monotonic()
        yield figures
        figures["seconds"] = time.monotonic() - began
        self._tell(phase)

    @contextmanager
    def _metered(self, phase: str) -> Iterator[None]:
        before = self._meters.read()
        yield
        self.found[phase] = rates(before, self._meters.read())
        self._tell(phase)

    def _tell(self, phase: str) -> None:
        told = (f"{name} {value:,.3g}" for name, value in self.found[phase].items())
        print(f"{phase}:", ", ".join(told), file=sys.stderr, flush=True)

    def _changes(self, phase: str, change: Callable[[], None], *, per_task: bool = False) -> None:
        before, records = self.crowd.counts(), self.crowd.records
        with self._timed(phase) as figures:
            change()
            self.crowd.settle()
            now = self.crowd.counts()
            figures["starts"] = now.starts - before.starts
            figures["moves"] = now.moves - before.moves
            figures["records read"] = self.crowd.records - records
            if per_task:
                figures["starts a task"] = figures["starts"] / self._args.tasks

    def _probe(self, phase: str) -> None:
        self.found[phase] = spread(self._probed(self._args.probes))
        self._tell(phase)
        if self._args.busy:
            busy = f"{phase}, another process on each core"
            spinners = [
                self._system.run(f"busy-{n}", "-c", "while True: pass")
                for n in range(os.cpu_count() or 1)
            ]
            self.found[busy] = spread(self._probed(self._args.probes))
            self._tell(busy)
            for spinner in spinners:
                spinner.kill()

    def _probed(self, count: int) -> list[float]:
        """Milliseconds from an event to the first record it causes, for `count` events."""
        output = self._system.folder / "probe.log"
        output.unlink(missing_ok=True)
        script = str(Path(__file__).with_name("probe.py"))
        words = (self._system.address, str(count), str(PROBE_S))
        process = self._system.run("probe", script, *words)
        self.crowd.run_until(lambda: process.poll() is not None, "probed")
        if process.wait(1):
            raise RuntimeError(f"the probe failed:\n{output.read_text()[-2000:]}")
        lines = output.read_text().splitlines()
        return [float(line[3:]) for line in lines if line.startswith("ms ")]


def spread(spent_ms: list[float]) -> Figures:
    """Quantiles of times in ms."""
    figures = {f"p{share}, ms": quantile(spent_ms, share / 100) for share in (50, 90, 99)}
    return figures | {"events": len(spent_ms)}


def table(args: argparse.Namespace, found: dict[str, Figures]) -> str:
    """The figures as a Markdown table."""
    groups = f", {args.groups:,} groups" if args.groups > 1 else ""
    lines = [f"| | {args.members:,} members, {args.tasks:,} tasks{groups} |", "| --- | --: |"]
    for phase, figures in found.items():
        for name, value in figures.items():
            digits = 0 if abs(value) >= 100 or value == int(value) else 2
            lines.append(f"| {phase}: {name} | {value:,.{digits}f} |")
    return "\n".join(lines)


def main() -> int:
    """Measure and print; exit code 1 if two members ran a task at once."""
    parser = options(__doc__)
    parser.add_argument("--members", type=int, help="default: 1000, or five a group")
    parser.add_argument("--tasks", type=int, help="in all groups (default: ten a member)")
    parser.add_argument("--groups", type=int, default=1, help="default: 1")
    parser.add_argument("--partitions", type=int, default=4, help="of each topic (default: 4)")
    parser.add_argument("--quiet", type=float, default=30, help="seconds (default: 30)")
    parser.add_argument("--probes", type=int, default=120, help="events (default: 120)")
    parser.add_argument(
        "--together", action="store_true", help="without a topic of heartbeats: all in membership"
    )
    parser.add_argument("--busy", action="store_true", help="also probe beside busy processes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    args.members = args.members or (1_000 if args.groups == 1 else EACH * args.groups)
    args.tasks = args.tasks or 10 * args.members
    with BenchSystem(partitions=args.partitions, apart=not args.together) as system:
        trial = Trial(system, args)
        trial.run()
    print(json.dumps(trial.found, indent=1) if args.json else table(args, trial.found))
    return 1 if trial.found["all of it"]["overlaps"] else 0


if __name__ == "__main__":
    sys.exit(main())
