"""What governing a group costs, beside the group's own assignor.

*Rebalances*: a group of ordinary consumers settles; then one more joins and leaves, several times.
First with the group's own assignor, then governed by `muster adopt`, in the same run. Figures:
seconds until every partition has one owner and every member its share (median), partitions that
moved in a join or a leave.

*Many groups*: one `muster adopt` governs groups of one consumer each. Figures: its processor time
while nothing happens, in thousandths of a core, and its memory; how long the governor waited for
the coordinator in each round (median, longest).

``python bench/adopt.py [--members 6] [--rounds 3] [--groups 200] [--only rebalances|groups]``
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from pathlib import Path

import psutil
from rivals import Consumers
from stage import Stage

from muster.broker.tether import Tethered

EAGER = {"group.protocol": "classic", "partition.assignment.strategy": "range"}
COOPERATIVE = {**EAGER, "partition.assignment.strategy": "cooperative-sticky"}
TASKS_EACH = 6
DECIDED = re.compile(r"(\d+) members?; .* decided in (\d+) ms")
GOVERNED_S = 120.0
IDLE_S = 20.0


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--only", choices=("rebalances", "groups"))
    args = parser.parse_args()
    with Stage() as stage:
        stage.coordinate()
        if args.only != "groups":
            for name, protocol in (("cooperative-sticky", COOPERATIVE), ("range", EAGER)):
                rebalances(stage, name, protocol, args.members, args.rounds)
        if args.only != "rebalances":
            many(stage, args.groups)


def adopt(stage: Stage, name: str, *words: str) -> tuple[Tethered, Path]:
    """Start `muster adopt`."""
    command = ("-m", "muster.cli.main", "adopt", "--bootstrap-server", stage.address, *words)
    return stage.run(name, *command), stage.folder / f"{name}.log"


def rebalances(
    stage: Stage, name: str, protocol: dict[str, str], members: int, rounds: int
) -> None:
    """A group with its own assignor, then governed."""
    with Consumers(stage.address, protocol, members * TASKS_EACH) as fleet:
        fleet.come([f"member-{n}" for n in range(members)])
        fleet.settle()
        own = _changes(fleet, rounds)
        group = str(fleet._config["group.id"])
        governor, log = adopt(stage, f"adopt-{name}", "--group", group)
        _await_members(log, members)
        fleet.settle()
        governed = _changes(fleet, rounds)
        governor.stop()
    for label, (joins, leaves, moved) in (("own", own), ("governed", governed)):
        print(
            f"{name:20} {label:9} join {statistics.median(joins):5.2f} s"
            f"  leave {statistics.median(leaves):5.2f} s"
            f"  moved by a join or leave {moved / 2 / rounds:5.1f}"
        )


def _changes(fleet: Consumers, rounds: int) -> tuple[list[float], list[float], int]:
    joins: list[float] = []
    leaves: list[float] = []
    before = fleet.owned.counts().moves
    for number in range(rounds):
        for change, spent in ((fleet.come, joins), (fleet.go, leaves)):
            began = time.perf_counter()
            change([f"newcomer-{number}"])
            fleet.settle()
            spent.append(time.perf_counter() - began)
    return joins, leaves, fleet.owned.counts().moves - before


def _await_members(log: Path, members: int) -> None:
    until = time.monotonic() + GOVERNED_S
    while time.monotonic() < until:
        rounds = DECIDED.findall(log.read_text(errors="replace"))
        if rounds and int(rounds[-1][0]) == members:
            return
        time.sleep(0.1)
    raise TimeoutError(log.read_text(errors="replace")[-2_000:])


def many(stage: Stage, groups: int) -> None:
    """One governor process, many groups."""
    fleets = [Consumers(stage.address, COOPERATIVE, 2) for _ in range(groups)]
    names = [str(fleet._config["group.id"]) for fleet in fleets]
    words = [word for name in names for word in ("--group", name)]
    governor, log = adopt(stage, "adopt-many", "--fresh", "consumer", *words)
    try:
        for fleet in fleets:
            fleet.come(["member"])
        began = time.monotonic()
        for fleet in fleets:
            fleet.settle()
        settled_s = time.monotonic() - began
        time.sleep(2 * IDLE_S)
        process = psutil.Process(governor.pid)
        before, began = sum(process.cpu_times()[:2]), time.monotonic()
        time.sleep(IDLE_S)
        share = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
        found = [int(ms) for n, ms in DECIDED.findall(log.read_text(errors="replace")) if n != "0"]
        print(
            f"{groups} groups: settled {settled_s:.1f} s after the last consumer started;"
            f" governor {share * 1_000:.0f} thousandths of a core,"
            f" {process.memory_info().rss / 2**20:.0f} MiB;"
            f" decided in {statistics.median(found):.0f} ms (median),"
            f" {max(found)} ms (longest of {len(found)} rounds)"
        )
        governor.stop()
    finally:
        for fleet in fleets:
            fleet.go(list(fleet._members))
        for fleet in fleets:
            fleet.await_gone()


if __name__ == "__main__":
    main()
