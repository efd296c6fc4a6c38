"""Time from an event to its assignment, and until a whole fleet has settled.

All figures are of one run, on one broker and one machine:

1. *event → published assignment*: a member joins and leaves repeatedly; the time from the produce
   call to the record read back. The stateless pass-through (Kafka → Spark → Kafka, no Python), and
   with ``--operator`` one through a stateful operator in Python that copies its rows, run at the
   same time and are probed in turn, so the ratios hold on a noisy machine too.
2. *join → settled* and *leave → settled* for 10 members and 900 tasks, for muster and for Kafka's
   two cooperative protocols with confluent-kafka consumers, all with default timings.

``python bench/latency.py [--events 200] [--rounds 5] [--json]``
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench_system import BenchSystem, configure, next_message, quantile
from confluent_kafka.admin import NewTopic
from ownership import Ownership
from rivals import PROTOCOLS, Consumers

from muster import Worker
from muster.protocol.events import Join, Leave
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.topics import TopicKind, topic_name

BLOCK = 25
"""Probes of one system before the other is probed."""
MEMBERS, TASKS = 10, 900
QUICK = {"initial.rebalance.delay.ms": 0}


def probe_muster(system: BenchSystem, events: int) -> list[float]:
    """Milliseconds from an event to the first record it causes."""
    reader = system.tail(topic_name(TopicKind.ASSIGNMENTS))
    group, member = GroupId("probe"), MemberId("P")
    spent: list[float] = []
    for number in range(events // 2):
        incarnation = time.time_ns() + number
        for event in (
            Join(group=group, member=member, incarnation=incarnation),
            Leave(group=group, member=member, incarnation=incarnation),
        ):
            began = time.perf_counter()
            system.write(TopicKind.MEMBERSHIP, event)
            next_message(reader)
            spent.append((time.perf_counter() - began) * 1000)
    reader.close()
    return spent


def probe_passthrough(system: BenchSystem, events: int, name: str = "pass-through") -> list[float]:
    """Milliseconds from a record to its copy."""
    reader = system.tail(f"{name}-copies")
    spent: list[float] = []
    for _ in range(events):
        began = time.perf_counter()
        system.producer.produce(f"{name}-originals", key=b"k", value=b"v" * 60)
        system.producer.flush()
        next_message(reader)
        spent.append((time.perf_counter() - began) * 1000)
    reader.close()
    return spent


class Workers:
    """A fleet of muster's workers; `come`, `go` and `settle` as `Consumers` has them."""

    def __init__(self, system: BenchSystem) -> None:
        configure(system, "fleet", TASKS, QUICK)
        self._address = system.address
        self._owned = Ownership(TASKS)
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.go(list(self._workers))

    def come(self, names: Sequence[str]) -> None:
        """Start workers."""
        for name in names:
            self._owned.come(name)
            self._workers[name] = Worker(
                group="fleet",
                member_id=name,
                bootstrap_servers=self._address,
                on_assigned=lambda tasks, _, name=name: self._owned.start(name, tasks),
                on_revoked=lambda tasks, _, name=name: self._owned.stop(name, tasks),
            )
            self._workers[name].start()

    def go(self, names: Sequence[str]) -> None:
        """Close workers."""
        for name in names:
            self._workers.pop(name).close()
            self._owned.go(name)

    def settle(self) -> None:
        """Wait until settled."""
        self._owned.await_shared_out(len(self._workers))


def settle_times(fleet: Workers | Consumers, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds until settled after a join, and after a leave, `rounds` times each."""
    joins: list[float] = []
    leaves: list[float] = []
    with fleet:
        fleet.come([f"member-{n}" for n in range(MEMBERS)])
        fleet.settle()
        for number in range(rounds):
            for change, spent in ((fleet.come, joins), (fleet.go, leaves)):
                began = time.perf_counter()
                change([f"newcomer-{number}"])
                fleet.settle()
                spent.append(time.perf_counter() - began)
    return joins, leaves


def start_passthrough(system: BenchSystem, name: str, *words: str) -> None:
    """Start a job that copies a topic."""
    source, target = f"{name}-originals", f"{name}-copies"
    system.create(NewTopic(source, 2, 1), NewTopic(target, 1, 1))
    script = str(Path(__file__).with_name("passthrough.py"))
    system.run(name, script, system.address, source, target, str(system.folder / name), *words)


def measure(events: int, rounds: int, warm_up: int, operator: bool) -> dict[str, dict[str, float]]:
    """All measurements, as name → figures."""
    with BenchSystem() as system:
        configure(system, "probe", 1, QUICK)
        system.coordinate()
        others = {"pass-through": ()} | (
            {"operator that copies": ("stateful",)} if operator else {}
        )
        for name, words in others.items():
            start_passthrough(system, name.replace(" ", "-"), *words)
        spent = _probed(system, others, events, warm_up)
        figures = {f"{name}, ms": _spread(values) for name, values in spent.items()}
        ours = figures["event to assignment, ms"]
        for name in others:
            theirs = figures[f"{name}, ms"]
            figures[f"ratio to the {name}"] = {q: ours[q] / theirs[q] for q in ("p50", "p99")}
        fleets = {"muster": settle_times(Workers(system), rounds)}
        for name, protocol in PROTOCOLS.items():
            fleets[name] = settle_times(Consumers(system.address, protocol, TASKS), rounds)
    for name, (joins, leaves) in fleets.items():
        figures[f"join until settled, s: {name}"] = _spread(joins)
        figures[f"leave until settled, s: {name}"] = _spread(leaves)
    for what in ("join", "leave"):
        best = min(figures[f"{what} until settled, s: {name}"]["p50"] for name in PROTOCOLS)
        ours_s = figures[f"{what} until settled, s: muster"]["p50"]
        figures[f"{what}: times faster than the better of the two"] = {"p50": best / ours_s}
    return figures


def _probed(
    system: BenchSystem, others: Sequence[str], events: int, warm_up: int
) -> dict[str, list[float]]:
    """Milliseconds of each event, the systems in turn."""
    probes = {"event to assignment": partial(probe_muster, system)} | {
        name: partial(probe_passthrough, system, name=name.replace(" ", "-")) for name in others
    }
    for probe in probes.values():
        probe(warm_up)
    spent: dict[str, list[float]] = {name: [] for name in probes}
    while len(spent["event to assignment"]) < events:
        for name, probe in probes.items():
            spent[name] += probe(2 * (BLOCK // 2))
    return spent


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"p50": quantile(values, 0.5), "p99": quantile(values, 0.99), "count": len(values)}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Latency of muster, beside what it stands on.")
    parser.add_argument("--events", type=int, default=200, help="probes counted (default: 200)")
    parser.add_argument("--warm-up", type=int, default=200, help="probes before (default: 200)")
    parser.add_argument("--rounds", type=int, default=5, help="joins and leaves (default: 5)")
    parser.add_argument(
        "--operator", action="store_true", help="also an operator in Python that copies its rows"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    by_setup = measure(args.events, args.rounds, args.warm_up, args.operator)
    if args.json:
        print(json.dumps(by_setup, indent=1))
        return 0
    for name, figures in by_setup.items():
        print(f"{name:48}", *(f"{key} {value:9.3f}" for key, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
