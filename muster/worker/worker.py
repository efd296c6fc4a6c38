"""`Worker`: a member of a group, in a process of yours.

One thread runs the session machine (`session.py`): it takes what happens from an inbox, and does
what the machine answers. Kafka (`kafka.py`) and callbacks (`callbacks.py`) have threads of their
own, so neither a slow callback nor a broker that is away keeps the lease from being looked after.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Final, TypeAlias

from muster.clients import client_settings
from muster.keyring import key_file
from muster.protocol.errors import ConfigError
from muster.protocol.events import Join, Lag
from muster.protocol.ids import GroupId, MemberId, Role, Task, parse_task
from muster.protocol.keys import group_fault, member_fault
from muster.protocol.tags import checked_tags
from muster.protocol.tasks import EMPTY, TaskSet
from muster.protocol.topics import DEFAULT_PREFIX
from muster.worker.assignment import Assignment, assignment_of
from muster.worker.callbacks import Callback, Callbacks, Caller
from muster.worker.clock import boottime_ms
from muster.worker.errors import Fenced, WorkerError
from muster.worker.exchange import (
    Acknowledged,
    Action,
    Assigned,
    ClockMoved,
    End,
    Input,
    Lease,
    LeaveAsked,
    Lose,
    Notice,
    Ready,
    Release,
    Released,
    Restored,
    Send,
    Take,
)
from muster.worker.kafka import Link
from muster.worker.names import checked, random_member_id
from muster.worker.session import Session
from muster.worker.states import State

log = logging.getLogger("muster.worker")
_LogAdapter: TypeAlias = logging.LoggerAdapter[logging.Logger]

CLOSE_TIMEOUT_S: Final = 30.0
FLUSH_S: Final = 5.0
LOOK_UP_S: Final = 1.0
"""Longest sleep of the loop: a machine that was suspended is noticed within it."""


class Worker:
    """A member of a group: tells you which tasks to run, and when to stop.

    Use it as a context manager, plain or async::

        with Worker(group="orders", bootstrap_servers="localhost:9092",
                    on_assigned=start, on_revoked=stop) as worker:
            worker.wait()

    Callbacks get a tuple of tasks and the `Assignment` that gave or took them. They are called one
    at a time, in a thread of the worker's, or on the event loop of ``async with``, where they may
    be coroutines. What happens when they raise: `muster.worker.callbacks`, and ``docs/worker.md``.

    Args:
        group: the group to join.
        bootstrap_servers: ``HOST:PORT[,...]``; None = that of `config`.
        member_id: name of this process, unique in the group; None = a random one.
        instance_id: a name that outlives the process (`group.instance.id`): when it comes back
            within the session timeout it gets its tasks again.
        rack: `client.rack`.
        capacity: weight relative to other members, e.g. threads.
        tags: `client.tag.*`: what copies of a task should differ in.
        topics: subtopologies it can run; None = all.
        static: jobs it is pinned to (KIP-987).
        protocols: assignment protocols it speaks, best first; None = all (Connect's upgrades).
        topic_prefix: of muster's topics.
        config: further Kafka client settings, Java's or librdkafka's names.
        signing_keys: keyring file (``docs/security.md``); None = `MUSTER_SIGNING_KEYS`, if set.
        rebalance_timeout_ms: how long it may need to stop a task; None = the group's.
        on_assigned: run these tasks.
        on_revoked: stop these; they are somebody else's as soon as it returns.
        on_learn: keep a copy of these (learner or standby, see `Assignment.role_of`). For a
            learner, call `ready` when it has caught up. Without it learners are ready at once.
        on_forget: these copies are not wanted any more.
        on_lost: these are ours no more, now; somebody else may run them in a moment. Without
            it `on_revoked` and `on_forget` are called.
        on_lease: called from the worker's loop with each new end of the lease (on the boot-time
            clock) and how long stopping may take after it, both in milliseconds; must return at
            once. For guards that watch over the worker itself.

    Raises:
        ConfigError: an argument that cannot be used; it is named.

    Attributes:
        group, member_id: who this is.
        assignment: the newest assignment; None before the first and after a loss.
        error: why the worker stopped for good; None while it is well, and after `close`.
    """

    def __init__(
        self,
        *,
        group: str,
        bootstrap_servers: str | None = None,
        member_id: str | None = None,
        instance_id: str | None = None,
        rack: str | None = None,
        capacity: int = 1,
        tags: Mapping[str, str] | None = None,
        topics: Iterable[str] | None = None,
        static: Iterable[str] | None = None,
        protocols: Iterable[str] | None = None,
        topic_prefix: str = DEFAULT_PREFIX,
        config: Mapping[str, str] | None = None,
        signing_keys: str | None = None,
        rebalance_timeout_ms: int | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_learn: Callback | None = None,
        on_forget: Callback | None = None,
        on_lost: Callback | None = None,
        on_lease: Callable[[int, int], None] | None = None,
    ) -> None:
        self.group = checked("group", group, group_fault(group))
        member = member_id if member_id is not None else random_member_id()
        self.member_id = checked("member_id", member, member_fault(member))
        if capacity < 1:
            raise ConfigError("capacity", capacity, "1 or more")
        self.assignment: Assignment | None = None
        self._told: Assignment | None = None
        self.error: WorkerError | None = None
        self._instance_id = instance_id
        self._log = _LogAdapter(log, {"group": self.group, "member": self.member_id})
        join = Join(
            group=GroupId(self.group),
            member=MemberId(self.member_id),
            incarnation=0,
            instance_id=instance_id,
            rack=rack,
            capacity=capacity,
            tags=checked_tags(tags or {}),
            topics=None if topics is None else tuple(sorted(topics)),
            static=tuple(sorted(static or ())),
            protocols=tuple(protocols or ()),
            rebalance_timeout_ms=rebalance_timeout_ms,
        )
        self._session = Session(join, secrets.randbits(63))
        self._inbox: queue.SimpleQueue[Input | None] = queue.SimpleQueue()
        self._callbacks = Callbacks(on_assigned, on_revoked, on_learn, on_forget, on_lost)
        self._caller = Caller(self._callbacks, self._inbox.put, self._fail, self._lease_runs)
        clients = client_settings(bootstrap_servers, kafka=config)
        post, keys = self._inbox.put, key_file(signing_keys)
        self._link = Link(clients, topic_prefix, self.group, self.member_id, post, keys)
        self._on_lease = on_lease
        self._active = EMPTY  # tasks whose resources may be touched; the loop's alone to write
        self._lease_until_ms = 0
        self._ended = threading.Event()
        self._tell_ended: list[Callable[[], object]] = []
        self._loop_thread = threading.Thread(target=self._run, name="muster-worker", daemon=True)
        self._started = False

    # ------------------------------------------------------------------------------------- public

    def start(self) -> None:
        """Join the group. Returns at once; a broker that is away is waited for."""
        if self._callbacks.any_coroutine:
            accepted = "plain functions, or `async with Worker(...)`"
            raise ConfigError("callbacks", "coroutine functions", accepted)
        self._start(None)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S, *, temporary: bool | None = None) -> None:
        """Stop every task (`on_revoked`), leave the group, stop all threads. Idempotent.

        Args:
            timeout_s: how long to wait for callbacks; after it the session is left to expire.
            temporary: whether the group should wait for this member's return; None = when it has
                an instance id.
        """
        if not self._started:
            return
        back_soon = self._instance_id is not None if temporary is None else temporary
        self._inbox.put(LeaveAsked(back_soon))
        if self._caller.inside or threading.current_thread() is self._loop_thread:
            return  # a callback asked: the leave follows when it has returned
        if not self._ended.wait(timeout_s):
            self._log.error("callbacks did not stop within %.0f s; the session is left", timeout_s)
            self._inbox.put(None)
        self._loop_thread.join(timeout_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the worker has ended; False when `timeout_s` came first.

        Raises:
            WorkerError: it ended because it could not go on.
        """
        ended = self._ended.wait(timeout_s)
        if self.error is not None:
            raise self.error
        return ended

    async def ended(self) -> None:
        """`wait`, for coroutines. Cancelling it leaves the worker as it is.

        Raises:
            WorkerError: it ended because it could not go on.
        """
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        self._tell_ended.append(lambda: loop.call_soon_threadsafe(told.set))
        if not self._ended.is_set():  # it sets this first, then tells
            await told.wait()
        self.wait()

    def holds(self, task: Task | str) -> bool:
        """Whether this member may run a task right now: it is assigned and the lease runs.

        The answer comes from this machine's clock, so it is right also after the process was
        frozen. Ask before touching what the task owns; between the question and the touch a
        process can still be frozen, which only a fencing token guards against.
        """
        wanted = parse_task(task) if isinstance(task, str) else task
        return self._lease_runs() and wanted in self._active

    def ready(self, *tasks: Task | str) -> None:
        """Learners that have caught up: they can take over."""
        self._inbox.put(Ready(TaskSet.of(tasks)))

    def lag(self, offsets: Mapping[Task | str, int]) -> None:
        """Say how far copies are behind, in offsets. Before the start: copies found on disk."""
        told = {parse_task(t) if isinstance(t, str) else t: n for t, n in offsets.items()}
        self._inbox.put(Restored(tuple(Lag(t, n) for t, n in sorted(told.items()))))

    @property
    def state(self) -> str:
        """Where the session stands: new, joining, member, lost, leaving or ended."""
        return self._session.state.value

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if error is None and self.error is not None:
            raise self.error

    async def __aenter__(self) -> Worker:
        self._start(asyncio.get_running_loop())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)
        if error is None and self.error is not None:
            raise self.error

    # ----------------------------------------------------------------------------------- the loop

    def _start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if self._started:
            raise WorkerError("a worker can be started once; make a new one")
        self._started = True
        self._caller.open(loop)
        self._loop_thread.start()
        self._link.open()

    def _run(self) -> None:
        try:
            while self._session.state is not State.ENDED:
                if not self._turn():
                    break
        except Exception as error:  # a bug: nothing may run on without a lease
            self._log.exception("the worker failed")
            self._fail(error)
        finally:
            self._active = EMPTY
            if not self._link.close(FLUSH_S):
                self._log.warning("not everything could be written to Kafka before the end")
            self._ended.set()
            for tell in self._tell_ended:
                with contextlib.suppress(RuntimeError):  # its event loop is closed
                    tell()
            self._caller.close(FLUSH_S)

    def _turn(self) -> bool:
        """Take what has happened, acknowledgements first; False = give up the session."""
        given = self._wait()
        self._link.take_acknowledgements()
        while not self._inbox.empty():
            given.append(self._inbox.get())
        given.sort(key=lambda g: not isinstance(g, Acknowledged))
        for each in [*given, ClockMoved()]:
            if each is None:
                if self.error is not None:
                    self._lose_everything()
                return False
            if isinstance(each, Released) and each.role is Role.ACTIVE:
                self._active = self._active - each.tasks
            now_ms = boottime_ms()
            for action in self._session.step(each, now_ms):
                self._do(action)
        return True

    def _wait(self) -> list[Input | None]:
        deadline_ms = self._session.deadline_ms
        wait_s = LOOK_UP_S
        if deadline_ms is not None:
            wait_s = min(wait_s, max(0, deadline_ms - boottime_ms()) / 1000)
        try:
            return [self._inbox.get(timeout=wait_s)]
        except queue.Empty:
            return []

    def _do(self, action: Action) -> None:
        match action:
            case Send():
                self._link.send(action)
            case Assigned(record):
                self.assignment = assignment_of(record)
                self._tell(self.assignment)
            case Lease():
                self._extend(action)
            case Take():
                self._take(action)
            case Release(role, tasks, record):
                self._caller.stop(role, tasks, assignment_of(record))
            case Lose(reason):
                self._log.warning("%s lost its tasks: %s", self.member_id, reason)
                self._lose_everything()
            case Notice(text):
                self._log.warning("%s: %s", self.member_id, text)
            case End(fault, message):
                self.error = None if fault is None else Fenced(fault, message)
                if fault is None:
                    self._log.info("%s: has left the group", self.member_id)

    def _tell(self, now: Assignment) -> None:
        """One log line an assignment, however often it comes; later lines have its generation."""
        self._log = _LogAdapter(log, now.about)
        news = replace(now, revision=0)
        if news == self._told:
            return
        self._told = news
        held = f"{len(now.active)} active, {len(now.standby)} standby, {len(now.learner)} learner"
        self._log.info("%s: assigned %s (%s)", self.member_id, held, now.message or "no news")

    def _extend(self, lease: Lease) -> None:
        self._lease_until_ms = lease.until_ms
        if self._on_lease is not None:
            self._on_lease(lease.until_ms, lease.stop_ms)

    def _lease_runs(self) -> bool:
        return boottime_ms() < self._lease_until_ms

    def _take(self, take: Take) -> None:
        if take.role is Role.ACTIVE:
            self._active = self._active | take.tasks
        self._caller.start(take.role, take.tasks, assignment_of(take.record))
        if take.role is Role.LEARNER and self._callbacks.on_learn is None:
            self._inbox.put(Ready(take.tasks))

    def _lose_everything(self) -> None:
        self._active = EMPTY
        self._lease_until_ms = 0
        self.assignment = self._told = None
        self._caller.lose()

    def _fail(self, error: BaseException) -> None:
        """Something that must work did not: say nothing any more, let the session expire."""
        if isinstance(error, WorkerError):
            self.error = error
        else:
            self.error = WorkerError(f"{type(error).__name__}: {error}")
            self.error.__cause__ = error
        self._log.error("%s gives up: %s", self.member_id, error)
        self._inbox.put(None)
