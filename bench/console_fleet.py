"""The console's list at 1,000 groups: memory, time to the first list, bytes, search, sort.

Every group has ten members, 100 tasks and some generations behind it; each second some groups have
a new generation. A real Chromium has the list open. No Kafka: the store gets each record's bytes
as the reader hands them over.

    PYTHONPATH=.:tests python -m bench.console_fleet [--groups 1000] [--generations 20] [--busy 50]
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from statistics import median

import numpy as np
import psutil
from support.console.browser import browser, page
from support.console.served import served

from bench.console import large
from muster.console.store import Store
from muster.kafka.reader import Row
from muster.output import wall_ms
from muster.protocol.codec import encode
from muster.protocol.ids import GroupId

MEMBERS, TASKS = 10, 100
TIMES = 15
SEARCHED = """text => {
  const began = performance.now();
  const field = document.querySelector("#search");
  field.value = text;
  field.dispatchEvent(new Event("input"));
  document.body.offsetHeight;  // the page is laid out
  return performance.now() - began;
}"""
SORTED = """name => {
  const began = performance.now();
  document.querySelector(`[data-sort=${name}]`).click();
  document.body.offsetHeight;
  return performance.now() - began;
}"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--generations", type=int, default=20)
    parser.add_argument("--busy", type=int, default=50, help="groups with news each second")
    parser.add_argument("--seconds", type=int, default=20)
    args = parser.parse_args()
    random = np.random.default_rng(1)
    store, process = Store(["muster"]), psutil.Process()
    begun = process.memory_info().rss
    offset, read_s = 0, 0.0

    def publish(number: int, generation: int) -> None:
        nonlocal offset, read_s
        holder = random.integers(0, MEMBERS, TASKS).astype(np.int32)
        made = replace(large(MEMBERS, holder, generation), group=GroupId(f"group-{number:04}"))
        record = encode(made)
        row = Row(record.key, record.value, "muster.groups", 0, offset, wall_ms())
        began = time.perf_counter()
        store.read(row)
        read_s += time.perf_counter() - began
        offset += 1

    for generation in range(1, args.generations + 1):
        for number in range(args.groups):
            publish(number, generation)
    records_s = offset / read_s
    with served(store) as url, browser() as made, page(made) as opened:
        opened.goto(url)
        opened.wait_for_selector("#rows tr")
        first_ms = opened.evaluate("performance.now()")
        first = opened.evaluate("muster.page.bytes")
        cpu = process.cpu_times()
        for second in range(args.seconds):
            for number in random.integers(0, args.groups, args.busy):
                publish(int(number), args.generations + 1 + second)
            time.sleep(1)
        after = process.cpu_times()
        cpu_s = (after.user + after.system - cpu.user - cpu.system) / args.seconds
        later = opened.evaluate("muster.page.bytes") - first
        searches = [opened.evaluate(SEARCHED, f"group-0{n % 10}") for n in range(TIMES)]
        opened.evaluate(SEARCHED, "")
        names = ("name", "members", "generation", "moved", "wrong")
        sorts = [opened.evaluate(SORTED, names[n % len(names)]) for n in range(TIMES)]
        heap = opened.evaluate("performance.memory?.usedJSHeapSize ?? 0")
    memory = process.memory_info().rss - begun
    print(f"{args.groups:,} groups of {MEMBERS} members and {TASKS} tasks, ", end="")
    print(f"{args.generations} generations each, {args.busy} groups with news a second, ", end="")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"read: {records_s:,.0f} records/s")
    print(f"first list: {first_ms:.0f} ms after the page was asked for, {first:,} bytes")
    print(
        f"then: {later / args.seconds:,.0f} bytes/s, {cpu_s:.2f} CPU s a second (with the writer)"
    )
    print(f"search: p50 {median(searches):.0f} ms, longest {max(searches):.0f} ms")
    print(f"sort: p50 {median(sorts):.0f} ms, longest {max(sorts):.0f} ms")
    print(f"console: {memory / 1e6:.0f} MB more, {store.held_bytes / 1e6:.1f} MB of it records")
    print(f"browser heap: {heap / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
