"""`advance` itself: a heartbeat batch, one join, one lag report, at 1,000 and 10,000 members.

Prints median and p99 in milliseconds for groups with 10 tasks a member. Only Python is measured: no
Kafka, no Spark, no encoding. ``heartbeats (no tasks)`` is the same batch for a group without tasks;
tasks must not make the batch slower.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

from muster.protocol.events import (
    Event,
    GroupConfig,
    Heartbeat,
    Join,
    Lag,
    LagReport,
    Leave,
    Origin,
    Tick,
)
from muster.protocol.ids import GroupId, MemberId, Task
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology
from muster.state.group import Group
from muster.state.machine import advance

GROUP = GroupId("bench")
BATCH = 1_000
"""Heartbeats in a batch."""


def config(tasks: int, assignor: str) -> GroupConfig:
    """A group of stateful tasks."""
    units = (Subtopology("0", tasks, stateful=True),) if tasks else ()
    settings = parse_settings({"initial.rebalance.delay.ms": 0}, assignor)
    return GroupConfig(group=GROUP, assignor=assignor, settings=settings, tasks=units)


def settled(members: int, tasks: int, assignor: str) -> Group:
    """A group after its members have joined."""
    joins = [
        Join(group=GROUP, member=MemberId(f"m{n:05}"), incarnation=n + 1, origin=at(1_000, n))
        for n in range(members)
    ]
    events: list[Event] = [replace(config(tasks, assignor), origin=at(999, 0, "config")), *joins]
    return advance(Group.new(GROUP), events, coordinator_epoch=1).group


def at(ms: int, offset: int, topic: str = "membership") -> Origin:
    """The origin of an event."""
    return Origin(topic, 0, offset, ms)


def heartbeats(group: Group) -> list[Event]:
    """A batch of heartbeats with the right digests."""
    slots = group.roster.slots[:BATCH]
    return [
        Heartbeat(
            group=GROUP,
            member=group.roster.member(s).id,
            epoch=group.roster.member(s).epoch,
            digest=int(group.sessions.digest[s]),
            origin=at(1_100, 10_000_000 + n),
        )
        for n, s in enumerate(slots)
    ]


def measured(group: Group, events: list[Event], repeat: int) -> tuple[float, float]:
    """Median and p99 of one `advance`, in milliseconds."""
    taken = []
    for _ in range(repeat):
        started = time.perf_counter()
        advance(group, events, coordinator_epoch=1)
        taken.append(1_000 * (time.perf_counter() - started))
    return statistics.median(taken), statistics.quantiles(taken, n=100)[98]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--assignor", default="sticky")
    args = parser.parse_args()
    print(f"{'MEMBERS':<8} {'TASKS':<8} {'WHAT':<24} {'MEDIAN MS':>10} {'P99 MS':>10}")
    for members in args.members:
        tasks = 10 * members
        group = settled(members, tasks, args.assignor)
        bare = settled(members, 0, args.assignor)
        last = group.roster.member(group.roster.slots[-1])
        who = {"member": last.id, "incarnation": last.incarnation}
        lags = tuple(Lag(Task("0", n), 1_000 * n) for n in range(10))
        now = {"group": GROUP, "origin": at(1_200, 20_000_000)}
        lag_report = LagReport(group=GROUP, origin=at(1_200, 0, "lag"), member=last.id, lags=lags)
        rows = {
            "heartbeats": (group, heartbeats(group)),
            "one join": (group, [Join(**now, member=MemberId("n00000"), incarnation=7)]),
            "one leave": (group, [Leave(**now, **who)]),
            "one lag report": (group, [lag_report]),
            "tick": (group, [Tick(**now)]),
            "heartbeats (no tasks)": (bare, heartbeats(bare)),
        }
        for what, (start, events) in rows.items():
            median, worst = measured(start, events, args.repeat)
            print(f"{members:<8} {tasks:<8} {what:<24} {median:>10.2f} {worst:>10.2f}")


if __name__ == "__main__":
    main()
