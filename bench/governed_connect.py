"""What one rebalance of a Connect cluster costs: governed, and by Connect's own assignor.

    PYTHONPATH=.:tests python bench/governed_connect.py [--times 1]

Real workers of the released jars, of the protocol `sessioned`; three connectors with three tasks
each. The same script for both: a third worker joins, and leaves in order; another one joins, and
is killed. Lost jobs do not wait for their worker (`scheduled.rebalance.max.delay.ms=0`); sessions
are 6 s, so that long is a killed worker still in the group. Read from the workers' own logs:

    s           from the newcomer's JoinGroup, SIGTERM or SIGKILL until the last job runs
    started     jobs that a worker started; a job of the worker that goes must start elsewhere
    stopped     jobs that a worker stopped which stays
    job-s       for how long jobs did not run, summed up
    rounds      rebalances

Needs the extras `adopt` and `broker`, Java, and psutil.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from bench_system import BenchSystem, options
from governed import adopt
from support.adopt.connect import RUNS, ConnectCluster, Worker

from muster.output import wall_ms

CONNECTORS, TASKS = ("a", "b", "c"), 3
JOBS = len(CONNECTORS) * (1 + TASKS)
QUIET_S, PATIENCE_S = 5.0, 90.0
DELAY = "scheduled.rebalance.max.delay.ms=0"


class Cost(NamedTuple):
    """Of one rebalance; see the module."""

    took_s: float
    started: int
    stopped: int
    job_s: float
    rounds: int

    def __str__(self) -> str:
        return (
            f"{self.took_s:.1f} s, {self.started} started, {self.stopped} stopped,"
            f" {self.job_s:.1f} job-s, {self.rounds} rounds"
        )


def settle(cluster: ConnectCluster) -> None:
    """Wait until all jobs run, evenly, and no worker has joined a round for a while."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        time.sleep(0.5)
        places = list(cluster.running().values())
        loads = [places.count(worker.name) for worker in cluster.workers]
        quiet = not cluster.rounds(wall_ms() - int(QUIET_S * 1_000))
        if sum(loads) == JOBS and max(loads) - min(loads) <= 2 and quiet:
            return
    raise TimeoutError(f"{cluster.running()}\n{cluster.story()}")


def cost(cluster: ConnectCluster, begun_ms: int, gone: Worker | None = None) -> Cost:
    """What happened since then."""
    settle(cluster)
    last_ms, job_ms, stopped = begun_ms, 0, 0
    for spans in cluster.spans().values():
        for one, other in pairwise(sorted(spans)):
            if other.begin_ms >= begun_ms:
                job_ms += other.begin_ms - max(one.end_ms, begun_ms)
                last_ms = max(last_ms, other.begin_ms)
        for span in spans:
            by_itself = gone is None or span.worker != gone.name
            stopped += begun_ms <= span.end_ms < RUNS and by_itself
    return Cost(
        (last_ms - begun_ms) / 1_000,
        len(cluster.starts(begun_ms)),
        stopped,
        job_ms / 1_000,
        len(cluster.rounds(begun_ms)),
    )


def played(cluster: ConnectCluster) -> dict[str, Cost]:
    """The script."""

    def joins() -> tuple[Worker, int]:
        worker = cluster.start()
        cluster.ready()
        settle(cluster)
        return worker, cluster.first_join_ms(worker)

    third, begun_ms = joins()
    costs = {"joins": cost(cluster, begun_ms)}
    begun_ms = wall_ms()
    cluster.stop(third)
    costs["leaves"] = cost(cluster, begun_ms, third)
    fourth, _ = joins()
    begun_ms = wall_ms()
    cluster.kill(fourth)
    costs["is killed"] = cost(cluster, begun_ms, fourth)
    return costs


def measure(system: BenchSystem, how: str) -> dict[str, Cost]:
    """Play the script on a new cluster."""
    with ConnectCluster(system.address, Path(system.folder) / how, DELAY + "\n") as cluster:
        for _ in range(2):
            cluster.start()
        cluster.ready()
        for name in CONNECTORS:
            cluster.connector(name, TASKS)
        settle(cluster)
        if how == "governed":
            words = ("--config-topic", cluster.config_topic, "--config", DELAY)
            adopt(system, [cluster.group], how, *words)
            settle(cluster)
        return played(cluster)


def main() -> None:
    """Print a line for each event and each of both."""
    parser = options(__doc__)
    parser.add_argument("--times", type=int, default=1)
    args = parser.parse_args()
    with BenchSystem() as system:
        system.coordinate()
        load = os.getloadavg()[0]
        print(f"{os.cpu_count()} cores, load {load:.1f}; a third worker, {JOBS} jobs:", flush=True)
        for number in range(args.times):
            for how in ("alone", "governed"):
                for what, spent in measure(system, how).items():
                    print(f"  {number + 1} {how:9} {what:10} {spent}", flush=True)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
