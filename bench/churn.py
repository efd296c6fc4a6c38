"""A fleet in which members come, go and crash all the time: does anything grow, or get slower?

1,000 members; every 2 seconds one joins or leaves, every 20 seconds one is killed, and another
process times an event again and again. Every ten seconds the tool notes memory, sizes, threads and
open files. It prints how each changes in an hour (least squares over the second half, when caches
are full), what that makes in a day, and event → answer in the first and the last part.

Live heap is what a full collection leaves; it is taken at a third of the time and at the end. The
topics grow until their retention (`protocol/topics.py`) and are shown apart.

An hour: ``python bench/churn.py --minutes 60``. With ``--json`` all samples are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
from bench_system import BenchSystem, Coordinator, configure, family, options, quantile
from live_heap import live_heap_mb
from machines import Crew, Crowd
from meters import Meters, rates, size_of
from probe import GROUP as PROBED

GROUP, TASKS_EACH = "fleet", 10
CHANGE_S, CRASH_S, SAMPLE_S = 2.0, 20.0, 10.0
Sample = dict[str, float]


class Churn:
    """Joins, leaves and crashes at their times.

    Attributes:
        joins, leaves, crashes: how many there were.
    """

    def __init__(self, crowd: Crowd, crew: Crew, members: int) -> None:
        self.joins = self.leaves = self.crashes = 0
        self._crowd, self._crew, self._members = crowd, crew, members
        self._number = members
        self._change_s = self._crash_s = time.monotonic()

    def run_for(self, seconds: float) -> None:
        """Run the members for a while."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            if now - self._crash_s >= CRASH_S:
                self._crash_s += CRASH_S
                self.crashes += 1
                self._crew.drop([self._one()])
            if now - self._change_s >= CHANGE_S:
                self._change_s += CHANGE_S
                self._change()
            self._crowd.turn()

    def _one(self) -> str:
        return self._crowd.rng.choice(self._crew.alive)

    def _change(self) -> None:
        if len(self._crew.alive) >= self._members:
            self.leaves += 1
            self._crew.go([self._one()])
        else:
            self.joins += 1
            self._number += 1
            self._crew.come([f"member-{self._number:06d}"])


def sample(system: BenchSystem, coordinator: Coordinator, meters: Meters) -> Sample:
    """What everything takes now."""
    threads = files = 0
    for process in family(coordinator.process.pid):
        with suppress(psutil.NoSuchProcess):
            threads += process.num_threads()
            files += process.num_fds()
    metrics = coordinator.metrics()
    return {
        **meters.memory(),
        "checkpoint, MB": size_of(system.folder / "checkpoint") / 1e6,
        "checkpoint, files": sum(len(f) for _, _, f in os.walk(system.folder / "checkpoint")),
        "state store, MB": metrics.get("muster_state_bytes", 0.0) / 1e6,
        "job, threads": float(threads),
        "job, open files": float(files),
        "topics, MB": sum(
            segment.stat().st_size for segment in (system.folder / "kafka").rglob("*.log")
        )
        / 1e6,
    }


def live_heap(pid: int) -> float:
    """Megabytes that a full collection leaves in a JVM, or in the JVM below a process."""
    (jvm,) = [p for p in family(pid) if p.name() == "java"]
    return live_heap_mb(jvm.pid)


def slope(at_s: list[float], values: list[float]) -> float:
    """Least squares over the second half: growth in an hour."""
    half = len(values) // 2
    return float(np.polyfit(at_s[half:], values[half:], 1)[0]) * 3600


def measure(args: argparse.Namespace) -> dict[str, object]:
    """Churn for the time given."""
    with BenchSystem(partitions=4) as system:
        coordinator = system.coordinate()
        configure(system, GROUP, TASKS_EACH * args.members)
        configure(system, PROBED, 1, {"initial.rebalance.delay.ms": 0})
        crowd = Crowd(system.clients)
        with crowd, Meters(system, lambda: coordinator) as meters:
            crew = crowd.crew(GROUP, TASKS_EACH * args.members)
            crew.come([f"member-{n:06d}" for n in range(args.members)])
            crowd.settle()
            churn = Churn(crowd, crew, args.members)
            script, output = Path(__file__).with_name("probe.py"), system.folder / "probe.log"
            seconds = 60 * args.minutes
            system.run("probe", str(script), system.address, "100000000", str(seconds))
            began, samples, at_s = time.monotonic(), [], []
            heap: dict[str, list[float]] = {"job": [], "broker": []}
            first = meters.read()
            while (now := time.monotonic() - began) < seconds:
                churn.run_for(SAMPLE_S)
                samples.append(sample(system, coordinator, meters))
                at_s.append(now)
                print(f"{now:.0f} s", samples[-1], file=sys.stderr, flush=True)
                if now > seconds / 3 and not heap["job"]:
                    note_heaps(heap, coordinator, system)
            last = meters.read()
            note_heaps(heap, coordinator, system)
            lines = [line for line in output.read_text().splitlines() if line.startswith("ms ")]
            spent = [float(line.split()[1]) for line in lines]
            crowd.settle()
        part = max(int(len(spent) * min(5 / args.minutes, 0.3)), 1)
        return {
            "minutes": args.minutes,
            "cores": os.cpu_count(),
            "joins, leaves, crashes": [churn.joins, churn.leaves, churn.crashes],
            "overlaps": crowd.counts().overlaps,
            "sessions lost": crowd.losses,
            "costs": rates(first, last),
            "event → answer, first part, ms": _spread(spent[:part]),
            "event → answer, last part, ms": _spread(spent[-part:]),
            "live heap, MB": heap,
            "figures": {
                name: {
                    "first": samples[0][name],
                    "last": samples[-1][name],
                    "an hour": slope(at_s, [each[name] for each in samples]),
                    "in 24 h": 24 * slope(at_s, [each[name] for each in samples]),
                }
                for name in samples[0]
            },
            "samples": samples,
        }


def note_heaps(heap: dict[str, list[float]], coordinator: Coordinator, system: BenchSystem) -> None:
    """Note the live heap of both JVMs."""
    heap["job"].append(live_heap(coordinator.process.pid))
    heap["broker"].append(live_heap(system.broker_pid))


def _spread(spent_ms: list[float]) -> Sample:
    return {f"p{share}": quantile(spent_ms, share / 100) for share in (50, 90, 99)}


def main() -> int:
    """Measure and print; exit code 1 if two members ran a task at once."""
    parser = options(__doc__)
    parser.add_argument("--members", type=int, default=1_000, help="default: 1000")
    parser.add_argument("--minutes", type=float, default=60, help="default: 60")
    parser.add_argument("--json", action="store_true", help="print JSON, with all samples")
    args = parser.parse_args()
    figures = measure(args)
    if args.json:
        print(json.dumps(figures, indent=1))
    else:
        for name, value in figures.items():
            if name == "figures":
                print(f"{'':24} {'first':>10} {'last':>10} {'an hour':>10} {'in 24 h':>10}")
                for what, row in value.items():  # type: ignore[attr-defined]
                    print(f"{what:24}", *(f"{each:10,.1f}" for each in row.values()))
            elif name == "costs":
                print(name, *(f"{what} {each:,.2f}" for what, each in value.items()), sep="\n  ")  # type: ignore[attr-defined]
            elif name != "samples":
                print(name, value, sep=": ")
    return 1 if figures["overlaps"] else 0


if __name__ == "__main__":
    sys.exit(main())
