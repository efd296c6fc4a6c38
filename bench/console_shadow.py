"""What `muster console --shadow` costs while nothing happens, beside the console without it.

python bench/console_shadow.py [--groups 200]

G groups of two librdkafka consumers each read one topic of 12 partitions. First a console without
`--shadow` runs for a while, then one with it. No page is open. Printed: CPU and memory of each, and
the CPU of the broker, which serves the consumers too.

Needs the extras `console`, `adopt` and `broker`, Java, and psutil.
"""

from __future__ import annotations

import os
import time

from bench_system import BenchSystem, cpu_s, family, options
from confluent_kafka.admin import NewTopic
from governed import PARTITIONS, TOPIC, Crowd

from muster.broker.embedded_kafka import free_port

START_S, SPAN_S = 10.0, 30.0


def cost(system: BenchSystem, name: str, *more: str) -> str:
    """Run a console for a while; what it and the broker used."""
    words = ("console", "--port", str(free_port()), "--bootstrap-server", system.address)
    process = system.run(name, "-m", "muster.cli.main", *words, *more)
    time.sleep(START_S)
    pids = (process.pid, system.broker_pid)
    before, begun = [cpu_s(pid) for pid in pids], time.monotonic()
    time.sleep(SPAN_S)
    span = time.monotonic() - begun
    console, broker = (
        100 * (cpu_s(pid) - was) / span for pid, was in zip(pids, before, strict=True)
    )
    memory = sum(each.memory_info().rss for each in family(process.pid))
    process.kill()
    return f"CPU {console:.1f} % of a core, {memory / 2**20:.0f} MiB; broker {broker:.1f} %"


def main() -> None:
    """Print a line for each."""
    parser = options(__doc__)
    parser.add_argument("--groups", type=int, default=200)
    args = parser.parse_args()
    with BenchSystem() as system:
        system.create(NewTopic(TOPIC, PARTITIONS, 1))
        crowd = Crowd(system.address, "cooperative-sticky")
        groups = [f"group-{number}" for number in range(args.groups)]
        for group in groups:
            for name in "AB":
                crowd.join(group, name)
            time.sleep(0.02)
        for group in groups:
            crowd.settled_s(group, [PARTITIONS // 2] * 2)
        print(f"{args.groups} groups of two consumers, {os.cpu_count()} cores", flush=True)
        print(f"  console           {cost(system, 'plain')}", flush=True)
        print(f"  console --shadow  {cost(system, 'shadow', '--shadow')}", flush=True)


if __name__ == "__main__":
    main()
