"""What real workers cost the broker: connections, requests and bytes of a member.

Real `muster.Worker`s run in processes of their own and reach the broker through a proxy that counts
connections, requests by kind, and bytes. The job reaches the broker directly. Phases: all start
together; nothing happens; one member in twenty leaves. Figures are per member and second; the last
lines multiply them.

``python bench/wire.py [--members 200] [--partitions 4] [--fleet 10000] [--json]``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import psutil
from bench_system import BenchSystem, configure, cpu_s, options, until

from muster import Worker
from muster.broker.embedded_kafka import HOST, free_port

GROUP, EACH, TASKS_EACH = "fleet", 50, 10
LISTENERS = {
    "listeners": "PLAINTEXT://{host}:{port},MEMBERS://{host}:%d,CONTROLLER://{host}:{controller_port}",
    "advertised.listeners": "PLAINTEXT://{host}:{port},MEMBERS://{host}:%d",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,MEMBERS:PLAINTEXT",
}
API = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    10: "FindCoordinator",
    18: "ApiVersions",
    22: "InitProducerId",
    60: "DescribeCluster",
    71: "GetTelemetrySubscriptions",
    72: "PushTelemetry",
}
FRAME = 4  # bytes of a request's length
Figures = dict[str, float]


@dataclass(slots=True)
class Tally:
    """Requests by kind and bytes to and from the broker until a moment, and the workers' CPU."""

    requests: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    received: int = 0
    cpu_s: float = 0
    at_s: float = 0


class Counting:
    """A TCP proxy to the broker's port that reads the frames of Kafka's requests."""

    def __init__(self, port: int, target: int) -> None:
        self._port, self._target = port, target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.now = Tally()
        self.connections = 0

    def __enter__(self) -> Counting:
        self._thread.start()
        opened = asyncio.start_server(self._connect, HOST, self._port)
        asyncio.run_coroutine_threadsafe(opened, self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _connect(self, near: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        far, into = await asyncio.open_connection(HOST, self._target)
        self.connections += 1
        try:
            with suppress(OSError):
                both = {
                    asyncio.ensure_future(self._requests(near, into)),
                    asyncio.ensure_future(self._answers(far, out)),
                }
                _, rest = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for task in rest:
                    task.cancel()
        finally:
            self.connections -= 1
            into.close()
            out.close()

    async def _requests(self, near: asyncio.StreamReader, into: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                size = await near.readexactly(FRAME)
                body = await near.readexactly(int.from_bytes(size, "big"))
                kind = int.from_bytes(body[:2], "big")
                self.now.requests[API.get(kind, str(kind))] += 1
                self.now.sent += FRAME + len(body)
                into.write(size + body)
                await into.drain()

    async def _answers(self, far: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await far.read(65_536):
                self.now.received += len(chunk)
                out.write(chunk)
                await out.drain()


def run_workers(address: str, first: int, count: int) -> None:
    """The program of a worker process: prints what it runs, obeys lines from standard input.

    ``stop N`` closes N workers.
    """
    held = Counter[str]()

    def callback(name: str, change: int) -> Callable[..., None]:
        def on(tasks: tuple, _: object) -> None:
            held[name] += change * len(tasks)
            os.write(1, b"%d\n" % sum(held.values()))  # whole lines, from whichever thread

        return on

    workers: list[Worker] = []
    for number in range(first, first + count):
        name = f"member-{number:05d}"
        settings = {"bootstrap_servers": address, "group": GROUP, "member_id": name}
        on = {"on_assigned": callback(name, 1), "on_revoked": callback(name, -1)}
        workers.append(Worker(**settings, **on))
    for worker in workers:
        worker.start()
    for line in sys.stdin:
        leaving = [workers.pop() for _ in range(int(line.split()[1]))]
        for worker in leaving:
            worker.close()
    for worker in workers:  # the parent has ended, or wants no more
        threading.Thread(target=worker.close, daemon=True).start()


class Workers:
    """Worker processes, and what they say that they run."""

    def __init__(self, address: str, members: int, stack: ExitStack) -> None:
        self.members = members
        self._processes: list[subprocess.Popen[str]] = []
        self._says: dict[int, int] = {}
        for first in range(0, members, EACH):
            count = min(EACH, members - first)
            command = [sys.executable, __file__, "--workers", address, str(first), str(count)]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(process.wait, 30)
            stack.callback(process.kill)
            self._processes.append(process)
            threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self._says[process.pid] = int(line)

    def running(self) -> int:
        """Tasks that all workers run."""
        return sum(self._says.values())

    def stop(self, share: float) -> None:
        """Close this share of the workers."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"stop {max(round(EACH * share), 1)}\n")
            process.stdin.flush()

    @property
    def cpu_s(self) -> float:
        """CPU of all of them."""
        return sum(cpu_s(process.pid) for process in self._processes)

    @property
    def rss(self) -> float:
        """Resident bytes of all of them."""
        return float(sum(psutil.Process(p.pid).memory_info().rss for p in self._processes))


class Trial:
    """A fleet of real workers, and the figures of its phases."""

    def __init__(self, system: BenchSystem, counting: Counting, workers: Workers) -> None:
        self._system, self._counting, self._workers = system, counting, workers
        self.figures: dict[str, Figures] = {}

    def _tally(self) -> Tally:
        now = self._counting.now
        return Tally(
            Counter(now.requests), now.sent, now.received, self._workers.cpu_s, time.monotonic()
        )

    def measured(self, phase: str, act: Callable[[], None], *, each_second: bool) -> None:
        """Do something, and note what it cost: per member and second, or per member in all."""
        before, broker = self._tally(), cpu_s(self._system.broker_pid)
        act()
        now = self._tally()
        seconds = now.at_s - before.at_s
        share = self._workers.members * (seconds if each_second else 1)
        figures = {
            "seconds": seconds,
            "connections": self._counting.connections / self._workers.members,
        }
        asked = now.requests - before.requests
        figures |= {kind: count / share for kind, count in sorted(asked.items())}
        figures["all requests"] = asked.total() / share
        figures["bytes to the broker"] = (now.sent - before.sent) / share
        figures["bytes from the broker"] = (now.received - before.received) / share
        figures["worker, ms of CPU"] = 1000 * (now.cpu_s - before.cpu_s) / share
        figures["broker, cores in all"] = (cpu_s(self._system.broker_pid) - broker) / seconds
        figures["worker, MB"] = self._workers.rss / 1e6 / self._workers.members
        unit = "a member and second" if each_second else "a member"
        self.figures[f"{phase}, {unit}"] = figures
        print(phase, figures, file=sys.stderr, flush=True)


def measure(args: argparse.Namespace) -> dict[str, Figures]:
    """All phases."""
    inner, outer = free_port(), free_port()
    properties = {**LISTENERS}
    properties["listeners"] %= inner
    properties["advertised.listeners"] %= outer
    tasks = TASKS_EACH * args.members
    with (
        BenchSystem(partitions=args.partitions, properties=properties) as system,
        Counting(outer, inner) as counting,
        ExitStack() as stack,
    ):
        configure(system, GROUP, tasks, {"initial.rebalance.delay.ms": 30_000})
        system.coordinate()
        workers = Workers(f"{HOST}:{outer}", args.members, stack)
        trial = Trial(system, counting, workers)
        trial.measured(
            "start", lambda: until(lambda: workers.running() == tasks), each_second=False
        )
        time.sleep(10)
        trial.measured("quiet", lambda: time.sleep(args.quiet), each_second=True)
        workers.stop(0.02)
        trial.measured(
            "one in fifty leaves",
            lambda: (time.sleep(3), until(lambda: workers.running() == tasks))[0],
            each_second=False,
        )
    quiet = trial.figures["quiet, a member and second"]
    unlike = ("seconds", "broker, cores in all")
    trial.figures[f"quiet, {args.fleet:,} members, a second"] = {
        name: value * args.fleet for name, value in quiet.items() if name not in unlike
    }
    return trial.figures


def main() -> int:
    """Measure and print."""
    if sys.argv[1:2] == ["--workers"]:
        run_workers(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return 0
    parser = options(__doc__)
    parser.add_argument("--members", type=int, default=200, help="workers (default: 200)")
    parser.add_argument("--partitions", type=int, default=4, help="of each topic (default: 4)")
    parser.add_argument("--quiet", type=float, default=30, help="seconds (default: 30)")
    parser.add_argument("--fleet", type=int, default=10_000, help="multiply up to this many")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    by_phase = measure(args)
    if args.json:
        print(json.dumps(by_phase, indent=1))
        return 0
    print(f"{args.members} workers, {args.partitions} partitions, {os.cpu_count()} cores")
    for phase, figures in by_phase.items():
        for name, value in figures.items():
            print(f"{phase:40} {name:24} {value:14,.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
