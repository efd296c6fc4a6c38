"""What `muster adopt` costs: one process for many groups, and one rebalance beside Kafka's own.

python bench/governed.py [--groups 200] [--only groups|rounds]

`groups`: a consumer in each of G groups, all governed by one process. After they have settled: its
CPU, memory, threads and connections while nothing happens. Then a second consumer joins some of
the groups, one after the other: how long the governor took to decide each round, and how long it
was from the new consumer's subscription until both had their share.

`rounds`: the same script for a group of three consumers and 12 partitions, governed and not: a
fourth joins, and leaves. How long it took until every partition was owned as in the end, how many
partitions changed their owner, and partition-seconds without an owner.

Needs the extras `adopt` and `broker`, Java, and psutil.
"""

from __future__ import annotations

import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
from bench_system import BenchSystem, cpu_s, options, quantile
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

TOPIC, PARTITIONS = "orders", 12
QUIET_S = 4.0
PATIENCE_S = 90.0
IDLE_S = 30.0
DECIDED = re.compile(r"round \d+ \(\S+\): [1-9]\d* members?; .* decided in (\d+) ms: (.*?) \[")


class Crowd:
    """Ordinary consumers of one process; one thread serves them.

    Attributes:
        owned: partitions of each consumer, by (group, name).
        events: (time in s, group, name, partitions won, partitions given up).
    """

    def __init__(self, address: str, strategy: str) -> None:
        self._address, self._strategy = address, strategy
        self.owned: dict[tuple[str, str], set[int]] = {}
        self.events: list[tuple[float, str, str, set[int], set[int]]] = []
        self._there: dict[tuple[str, str], Consumer] = {}
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def join(self, group: str, name: str) -> float:
        """Start a consumer; returns when it subscribed, in s."""
        self._orders.put(lambda: self._join(group, name))
        return time.monotonic()

    def leave(self, group: str, name: str) -> float:
        """Close a consumer."""
        self._orders.put(lambda: self._leave(group, name))
        return time.monotonic()

    def _join(self, group: str, name: str) -> None:
        who = (group, name)
        consumer = Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": group,
                "client.id": name,
                "partition.assignment.strategy": self._strategy,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 5_000,
                "log_level": 0,
            }
        )
        self.owned[who], self._there[who] = set(), consumer
        consumer.subscribe(
            [TOPIC],
            on_assign=lambda _, parts: self._note(who, parts, ()),
            on_revoke=lambda _, parts: self._note(who, (), parts),
            on_lost=lambda _, parts: self._note(who, (), parts),
        )

    def _leave(self, group: str, name: str) -> None:
        self._there.pop((group, name)).close()
        self.owned.pop((group, name))

    def _note(
        self, who: tuple[str, str], won: Iterable[TopicPartition], lost: Iterable[TopicPartition]
    ) -> None:
        more, less = {p.partition for p in won}, {p.partition for p in lost}
        self.owned[who] = (self.owned[who] | more) - less
        self.events.append((time.monotonic(), *who, more, less))

    def _serve(self) -> None:
        while True:
            while not self._orders.empty():
                self._orders.get()()
            for consumer in list(self._there.values()):
                try:
                    consumer.poll(0)
                except KafkaException as error:
                    print(error, file=sys.stderr)
            time.sleep(0.01)

    def shares(self, group: str) -> list[int]:
        """How many partitions each consumer of a group has, sorted."""
        return sorted(len(owned) for (g, _), owned in self.owned.items() if g == group)

    def settled_s(self, group: str, shares: list[int]) -> float:
        """Wait until a group has these shares and is quiet; the time of its last event."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            last = max((at for at, g, *_ in self.events if g == group), default=0.0)
            if self.shares(group) == shares and time.monotonic() - last > QUIET_S:
                return last
            time.sleep(0.05)
        raise TimeoutError(f"{group}: {self.shares(group)}, not {shares}")

    def cost(self, group: str, since_s: float, until_s: float) -> tuple[int, float]:
        """Partitions that another consumer has now, and partition-seconds without an owner."""
        owner: dict[int, str | None] = {}
        free: dict[int, float] = {}
        at_start: dict[int, str | None] | None = None
        gap_s = 0.0
        for at, g, name, won, lost in self.events:
            if g != group or at > until_s:
                continue
            if at >= since_s and at_start is None:
                at_start = dict(owner)
            for number in lost:
                owner[number], free[number] = None, at
            for number in won:
                owner[number] = name
                begun = free.pop(number, at)
                if at >= since_s:
                    gap_s += at - max(begun, since_s)
        before = at_start if at_start is not None else dict(owner)
        return sum(owner[n] != before.get(n) for n in owner), gap_s


def adopt(system: BenchSystem, groups: list[str], name: str, *more: str) -> int:
    """Start a governor of these groups, and wait until it leads them; its process id."""
    words = [word for group in groups for word in ("--group", group)]
    command = ("-m", "muster.cli.main", "adopt", "--bootstrap-server", system.address, *words)
    process = system.run(name, *command, *(more or ("--fresh", "consumer")))
    log = system.folder / f"{name}.log"
    until = time.monotonic() + PATIENCE_S
    while log.read_text().count("round ") < len(groups) and time.monotonic() < until:
        time.sleep(0.2)
    return process.pid


def decided(log: Path, skip: int = 0) -> list[tuple[int, str]]:
    """How long each round with members took to decide, in ms, and why."""
    decisions = DECIDED.findall(log.read_text(errors="replace"))
    return [(int(ms), why) for ms, why in decisions[skip:]]


def many(system: BenchSystem, count: int) -> None:
    """One process that governs many groups."""
    groups = [f"group-{number}" for number in range(count)]
    crowd = Crowd(system.address, "cooperative-sticky")
    log = system.folder / "many.log"
    pid = adopt(system, groups, "many")
    for group in groups:
        crowd.join(group, "A")
        time.sleep(0.02)
    for group in groups:
        crowd.settled_s(group, [PARTITIONS])
    governor = psutil.Process(pid)
    cpu, broker, begun = cpu_s(pid), cpu_s(system.broker_pid), time.monotonic()
    time.sleep(IDLE_S)
    span = time.monotonic() - begun
    idle = 100 * (cpu_s(pid) - cpu) / span
    print(f"{count} groups, one consumer each, {os.cpu_count()} cores; nothing happens:")
    print(f"  governor: CPU {idle:.1f} % of a core, {governor.memory_info().rss / 2**20:.0f} MiB,")
    print(f"    {len(governor.net_connections())} connections, {governor.num_threads()} threads")
    serving = 100 * (cpu_s(system.broker_pid) - broker) / span
    print(f"  broker, all consumers included: CPU {serving:.1f} %")
    known = len(decided(log))
    took = []
    for group in groups[:: max(1, count // 10)]:
        begun = crowd.join(group, "B")
        took.append(crowd.settled_s(group, [PARTITIONS // 2] * 2) - begun)
    rounds = decided(log, known)
    times = [ms for ms, _ in rounds]
    here = sum("the governor decided" in why for _, why in rounds)
    print(
        f"  a second consumer joins {len(took)} of them, one after the other: {len(rounds)} rounds,"
    )
    print(
        f"    decided in {quantile(times, 0.5)} ms (median), {max(times)} ms (most);"
        f" {here} without the coordinator"
    )
    print(
        f"    both have their share after {quantile(took, 0.5):.1f} s (median),"
        f" {max(took):.1f} s (most)"
    )


def rounds(system: BenchSystem) -> None:
    """One rebalance, governed and not."""
    print("\n3 consumers, 12 partitions; s until settled, partitions moved, partition-s unowned:")
    for strategy in ("range", "cooperative-sticky"):
        crowd = Crowd(system.address, strategy)
        for how in ("Kafka alone", "governed"):
            group = f"{strategy}-{how[:5].strip()}"
            if how == "governed":
                adopt(system, [group], group)
            for name in "ABC":
                crowd.join(group, name)
            crowd.settled_s(group, [4, 4, 4])
            cells = []
            for act, shares in ((crowd.join, [3, 3, 3, 3]), (crowd.leave, [4, 4, 4])):
                begun = act(group, "D")
                ended = crowd.settled_s(group, shares)
                moved, gap_s = crowd.cost(group, begun, ended)
                cells.append(f"{act.__name__} {ended - begun:.1f} s, {moved} moved, {gap_s:.1f}")
            print(f"  {strategy:18} {how:12} {'; '.join(cells)}", flush=True)


def main() -> None:
    """Print both tables."""
    parser = options(__doc__)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--only", choices=("groups", "rounds"))
    args = parser.parse_args()
    with BenchSystem() as system:
        system.create(NewTopic(TOPIC, PARTITIONS, 1))
        system.coordinate()
        if args.only != "rounds":
            many(system, args.groups)
        if args.only != "groups":
            rounds(system)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
