"""`Worker`: a member of a group, in a process of yours.

One thread runs the session machine (`session.py`): it takes what happens from an inbox, and does
what the machine answers. Kafka (`kafka.py`) and callbacks (`callbacks.py`) have threads of their
own, so neither a slow callback nor a broker that is away keeps the lease from being looked after.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Final

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
from muster.worker.changelog import Changelog, ChangelogLags
from muster.worker.clock import boottime_ms
from muster.worker.ending import Ending
from muster.worker.errors import Fenced, WorkerError
from muster.worker.exchange import (
    Action,
    Assigned,
    ClockMoved,
    End,
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
    Wanted,
)
from muster.worker.inbox import Inbox
from muster.worker.kafka import Link
from muster.worker.names import checked, random_member_id
from muster.worker.session import Session
from muster.worker.states import State
from muster.worker.telling import Teller

CLOSE_TIMEOUT_S: Final = 30.0
FLUSH_S: Final = 5.0


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
        on_revoked: stop these; they are another member's as soon as it returns, or as soon as
            `released` names them.
        on_learn: keep a copy of these (learner or standby, see `Assignment.role_of`). Call `ready`
            when it has caught up. Without it copies are ready at once. A copy that becomes active
            is named by `on_assigned`, and not by `on_forget` before.
        on_forget: these copies are not wanted any more.
        on_lost: these are ours no more, now; another member may run them in a moment. Without
            it `on_revoked` and `on_forget` are called.
        on_wanted: restore these copies first: they become active here once they have caught up.
        lag_from_changelog: for a task, how far each partition of its changelog is restored, as
            ``{(topic, partition): offset}``, or None when there is nothing to restore (any more).
            With it the lags of copies and of actives that still restore are told by themselves:
            Kafka is asked where the partitions end. Called in a thread of the worker's.
        on_disk: tasks whose state an earlier life left here; with `lag_from_changelog` their lags
            are told with the first join.
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
        on_wanted: Callback | None = None,
        on_lease: Callable[[int, int], None] | None = None,
        lag_from_changelog: Changelog | None = None,
        on_disk: Iterable[Task | str] = (),
    ) -> None:
        self.group = checked("group", group, group_fault(group))
        member = member_id if member_id is not None else random_member_id()
        self.member_id = checked("member_id", member, member_fault(member))
        if capacity < 1:
            raise ConfigError("capacity", capacity, "1 or more")
        self.assignment: Assignment | None = None
        self.error: WorkerError | None = None
        self._instance_id = instance_id
        self._teller = Teller(self.group, self.member_id)
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
        self._inbox = Inbox()
        self._callbacks = Callbacks(
            on_assigned, on_revoked, on_learn, on_forget, on_lost, on_wanted
        )
        self._caller = Caller(self._callbacks, self._inbox.put, self._fail, self._lease_runs)
        clients = client_settings(bootstrap_servers, kafka=config)
        post, keys = self._inbox.put, key_file(signing_keys)
        self._link = Link(clients, topic_prefix, self.group, self.member_id, post, keys)
        self._teller.others = self._link.configured_groups
        self._on_lease = on_lease
        lags = (lag_from_changelog, TaskSet.of(on_disk), post)
        self._lags = ChangelogLags(clients.librdkafka(), *lags)
        self._active = EMPTY  # tasks whose resources may be touched; the loop's alone to write
        self._lease_until_ms = 0
        self._ending = Ending()
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
        if not self._ending.wait(timeout_s):
            self._teller.log.error(
                "callbacks did not stop within %.0f s; the session is left", timeout_s
            )
            self._inbox.put(None)
        self._loop_thread.join(timeout_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the worker has ended; False when `timeout_s` came first.

        Raises:
            WorkerError: it ended because it could not go on.
        """
        ended = self._ending.wait(timeout_s)
        if self.error is not None:
            raise self.error
        return ended

    async def ended(self) -> None:
        """`wait`, for coroutines. Cancelling it leaves the worker as it is.

        Raises:
            WorkerError: it ended because it could not go on.
        """
        await self._ending.awaited()
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
        """Learners and standbys that have caught up: they can take over."""
        self._inbox.put(Ready(TaskSet.of(tasks)))

    def released(self, *tasks: Task | str) -> None:
        """Tasks of the `on_revoked` (or `on_forget`) that runs now have stopped, before it returns.

        They go to their next owners while the others still stop. For any thread; tasks that this
        call of the callback was not about change nothing.
        """
        self._caller.released(TaskSet.of(tasks))

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
        self._lags.open(self._link.open)

    def _run(self) -> None:
        try:
            while self._session.state is not State.ENDED:
                if not self._turn():
                    break
        except Exception as error:  # a bug: nothing may run on without a lease
            self._teller.log.exception("the worker failed")
            self._fail(error)
        finally:
            self._active = EMPTY
            self._lags.close()
            if not self._link.close(FLUSH_S):
                self._teller.log.warning("not everything could be written to Kafka before the end")
            self._ending.come()
            self._caller.close(FLUSH_S)

    def _turn(self) -> bool:
        """Take what has happened, acknowledgements first; False = give up the session."""
        given = self._inbox.take(self._session.deadline_ms, self._link.take_acknowledgements)
        self._teller.hung(self._caller.hung())
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

    def _do(self, action: Action) -> None:
        match action:
            case Send():
                self._link.send(action)
            case Assigned(record):
                self.assignment = assignment_of(record)
                self._teller.assigned(self.assignment)
                self._lags.assigned(record)
            case Lease():
                self._extend(action)
            case Take():
                self._take(action)
            case Wanted(tasks, record):
                self._caller.want(tasks, assignment_of(record))
            case Release(role, tasks, record):
                self._caller.stop(role, tasks, assignment_of(record))
            case Lose(reason):
                self._teller.lost(reason)
                self._lose_everything()
            case Notice(text):
                self._teller.notice(text)
            case End(fault, message):
                self._end(None if fault is None else Fenced(fault, message))

    def _end(self, error: WorkerError | None) -> None:
        self.error = error
        if error is None:
            self._teller.left()

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
        if take.role is not Role.ACTIVE and self._callbacks.on_learn is None:
            self._inbox.put(Ready(take.tasks))

    def _lose_everything(self) -> None:
        self._active = EMPTY
        self._lease_until_ms = 0
        self.assignment = None
        self._lags.lost()
        self._caller.lose()

    def _fail(self, error: BaseException) -> None:
        """Something that must work did not: say nothing any more, let the session expire."""
        if isinstance(error, WorkerError):
            self.error = error
        else:
            self.error = WorkerError(f"{type(error).__name__}: {error}")
            self.error.__cause__ = error
        self._teller.log.error("%s gives up: %s", self.member_id, error)
        self._inbox.put(None)
