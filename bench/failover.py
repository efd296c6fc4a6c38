"""How long a fleet waits when its coordinator is stopped, killed or frozen, and a standby is there.

A fleet of real sessions (`machines`) runs in this process, beside a real broker, a coordinator and
a standby. The coordinator gets a signal, and a new member joins the group at once. Two times count
from the signal: until the first record for the new member is read (*answered*), and until every
member has its share (*settled*). Then the next standby is started, and the next signal follows.

With ``--cold`` there is no standby: the coordinator is started again on its checkpoint, and the
times count from that start.

``python bench/failover.py [--members 20] [--rounds 3] [--cold]``
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from contextlib import suppress

import psutil
from bench_system import BenchSystem, Coordinator, configure, cpu_s, family, options
from confluent_kafka import Consumer
from machines import Crowd

from muster.protocol.topics import TopicKind, topic_name

GROUP = "fleet"
TIMEOUT_S = 300.0
SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP)


class Trial:
    """A fleet, its coordinator and a standby."""

    def __init__(self, system: BenchSystem, members: int, *, cold: bool) -> None:
        self._system = system
        self._cold = cold
        self._started = 0
        self._joined = 0
        self._begun = False
        self.crowd = Crowd(system.clients)
        self._crew = self.crowd.crew(GROUP, 10 * members)
        self._names = [f"member-{number:05d}" for number in range(members)]

    def start(self, *, checkpoint: str = "", wait: bool = True) -> Coordinator:
        """Start a process; with `wait` return when it is the coordinator, or stands by."""
        self._started += 1
        name = f"job{self._started}"
        coordinator = self._system.coordinate(
            page="", name=name, checkpoint=checkpoint or name, standby=not self._cold
        )
        if wait:
            self.await_ready(coordinator)
        return coordinator

    def await_ready(self, coordinator: Coordinator) -> None:
        """Wait until a process is ready; the fleet lives on meanwhile."""
        deadline = time.monotonic() + TIMEOUT_S
        while not coordinator.answers("/readyz"):
            if time.monotonic() > deadline:
                raise TimeoutError("the process is not ready")
            if self._joined or self._begun:
                self.crowd.run_for(0.1)
            else:
                time.sleep(0.1)

    def begin(self) -> None:
        """All members join, and get their tasks."""
        self._begun = True
        self._crew.come(self._names)
        self.crowd.settle()

    def fail(self, running: Coordinator, number: signal.Signals) -> tuple[float, float]:
        """Signal the coordinator; seconds until a new member is answered, and until all settled."""
        self._joined += 1
        name = f"newcomer-{self._joined}"
        reader = self._system.tail(topic_name(TopicKind.ASSIGNMENTS))
        processes = family(running.process.pid)
        began = time.monotonic()
        for each in processes if number is signal.SIGSTOP else processes[:1]:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(number)
        if self._cold:
            self._bury(processes)
            began = time.monotonic()
            self.running = self.start(checkpoint="job1", wait=False)
        self._crew.come([name])
        answered = self._await_answer(reader, name) - began
        self.crowd.settle()
        settled = time.monotonic() - began
        reader.close()
        if number is signal.SIGSTOP:  # it wakes up, and finds that it was superseded
            for each in processes:
                with suppress(psutil.NoSuchProcess):
                    each.send_signal(signal.SIGCONT)
        self._bury(processes)
        self.crowd.run_for(1)
        return answered, settled

    def _bury(self, processes: list[psutil.Process]) -> None:
        """Wait until these processes have ended; the fleet lives on meanwhile."""
        while any(each.is_running() and each.status() != "zombie" for each in processes):
            self.crowd.run_for(0.05)

    def _await_answer(self, reader: Consumer, name: str) -> float:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            self.crowd.run_for(0.02)
            message = reader.poll(0)
            while message is not None:
                if message.error() is None and (message.key() or b"").endswith(name.encode()):
                    return time.monotonic()
                message = reader.poll(0)
        raise TimeoutError(f"{name} was not answered")


def main() -> int:
    """Measure and print; exit code 1 if two members ran a task at once."""
    parser = options(__doc__)
    parser.add_argument("--members", type=int, default=20, help="default: 20")
    parser.add_argument("--rounds", type=int, default=3, help="of each signal (default: 3)")
    parser.add_argument("--cold", action="store_true", help="no standby: start it again")
    args = parser.parse_args()
    with BenchSystem(partitions=4) as system:
        configure(system, GROUP, 10 * args.members)
        trial = Trial(system, args.members, cold=args.cold)
        running = trial.start()
        with trial.crowd:
            trial.begin()
            for number in SIGNALS[:2] if args.cold else SIGNALS:
                took = []
                for _ in range(args.rounds):
                    if args.cold:
                        took.append(trial.fail(running, number))
                        running = trial.running
                        trial.await_ready(running)
                        continue
                    waiting = trial.start()
                    idle_s = cpu_s(waiting.process.pid)
                    trial.crowd.run_for(5)
                    idle = (cpu_s(waiting.process.pid) - idle_s) / 5
                    took.append(trial.fail(running, number))
                    print(f"  standby idle {idle:.3f} cores", *took[-1], file=sys.stderr)
                    running = waiting
                both = zip(("answered", "settled"), zip(*took, strict=True), strict=True)
                for what, times in both:
                    median, most = statistics.median(times), max(times)
                    print(f"{number.name:8} {what:9} median {median:6.2f} s, most {most:6.2f} s")
            overlaps = trial.crowd.counts().overlaps
    print(f"{args.members} members, {os.cpu_count()} cores, overlaps {overlaps}")
    return 1 if overlaps else 0


if __name__ == "__main__":
    sys.exit(main())
