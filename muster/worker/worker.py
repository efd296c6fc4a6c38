"""`Worker`: makes the calling process a member of a group.

One thread runs the session (`session.py`): it takes inputs from an inbox and performs the actions
that the session returns. Kafka (`kafka_link.py`) and callbacks (`callbacks.py`) have threads of
their own, so the lease is checked in time even if a callback is slow or the broker is away.
"""

from __future__ import annotations

import asyncio
import os
import queue
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from muster.kafka.client_settings import ClientSettings, client_settings
from muster.protocol.errors import ConfigError
from muster.protocol.events import Join, Lag
from muster.protocol.ids import GroupId, MemberId, Role, Task, group_fault, member_fault, parse_task
from muster.protocol.tasks import EMPTY, TaskSet
from muster.protocol.topics import DEFAULT_PREFIX
from muster.signing.followed_key_file import KeyFile, key_file_of
from muster.worker import arguments
from muster.worker.arguments import task_set
from muster.worker.assignment import Assignment, assignment_of
from muster.worker.callbacks import Callback, Callbacks, Caller
from muster.worker.changelog import Changelog, ChangelogLags, checked_lag
from muster.worker.errors import Fenced, WorkerError
from muster.worker.kafka_link import Connection, Link
from muster.worker.machine import THIS_MACHINE, Machine
from muster.worker.session import Session
from muster.worker.session_messages import (
    Acknowledged,
    Action,
    AllStopped,
    Assigned,
    ClockMoved,
    End,
    Input,
    LagsKnown,
    Lease,
    LeaveAsked,
    Lose,
    Notice,
    Ready,
    Release,
    Released,
    Send,
    Take,
    Wanted,
)
from muster.worker.session_steps import State
from muster.worker.worker_end import Ending
from muster.worker.worker_log import WorkerLog

CLOSE_TIMEOUT_S: Final = 30.0
FLUSH_S: Final = 5.0


class Worker:
    """A member of a group: its callbacks say which tasks to run, and when to stop them.

    Use it as a context manager, plain or async::

        with Worker(group="orders", bootstrap_servers="localhost:9092",
                    on_assigned=start, on_revoked=stop) as worker:
            worker.wait()

    Callbacks get a tuple of tasks and the `Assignment` that granted or revoked them. They are
    called one at a time, in a thread of the worker, or on the event loop of ``async with``, where
    they may be coroutines. What happens when they raise: ``docs/worker.md``.

    Args:
        group: the group to join.
        bootstrap_servers: ``HOST:PORT[,...]``; None = that of `config`.
        member_id: name of this process, unique in the group; None = a random one.
        instance_id: a name that a restarted process keeps (`group.instance.id`): if it returns
            within the session timeout, it gets its tasks again.
        rack: `client.rack`.
        capacity: weight relative to other members, e.g. number of threads.
        tags: `client.tag.*`: copies of a task are placed on members whose tags differ.
        topics: subtopologies it can run; None = all.
        static: jobs it is pinned to (KIP-987).
        protocols: assignment protocols it supports, best first; None = all (Connect's upgrades).
        topic_prefix: of muster's topics.
        config: further Kafka client settings, under Java's or librdkafka's names.
        signing_keys: keyring file (``docs/security.md``); None = `MUSTER_SIGNING_KEYS`, if set.
        rebalance_timeout_ms: how long it may need to stop a task; None = the group's.
        on_assigned: run these tasks.
        on_revoked: stop these tasks. When it returns, or when `released` names them, other members
            may get them.
        on_learn: keep a copy of these tasks (learner or standby, see `Assignment.role_of`); call
            `ready` when it has caught up. Without it copies are ready at once. When a copy becomes
            active, only `on_assigned` is called.
        on_forget: drop these copies.
        on_lost: stop these tasks at once: another member may get them at any moment. Without it
            `on_revoked` and `on_forget` are called.
        on_wanted: restore these copies first: they become active here once they have caught up.
        lag_from_changelog: returns how far each partition of a task's changelog is restored, as
            ``{(topic, partition): offset}``, or None when nothing is left to restore; the worker
            then reports lags by itself. Called in a thread of the worker.
        on_disk: tasks whose state an earlier process left here; with `lag_from_changelog` the first
            join carries their lags.
        on_lease: called from the worker's loop with each new end of the lease (on the boot-time
            clock) and how long stopping may take after it, both in milliseconds; must return at
            once. If it raises, the worker fails. For programs that supervise the worker itself.

    Raises:
        ConfigError: an argument that cannot be used; the error names it.

    Attributes:
        group, member_id: the group and this member's name.
        assignment: the newest assignment; None before the first and after a loss.
        error: why the worker stopped for good; None while it runs, and after `close`.
    """

    _machine: Machine = THIS_MACHINE

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
        self._pid = os.getpid()
        self.group = arguments.id_of("group", group, group_fault)
        member = member_id if member_id is not None else _random_member_id()
        self.member_id = arguments.id_of("member_id", member, member_fault)
        self.assignment: Assignment | None = None
        self.error: WorkerError | None = None
        self._instance_id = instance_id
        join = Join(
            group=GroupId(self.group),
            member=MemberId(self.member_id),
            incarnation=0,
            instance_id=arguments.name("instance_id", instance_id),
            rack=arguments.name("rack", rack),
            capacity=arguments.whole_number("capacity", capacity, 1),
            tags=arguments.tags(tags),
            topics=arguments.sorted_names("topics", topics),
            static=arguments.sorted_names("static", static) or (),
            protocols=arguments.names("protocols", protocols) or (),
            rebalance_timeout_ms=arguments.limit("rebalance_timeout_ms", rebalance_timeout_ms),
        )
        self._session = Session(join, self._machine.seed())
        # None in it: abandon the session.
        self._inbox: queue.SimpleQueue[Input | None] = self._machine.queue()
        self._callbacks = Callbacks(
            on_assigned, on_revoked, on_learn, on_forget, on_lost, on_wanted
        )
        self._callbacks.check()
        arguments.check_hooks(on_lease, lag_from_changelog)
        keys = key_file_of(signing_keys)
        hooks = (self._inbox.put, self._fail, self._lease_runs)
        self._caller = Caller(self._callbacks, *hooks, self._machine)
        clients = client_settings(arguments.addresses(bootstrap_servers), kafka=config)
        self._link = self._new_link(clients, topic_prefix, keys)
        self._log = WorkerLog(self.group, self.member_id, self._link.configured_groups)
        self._on_lease = on_lease
        self._lags = self._new_lags(clients, lag_from_changelog, task_set("on_disk", on_disk))
        self._active = EMPTY  # tasks that may run; only the loop's thread writes it
        self._lease_until_ms = 0
        self._ending = Ending(self._machine)
        self._stopped = Ending(self._machine)  # its threads have ended, too
        self._loop_thread = self._machine.thread("muster-worker", self._run)
        self._started = False
        self._has_failed = False

    # ------------------------------------------------------------------------------------- public

    def start(self) -> None:
        """Join the group. Returns at once; if the broker is away, the worker waits for it."""
        if self._callbacks.any_coroutine:
            accepted = "plain functions, or `async with Worker(...)`"
            raise ConfigError("callbacks", "coroutine functions", accepted)
        self._start(None)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S, *, temporary: bool | None = None) -> None:
        """Stop every task (`on_revoked`), leave the group, stop all threads. Idempotent.

        In a callback, and on the event loop that runs the callbacks, this only asks for the leave
        and returns at once, because a callback that still has to run would wait for the caller.
        `wait` and `ended` wait for the end. Threads that a callback itself waits for must not call
        this. In a forked process it does nothing, because the worker is the parent's, nor while
        the interpreter ends, because the worker's threads have ended.

        Args:
            timeout_s: how many seconds to wait for callbacks. After that no leave is sent, and the
                session expires.
            temporary: whether the group should wait for this member's return; None = yes if it has
                an instance id.
        """
        if not self._started or os.getpid() != self._pid or sys.is_finalizing():
            return
        self._ask_to_leave(temporary)
        if self._caller.inside or threading.current_thread() is self._loop_thread:
            return  # callbacks may wait for the caller: the leave is sent after it has returned
        if not self._ending.wait(timeout_s):
            self._abandon(timeout_s)
        self._loop_thread.join(timeout_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the worker has ended; False when `timeout_s` passed first.

        Raises:
            WorkerError: it ended because it could not go on. Without `timeout_s` also where it
                would never end: not started yet, in a callback, on the callbacks' event loop.
        """
        self._check_process()
        if timeout_s is None and not self._ending.is_set:
            self._check_started()
            if self._caller.inside:
                raise WorkerError(
                    "wait() here keeps callbacks from running, so it would never end;"
                    " on an event loop use `await worker.ended()`, and let callbacks return"
                )
        ended = self._ending.wait(timeout_s)
        if self.error is not None:
            raise self.error
        return ended

    async def ended(self) -> None:
        """`wait`, for coroutines. Cancelling it does not stop the worker.

        Raises:
            WorkerError: it ended because it could not go on, or it was not started.
        """
        self._check_process()
        self._check_started()
        await self._ending.wait_async()
        self.wait()

    def holds(self, task: Task | str) -> bool:
        """Whether this member may run a task now: it is assigned and the lease has not ended.

        The answer uses this machine's clock, so it is right even after the process was suspended.
        Ask before each use of what the task owns. The process may still be suspended between the
        question and the use; only a fencing token protects against that.

        Raises:
            WorkerError: this process was forked from the worker's: it does not know the answer.
        """
        self._check_process()
        parsed = parse_task(task) if isinstance(task, str) else task
        return self._lease_runs() and parsed in self._active

    def ready(self, *tasks: Task | str) -> None:
        """Report that learners or standbys have caught up and can take over.

        Raises:
            ConfigError: an argument that is no task.
        """
        self._check_process()
        self._inbox.put(Ready(task_set("ready", tasks)))

    def released(self, *tasks: Task | str) -> None:
        """Report tasks that have stopped before the running `on_revoked` or `on_forget` returns.

        Their next owners get them while the others still stop. Any thread may call this. Tasks that
        the running callback was not called with are ignored.

        Raises:
            ConfigError: an argument that is no task.
        """
        self._check_process()
        self._caller.released(task_set("released", tasks))

    def lag(
        self, offsets: Mapping[Task, int] | Mapping[str, int] | Mapping[Task | str, int]
    ) -> None:
        """Report lags of copies, in offsets. Before the start: of copies found on disk.

        A lag below 0 counts as 0: a position may be newer than the end it is compared with.

        Raises:
            ConfigError: a key that is no task, or a lag that is not a whole number, or 2**63 or
                more. Nothing is reported.
        """
        self._check_process()
        task_set("lag", offsets)
        lags = {
            parse_task(task) if isinstance(task, str) else task: checked_lag(task, lag)
            for task, lag in offsets.items()
        }
        self._inbox.put(LagsKnown(tuple(Lag(t, n) for t, n in sorted(lags.items()))))

    @property
    def state(self) -> str:
        """State of the session: new, joining, member, lost, leaving or ended.

        A worker that fails has lost its tasks; it has ended when `wait` returns.
        """
        if self._ending.is_set:
            return State.ENDED.value
        return State.LOST.value if self._has_failed else self._session.state.value

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        if error is None and self.error is not None:
            raise self.error

    async def __aenter__(self) -> Worker:
        self._start(asyncio.get_running_loop())
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ask_to_leave(None)
        # Not in a thread of the executor: the tasks may occupy all of them until they are revoked.
        if not await self._ending.wait_async(CLOSE_TIMEOUT_S):
            self._abandon(CLOSE_TIMEOUT_S)
        await self._stopped.wait_async(CLOSE_TIMEOUT_S)
        if error is None and self.error is not None:
            raise self.error

    # -------------------------------------------- its surroundings; `muster.testing` has others

    def _new_link(self, clients: ClientSettings, prefix: str, keys: KeyFile | None) -> Connection:
        return Link(clients, prefix, self.group, self.member_id, self._inbox.put, keys)

    def _new_lags(
        self, clients: ClientSettings, positions: Changelog | None, on_disk: TaskSet
    ) -> ChangelogLags:
        return ChangelogLags(clients.librdkafka(), positions, on_disk, self._inbox.put)

    # ----------------------------------------------------------------------------------- the loop

    def _start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if self._started:
            raise WorkerError("a worker can be started once; make a new one")
        self._check_process()
        self._started = True
        self._caller.open(loop)
        self._loop_thread.start()
        self._lags.open(self._link.open)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise WorkerError(
                f"this worker belongs to process {self._pid}, and threads and connections do"
                f" not follow into a forked process ({os.getpid()}); ask there, or make one here"
            )

    def _check_started(self) -> None:
        if not self._started:
            raise WorkerError("the worker was not started: use `with Worker(...)`, or `start`")

    def _ask_to_leave(self, temporary: bool | None) -> None:
        back_soon = self._instance_id is not None if temporary is None else temporary
        self._inbox.put(LeaveAsked(back_soon))

    def _abandon(self, waited_s: float) -> None:
        """Send nothing more, no leave either, and let the session expire."""
        self._log.log.error(
            "callbacks did not stop within %.0f s; closing without a leave, so the session expires",
            waited_s,
        )
        self._inbox.put(None)

    def _run(self) -> None:
        try:
            while self._session.state is not State.ENDED:
                if not self._take_inputs():
                    break
        except Exception as error:  # a bug: no task may run on without a lease
            self._log.log.exception("the worker failed")
            self._fail(error)
            self._lose_for_good()
        finally:
            self._active = EMPTY
            self._lags.close()
            if not self._link.close(FLUSH_S):
                self._log.log.warning("not everything could be written to Kafka before the end")
            self._ending.set()
            self._caller.close(FLUSH_S)
            self._stopped.set()

    def _take_inputs(self) -> bool:
        """Take all inputs; False = abandon the session."""
        inputs = self._waiting_inputs()
        self._log.hung(self._caller.hung())
        for item in [*inputs, ClockMoved()]:
            if item is None:
                if self.error is not None:
                    self._lose_for_good()
                return False
            if isinstance(item, Released) and item.role is Role.ACTIVE:
                self._active = self._active - item.tasks
            if isinstance(item, AllStopped):  # two processes of one snapshot must differ
                item = AllStopped(self._machine.seed())
            now_ms = self._machine.boottime_ms()
            for action in self._session.step(item, now_ms):
                self._do(action)
        return True

    def _waiting_inputs(self) -> list[Input | None]:
        """Wait for an input or the session's deadline; return all, acknowledgements first."""
        wait_s, deadline_ms = self._machine.look_up_s, self._session.deadline_ms
        if deadline_ms is not None:
            left_s = max(0, deadline_ms - self._machine.boottime_ms()) / 1000
            wait_s = left_s if wait_s is None else min(wait_s, left_s)
        try:
            inputs = [self._inbox.get(timeout=wait_s)]
        except queue.Empty:
            inputs = []
        self._link.take_acknowledgements()
        while not self._inbox.empty():
            inputs.append(self._inbox.get())
        return sorted(inputs, key=lambda item: not isinstance(item, Acknowledged))

    def _do(self, action: Action) -> None:
        match action:
            case Send():
                self._link.send(action)
            case Assigned(record):
                self.assignment = assignment_of(record)
                self._log.assigned(self.assignment)
                self._lags.assigned(record)
            case Lease(until_ms, stop_ms):
                self._lease_until_ms = until_ms
                if self._on_lease is not None:
                    self._on_lease(until_ms, stop_ms)
            case Take():
                self._take(action)
            case Wanted(tasks, record):
                self._caller.want(tasks, assignment_of(record))
            case Release(role, tasks, record):
                self._caller.stop(role, tasks, assignment_of(record))
            case Lose(reason):
                self._log.lost(reason)
                self._lose_everything()
            case Notice(text):
                self._log.notice(text)
            case End(fault, message):
                if fault is None:
                    self._log.left()  # a callback may have failed meanwhile: `error` stays
                else:
                    self.error = Fenced(fault, message)

    def _lease_runs(self) -> bool:
        return self._machine.boottime_ms() < self._lease_until_ms

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

    def _lose_for_good(self) -> None:
        self._has_failed = True
        self._lose_everything()

    def _fail(self, error: BaseException) -> None:
        """Send nothing more and let the session expire: something failed that must not fail."""
        if isinstance(error, WorkerError):
            self.error = error
        else:
            self.error = WorkerError(f"{type(error).__name__}: {error}")
            self.error.__cause__ = error
        self._log.log.error("%s gives up: %s", self.member_id, error)
        self._inbox.put(None)


def _random_member_id() -> str:
    """22 random characters. The first is not a dash: command lines would read it as an option."""
    while (name := secrets.token_urlsafe(16)).startswith("-"):
        pass
    return name
