"""The faults: what is done to whom, and how long a task may then be without an owner.

Each fault is a context manager: entered, the fault is there; left, it is mended and what must
follow has followed (the tasks of a lost worker run elsewhere, a lost coordinator is back). Where a
worker is hit it is the outer one of a pair, because its tasks move only once there is a coordinator
again.
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
from chaos.crew import Crew
from chaos.stage import HEARTBEAT_S, ISLANDER, SESSION_S, Stage, send
from support.cluster import START_S
from support.proxy import FROM_BROKER
from support.waiting import until

COORDINATOR, WORKER, KAFKA = "coordinator", "worker", "kafka"
Injected: TypeAlias = AbstractContextManager[None]
FROZEN_S = 8.0
"""As long as a driver or an executor is frozen at most."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table.

    Attributes:
        name: in the report.
        hits: whom: two faults at once never hit the same.
        inject: the fault.
        bound_s: how long a task may be without an owner for it, at the most, on a quiet machine;
            docs/operations.md says what each is made of.
        brief: whether a short run has it.
        ends_coordinator: whether there is none meanwhile, so that nothing can change.
    """

    name: str
    hits: str
    inject: Callable[[Stage], Injected]
    bound_s: float
    brief: bool = True
    ends_coordinator: bool = False


# ---------------------------------------------------------------- the coordinator


@contextmanager
def driver_killed(stage: Stage) -> Iterator[None]:
    """SIGKILL to the driver and all it started, then a restart from the checkpoint."""
    stage.job.kill()
    yield
    stage.job.start()


@contextmanager
def driver_frozen(stage: Stage) -> Iterator[None]:
    """SIGSTOP to the driver for some seconds; it goes on where it was."""
    frozen = stage.driver()
    send(frozen, signal.SIGSTOP)
    _last(stage.chance.uniform(2, FROZEN_S))
    yield
    send(frozen, signal.SIGCONT)


@contextmanager
def driver_replaced(stage: Stage) -> Iterator[None]:
    """Frozen, taken for dead, replaced on the same checkpoint; then the old one wakes up.

    The old one must end by itself: it finds the later claim, or its checkpoint taken.
    """
    old, frozen = stage.job, stage.driver()
    send(frozen, signal.SIGSTOP)
    stage.job = stage.new_job()
    stage.job.start()
    send(frozen, signal.SIGCONT)
    assert old.wait(120) == 1, old.tail()
    old.kill()
    yield


@contextmanager
def checkpoint_lost(stage: Stage) -> Iterator[None]:
    """The driver dies and its checkpoint with it: the groups are read back from their topic."""
    stage.job.kill()
    shutil.rmtree(stage.job.checkpoint)
    yield
    stage.job.start()


@contextmanager
def executor_killed(stage: Stage) -> Iterator[None]:
    """SIGKILL to a Spark executor; the cluster starts another."""
    victim = stage.chance.choice(_executors(stage))
    victim.kill()
    yield
    until(lambda: victim not in stage.spark.executors(), "it is gone")
    _executors(stage)


@contextmanager
def executor_frozen(stage: Stage) -> Iterator[None]:
    """SIGSTOP to a Spark executor for some seconds: its half of every batch waits."""
    frozen = [stage.chance.choice(_executors(stage))]
    send(frozen, signal.SIGSTOP)
    _last(stage.chance.uniform(2, FROZEN_S))
    yield
    send(frozen, signal.SIGCONT)


@contextmanager
def disk_full(stage: Stage) -> Iterator[None]:
    """The checkpoint's file system is full: the coordinator ends, and is restarted with room."""
    ballast = stage.checkpoint / "ballast"
    _fill(ballast)
    try:
        code = stage.job.wait(120)
    finally:
        ballast.unlink()
    assert code == 1, stage.job.tail()
    yield
    stage.job.start()


# ---------------------------------------------------------------- workers


def _worker(
    harm: Callable[[Crew, str], None], mend: Callable[[Crew, str], None]
) -> Callable[[Stage], Injected]:
    """Harm done to a worker, until what it ran runs elsewhere; then it is mended."""

    @contextmanager
    def harmed(stage: Stage) -> Iterator[None]:
        crew, name = stage.pick()
        with stage.spared(crew, name):
            harm(crew, name)
            yield
            stage.await_moved(crew, name)
            mend(crew, name)

    return harmed


worker_restarted = _worker(Crew.leave, Crew.start)
"""No fault: a worker leaves in order and comes back, as in a rolling upgrade."""
worker_killed = _worker(Crew.kill, Crew.start)
"""SIGKILL to a worker; its guard ends its tasks. A new process of the same name follows."""
worker_frozen = _worker(
    lambda crew, name: crew.signal(name, signal.SIGSTOP),
    lambda crew, name: crew.signal(name, signal.SIGCONT),
)
"""SIGSTOP to a worker; then it wakes up."""


@contextmanager
def drained_and_fenced(stage: Stage) -> Iterator[None]:
    """A worker is to be empty and hangs instead: expelled, it wakes up, joins and gets nothing."""
    crew, name = stage.pick()
    with stage.spared(crew, name):
        crew.signal(name, signal.SIGSTOP)
        crew.drain(name, on=True)
        yield
        stage.await_moved(crew, name)
        crew.signal(name, signal.SIGCONT)
        until(lambda: crew.rests(name), f"{name} is back, drained", story=stage.story)
        crew.drain(name, on=False)


@contextmanager
def group_deleted(stage: Stage) -> Iterator[None]:
    """`config delete --force` under a running group: its members stop, and do not bring it back."""
    crew = stage.chance.choice([c for c in stage.crews if not _has_victim(stage, c)])
    crew.delete()
    until(lambda: not crew.held(), f"{crew.group} has stopped", story=stage.story)
    yield
    assert crew.held() == {}, "members brought a deleted group back"
    crew.declare()


def _has_victim(stage: Stage, crew: Crew) -> bool:
    return any(group == crew.group for group, _ in stage.victims)


def _islander(inject: Callable[[Stage], None]) -> Callable[[Stage], Injected]:
    """A fault of the islanders' proxy, until what they ran runs elsewhere."""

    @contextmanager
    def cut_off(stage: Stage) -> Iterator[None]:
        lost = [(crew, ISLANDER) for crew in stage.crews]
        inject(stage)
        try:
            yield
            for crew, name in lost:
                stage.await_moved(crew, name)
        finally:
            stage.island.mend()

    return cut_off


# ---------------------------------------------------------------- Kafka


@contextmanager
def broker_killed(stage: Stage) -> Iterator[None]:
    """SIGKILL to the broker that leads the members' own partition; it comes back later."""
    node = stage.kafka.nodes[_leader(stage)]
    node.kill()
    yield
    node.start(START_S)
    stage.kafka.in_sync()


@contextmanager
def broker_frozen(stage: Stage) -> Iterator[None]:
    """SIGSTOP to that broker until others lead what it led, and some seconds more."""
    number = _leader(stage)
    node = stage.kafka.nodes[number]
    node.freeze()
    try:
        until(lambda: _leader(stage) != number, "another broker leads", pause_s=0.5)
        yield
    finally:
        node.thaw()
    stage.kafka.in_sync()


@contextmanager
def brokers_rolled(stage: Stage) -> Iterator[None]:
    """A rolling restart: each broker in order, the next one when all replicas are in sync."""
    for position, node in enumerate(stage.kafka.nodes.values()):
        node.stop()
        if position == 1:
            yield
        node.start(START_S)
        stage.kafka.in_sync()


@contextmanager
def broker_slow(stage: Stage) -> Iterator[None]:
    """All that goes to and from Kafka takes 100 to 300 ms longer; meanwhile a worker restarts.

    It hits workers as well as brokers: settled in the slow network, with no other process away.
    """
    each_s = stage.chance.uniform(0.1, 0.3)
    stage.mainland.delay(each_s)
    stage.island.delay(each_s)
    try:
        with worker_restarted(stage):
            yield
        stage.settle()
    finally:
        stage.mainland.mend()
        stage.island.mend()


# ---------------------------------------------------------------- the table

_LOST = SESSION_S + 2 * HEARTBEAT_S + 2
"""A session, the tick that finds it over, two batches."""
_LEFT = 2 + 3
"""Two batches; and the delay Connect's assignor grants to one that may come back."""
_DELETED = 60
"""As long as the members wait before they ask again; the group is gone for that time on purpose."""
_START = 20
"""Spark, the claim, the groups' state; what is to change waits for it."""
_EXECUTOR = 6
"""A batch's second attempt, by an executor that has yet to start Python, or to start at all."""

DISK_FULL = Fault("disk full", COORDINATOR, disk_full, _START, ends_coordinator=True)
FAULTS: tuple[Fault, ...] = (
    Fault("driver killed", COORDINATOR, driver_killed, _START, ends_coordinator=True),
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
"""What must still work after every fault that hit no worker."""


def _executors(stage: Stage) -> list[psutil.Process]:
    def two() -> list[psutil.Process]:
        found = stage.spark.executors()
        return found if len(found) == 2 else []

    return until(two, "two executors run", story=stage.job.tail)


def _leader(stage: Stage) -> int:
    return stage.kafka.leader(f"{stage.topics.prefix}.membership", 0)


def _fill(ballast: Path) -> None:
    """Write until there is no room."""
    chunk = bytes(1 << 16)
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(chunk):
            pass


def _last(seconds: float) -> None:
    """The fault's own length; nothing is waited for."""
    time.sleep(seconds)
