"""The console against a large group with churn: frame time, memory, bytes to the browser, delay.

A group of 1,000 members and 10,000 tasks, written into the console's store once a second with ten
tasks moved, and a real Chromium with the group's page open. No Kafka: the delay is from the moment
when the record's bytes are there to be decoded, until the page has it; drawing comes on top.

    PYTHONPATH=.:tests python -m bench.console [--seconds 30] [--members 1000] [--tasks 10000]
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace

import numpy as np
import psutil
from support.console.browser import browser, page
from support.console.served import served
from support.state.snapshots import orders

from muster.console.store import Store
from muster.kafka.reader import Row
from muster.output import wall_ms
from muster.protocol.codec import encode
from muster.protocol.ids import MemberId
from muster.protocol.records import GroupSnapshot, GroupState, MemberEntry
from muster.protocol.tasks import Subtopology

MOVED = 10


def large(members: int, holder: np.ndarray, generation: int) -> GroupSnapshot:
    """A stable group whose task t is held by slot holder[t]."""
    none = np.empty((0, 2), dtype=np.int32)
    return replace(
        orders(generation, cause=f"worker-{generation % members:04} joined"),
        state=GroupState.STABLE,
        tasks=(Subtopology("0", len(holder)),),
        members=tuple(
            MemberEntry(id=MemberId(f"worker-{s:04}"), slot=s, incarnation=s, rack=f"r{s % 3}")
            for s in range(members)
        ),
        target=holder.copy(),
        holder=holder.copy(),
        destination=holder.copy(),
        revoking=np.zeros(len(holder), dtype=np.bool_),
        **dict.fromkeys(("target_standby", "standby", "standby_revoking"), none),
        **dict.fromkeys(("target_learner", "learner"), none),
        lags=np.empty((0, 3), dtype=np.int64),
        lag_ms=np.empty(0, dtype=np.int64),
        moves=(),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--tasks", type=int, default=10_000)
    args = parser.parse_args()
    random = np.random.default_rng(1)
    holder = np.arange(args.tasks, dtype=np.int32) % args.members
    values = []
    for generation in range(1, args.seconds + 2):
        holder[random.integers(0, args.tasks, MOVED)] = random.integers(0, args.members, MOVED)
        record = encode(large(args.members, holder, generation))
        values.append((record.key, record.value))
    store, process = Store(["muster"]), psutil.Process()
    before = process.memory_info().rss
    cpu_s = 0.0

    def write(number: int) -> None:
        key, value = values[number]
        store.read(Row(key, value, "muster.groups", 0, number, wall_ms()))

    write(0)
    with served(store) as url, browser() as made, page(made) as opened:
        opened.goto(f"{url}group?g=orders")
        opened.wait_for_function("() => muster.page.delays.length === 1")
        first = opened.evaluate("muster.page.bytes")
        begun = process.cpu_times()
        for number in range(1, args.seconds + 1):
            write(number)
            time.sleep(1)
        opened.wait_for_function(f"() => muster.page.messages >= {args.seconds // 2}")
        ended = process.cpu_times()
        cpu_s = ended.user + ended.system - begun.user - begun.system
        seen = opened.evaluate(
            "({delays: muster.page.delays, bytes: muster.page.bytes, frames: muster.theMap.frames,"
            " heap: performance.memory?.usedJSHeapSize ?? 0})"
        )
    delays, frames = sorted(seen["delays"][1:]), sorted(seen["frames"])
    changes = len(delays)
    change = (seen["bytes"] - first) // changes
    memory = (process.memory_info().rss - before) / 1e6
    print(f"{args.members:,} members, {args.tasks:,} tasks, {MOVED} moved a second, ", end="")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"record: {len(values[-1][1] or b''):,} bytes on the topic")
    print(f"to the browser: {first:,} bytes at first, then {change:,} a change")
    print(f"delay to the page: p50 {delays[changes // 2]} ms, longest {delays[-1]} ms ({changes})")
    print(f"drawing: p50 {frames[len(frames) // 2]:.1f} ms, longest {frames[-1]:.1f} ms")
    print(f"browser heap: {seen['heap'] / 1e6:.0f} MB")
    print(f"console: {memory:.0f} MB more, {cpu_s / args.seconds:.2f} CPU s a second")
    print(f"records kept: {store.held_bytes / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
