"""The faults, and how long each may leave a task without an owner.

Each fault is a context manager. Entering it causes the fault. Leaving it repairs the fault and
waits for its consequences: the tasks of a lost worker run elsewhere, a lost coordinator is back. In
a pair the fault of a worker is the outer one, because its tasks move only when there is a
coordinator again.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import psutil
from chaos.chaos_system import HEARTBEAT_S, ISLANDER, SESSION_S, ChaosSystem, send
from support.kafka.cluster import START_S
from support.kafka.proxy import FROM_BROKER
from support.suite.waiting import until
from support.worker.command_fleet import CommandFleet

COORDINATOR, WORKER, KAFKA = "coordinator", "worker", "kafka"
Injected: TypeAlias = AbstractContextManager[None]
FROZEN_S = 8.0
"""Longest time a driver or an executor is frozen."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table.

    Attributes:
        name: in the report.
        hits: what it hits; two faults at once never hit the same kind.
        inject: the fault.
        bound_s: how long it may leave a task without an owner on a quiet machine;
            docs/operations.md derives the bounds.
        brief: whether short runs include it.
        ends_coordinator: whether there is no coordinator during it, so that nothing can change.
    """

    name: str
    hits: str
    inject: Callable[[ChaosSystem], Injected]
    bound_s: float
    brief: bool = True
    ends_coordinator: bool = False


# ---------------------------------------------------------------- the coordinator


@contextmanager
def driver_killed(system: ChaosSystem) -> Iterator[None]:
    """SIGKILL to the driver and its processes, then a restart from the checkpoint."""
    system.job.kill()
    yield
    system.job.start()


@contextmanager
def driver_killed_with_standby(system: ChaosSystem) -> Iterator[None]:
    """SIGKILL to the driver while a standby coordinator is there, which goes on.

    At the end the first one is the coordinator again: the other hands over to it.
    """
    first = system.job
    system.job = system.new_job(f"standby-{system.rng.random():.6f}", "--standby").start()
    first.kill()
    yield
    shutil.rmtree(system.checkpoint / "muster")  # it is behind
    standby, system.job = system.job, system.new_job()
    system.job.start(wait=False)
    assert standby.wait() == 1, standby.tail()
    system.job.await_ready()


@contextmanager
def driver_frozen(system: ChaosSystem) -> Iterator[None]:
    """SIGSTOP to the driver for some seconds; then it goes on."""
    frozen = system.driver()
    send(frozen, signal.SIGSTOP)
    _last(system.rng.uniform(2, FROZEN_S))
    yield
    send(frozen, signal.SIGCONT)


@contextmanager
def driver_replaced(system: ChaosSystem) -> Iterator[None]:
    """The driver is frozen and replaced on the same checkpoint; then the old one resumes.

    The old one must end by itself: it finds the later claim, or that its checkpoint is in use.
    """
    old, frozen = system.job, system.driver()
    send(frozen, signal.SIGSTOP)
    system.job = system.new_job()
    system.job.start()
    send(frozen, signal.SIGCONT)
    assert old.wait() == 1, old.tail()
    old.kill()
    yield


@contextmanager
def checkpoint_lost(system: ChaosSystem) -> Iterator[None]:
    """The driver dies and its checkpoint is lost: the groups are recovered from their topic."""
    system.job.kill()
    shutil.rmtree(system.job.checkpoint)
    yield
    system.job.start()


@contextmanager
def executor_killed(system: ChaosSystem) -> Iterator[None]:
    """SIGKILL to a Spark executor; the cluster starts another."""
    victim = system.rng.choice(_executors(system))
    victim.kill()
    yield
    until(lambda: victim not in system.spark.executors(), "it is gone")
    _executors(system)


@contextmanager
def executor_frozen(system: ChaosSystem) -> Iterator[None]:
    """SIGSTOP to a Spark executor for some seconds: its part of every batch waits."""
    frozen = [system.rng.choice(_executors(system))]
    send(frozen, signal.SIGSTOP)
    _last(system.rng.uniform(2, FROZEN_S))
    yield
    send(frozen, signal.SIGCONT)


@contextmanager
def disk_full(system: ChaosSystem) -> Iterator[None]:
    """The checkpoint's file system is full: the coordinator ends, and is restarted with space."""
    ballast = system.checkpoint / "ballast"
    _fill(ballast)
    try:
        code = system.job.wait()
    finally:
        ballast.unlink()
    assert code == 1, system.job.tail()
    yield
    system.job.start()


# ---------------------------------------------------------------- workers


def _worker(
    harm: Callable[[CommandFleet, str], None], mend: Callable[[CommandFleet, str], None]
) -> Callable[[ChaosSystem], Injected]:
    """A fault of one worker, repaired when its tasks run elsewhere."""

    @contextmanager
    def harmed(system: ChaosSystem) -> Iterator[None]:
        fleet, name = system.pick()
        with system.spared(fleet, name):
            harm(fleet, name)
            yield
            system.await_moved(fleet, name)
            mend(fleet, name)

    return harmed


worker_restarted = _worker(CommandFleet.stop, CommandFleet.start)
"""No fault: a worker leaves in order and returns, as in a rolling upgrade."""
worker_killed = _worker(CommandFleet.kill, CommandFleet.start)
"""SIGKILL to a worker; its guard ends its tasks. Then a process of the same name starts."""
worker_frozen = _worker(
    lambda fleet, name: fleet.signal(name, signal.SIGSTOP),
    lambda fleet, name: fleet.signal(name, signal.SIGCONT),
)
"""SIGSTOP to a worker; then it resumes."""


@contextmanager
def drained_and_fenced(system: ChaosSystem) -> Iterator[None]:
    """A worker hangs while it is drained: it is expelled, resumes, joins and gets no task."""
    fleet, name = system.pick()
    with system.spared(fleet, name):
        fleet.signal(name, signal.SIGSTOP)
        fleet.drain(name, on=True)
        yield
        system.await_moved(fleet, name)
        fleet.signal(name, signal.SIGCONT)
        until(lambda: fleet.rests(name), f"{name} is back, drained", story=system.story)
        fleet.drain(name, on=False)


@contextmanager
def group_deleted(system: ChaosSystem) -> Iterator[None]:
    """`config delete --force` on a running group: its members stop and do not recreate it."""
    fleet = system.rng.choice([c for c in system.fleets if not _has_victim(system, c)])
    fleet.delete()
    until(lambda: not fleet.held(), f"{fleet.group} has stopped", story=system.story)
    yield
    assert fleet.held() == {}, "members brought a deleted group back"
    fleet.declare()


def _has_victim(system: ChaosSystem, fleet: CommandFleet) -> bool:
    return any(group == fleet.group for group, _ in system.victims)


def _islander(inject: Callable[[ChaosSystem], None]) -> Callable[[ChaosSystem], Injected]:
    """A fault of the islanders' proxy, repaired when their tasks run elsewhere."""

    @contextmanager
    def cut_off(system: ChaosSystem) -> Iterator[None]:
        lost = [(fleet, ISLANDER) for fleet in system.fleets]
        inject(system)
        try:
            yield
            for fleet, name in lost:
                system.await_moved(fleet, name)
        finally:
            system.island.mend()

    return cut_off


# ---------------------------------------------------------------- Kafka


@contextmanager
def broker_killed(system: ChaosSystem) -> Iterator[None]:
    """SIGKILL to the broker that leads the membership partition; it is started again later."""
    node = system.kafka.nodes[_leader(system)]
    node.kill()
    yield
    node.start(START_S)
    system.kafka.in_sync()


@contextmanager
def broker_frozen(system: ChaosSystem) -> Iterator[None]:
    """SIGSTOP to that broker until another one leads the partition, and longer."""
    number = _leader(system)
    node = system.kafka.nodes[number]
    node.freeze()
    try:
        until(lambda: _leader(system) != number, "another broker leads", pause_s=0.5)
        yield
    finally:
        node.thaw()
    system.kafka.in_sync()


@contextmanager
def brokers_rolled(system: ChaosSystem) -> Iterator[None]:
    """A rolling restart: one broker after the other, each when all replicas are in sync."""
    for position, node in enumerate(system.kafka.nodes.values()):
        node.stop()
        if position == 1:
            yield
        node.start(START_S)
        system.kafka.in_sync()


@contextmanager
def broker_slow(system: ChaosSystem) -> Iterator[None]:
    """Everything to and from Kafka takes 100 to 300 ms longer, while a worker restarts.

    It counts as a fault of a worker. The groups settle in the slow network.
    """
    delay_s = system.rng.uniform(0.1, 0.3)
    system.mainland.delay(delay_s)
    system.island.delay(delay_s)
    try:
        with worker_restarted(system):
            yield
        system.settle()
    finally:
        system.mainland.mend()
        system.island.mend()


# ---------------------------------------------------------------- the table

_LOST = SESSION_S + 2 * HEARTBEAT_S + 2
"""A session, the tick that ends it, and two batches."""
_LEFT = 2 + 3
"""Two batches, and the delay that Connect's assignor grants to a member that may return."""
_DELETED = 60
"""The members' pauses between joins; the group stays deleted on purpose."""
_START = 20
"""The start of Spark, the claim, and loading the groups' state."""
_TAKEN = 5
"""The silence of a dead coordinator, the claim, and the question to all members."""
_EXECUTOR = 6
"""A second attempt of a batch, by an executor that first has to start, or to start Python."""

DISK_FULL = Fault("disk full", COORDINATOR, disk_full, _START, ends_coordinator=True)
FAULTS: tuple[Fault, ...] = (
    Fault("driver killed", COORDINATOR, driver_killed, _START, False, ends_coordinator=True),
    Fault("standby takes over", COORDINATOR, driver_killed_with_standby, _TAKEN, brief=False),
    Fault("driver frozen", COORDINATOR, driver_frozen, FROZEN_S, brief=False),
    Fault("driver replaced", COORDINATOR, driver_replaced, _START, False, ends_coordinator=True),
    Fault("checkpoint lost", COORDINATOR, checkpoint_lost, _START, False, ends_coordinator=True),
    Fault("executor killed", COORDINATOR, executor_killed, _EXECUTOR),
    Fault("executor frozen", COORDINATOR, executor_frozen, FROZEN_S, brief=False),
    DISK_FULL,
    Fault("worker killed", WORKER, worker_killed, _LOST),
    Fault("worker frozen", WORKER, worker_frozen, _LOST),
    Fault("worker cut off", WORKER, _islander(lambda s: s.island.cut()), _LOST, brief=False),
    Fault("worker's network silent", WORKER, _islander(lambda s: s.island.stall()), _LOST),
    Fault("worker deaf", WORKER, _islander(lambda s: s.island.stall(FROM_BROKER)), _LOST, False),
    Fault("drained and fenced", WORKER, drained_and_fenced, _LOST, False),
    Fault("group deleted", WORKER, group_deleted, _DELETED, False),
    Fault("broker killed", KAFKA, broker_killed, _LOST),
    Fault("broker frozen", KAFKA, broker_frozen, _LOST, brief=False),
    Fault("rolling restart", KAFKA, brokers_rolled, _LOST, brief=False),
    Fault("slow broker", WORKER, broker_slow, _LEFT + 6),
)
ORDERLY = Fault("worker restarted in order", WORKER, worker_restarted, _LEFT)
"""The change that must still work after, or during, every fault that hits no worker."""


def _executors(system: ChaosSystem) -> list[psutil.Process]:
    def two() -> list[psutil.Process]:
        executors = system.spark.executors()
        return executors if len(executors) == 2 else []

    return until(two, "two executors run", story=system.job.tail)


def _leader(system: ChaosSystem) -> int:
    return system.kafka.leader(f"{system.topics.prefix}.membership", 0)


def _fill(ballast: Path) -> None:
    """Write until no space is left."""
    chunk = bytes(1 << 16)
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(chunk):
            pass


def _last(seconds: float) -> None:
    """The duration of the fault itself; it waits for no condition."""
    time.sleep(seconds)
