"""How long until new partitions of a topic are worked on.

python bench/growth.py [--times 10]

Two groups read a topic each. The first are two of muster's workers, whose tasks come from Kafka
(`muster config set --topic`); discovery runs beside the clock, as it does by default. The second
are two ordinary consumers that `muster adopt` governs. Again and again a topic gets one partition
more. Measured is the time from Kafka's acknowledgement of the new partition until the worker's
`on_assigned`, or the consumer's callback, names it. Growths are apart by a random time, so that no
look of either is met on purpose.

Needs the extras `adopt` and `broker`, Java, and psutil.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import time
from collections.abc import Callable

from bench_system import BenchSystem, options, quantile, until
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from governed import TOPIC, Crowd, adopt

from muster import Worker
from muster.cli.main import main as muster

FIRST = 4
PATIENCE_S = 60.0


def grow(admin: AdminClient, topic: str, times: int, owned: Callable[[], set[int]]) -> list[float]:
    """Add one partition at a time; how long each took until it was owned, in s."""
    took = []
    until(lambda: len(owned()) == FIRST, PATIENCE_S)
    for count in range(FIRST + 1, FIRST + 1 + times):
        time.sleep(random.uniform(4.0, 7.0))
        admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)
        made = time.monotonic()
        owned_s = until(lambda count=count: count - 1 in owned(), PATIENCE_S)  # type: ignore[misc]
        took.append(owned_s - made)
    return took


def workers(system: BenchSystem, admin: AdminClient, times: int) -> list[float]:
    """Two of muster's workers."""
    held: dict[str, set[int]] = {"A": set(), "B": set()}
    where = ("--bootstrap-server", system.address)
    with contextlib.redirect_stdout(io.StringIO()):
        muster(["config", "set", "--group", "parcels", "--topic", "parcels", *where])

    def worker(name: str) -> Worker:
        return Worker(
            group="parcels",
            member_id=name,
            bootstrap_servers=system.address,
            on_assigned=lambda tasks, _: held[name].update(task.number for task in tasks),
            on_revoked=lambda tasks, _: held[name].difference_update(t.number for t in tasks),
        )

    with worker("A"), worker("B"):
        return grow(admin, "parcels", times, lambda: held["A"] | held["B"])


def consumers(system: BenchSystem, admin: AdminClient, times: int) -> list[float]:
    """Two governed consumers."""
    adopt(system, ["orders"], "governor")
    crowd = Crowd(system.address, "cooperative-sticky")
    crowd.join("orders", "A")
    crowd.join("orders", "B")
    return grow(admin, TOPIC, times, lambda: set().union(*crowd.owned.values()))


def main() -> None:
    """Print a line for each group."""
    parser = options(__doc__)
    parser.add_argument("--times", type=int, default=10)
    args = parser.parse_args()
    with BenchSystem() as system:
        system.create(NewTopic("parcels", FIRST, 1), NewTopic(TOPIC, FIRST, 1))
        admin = AdminClient({"bootstrap.servers": system.address})
        system.coordinate()
        print(f"{os.cpu_count()} cores; from a new partition to its owner, s: median, most")
        for measure in (workers, consumers):
            took = measure(system, admin, args.times)
            what = measure.__name__
            print(f"  {what:10} {quantile(took, 0.5):.1f}, {max(took):.1f}", flush=True)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
