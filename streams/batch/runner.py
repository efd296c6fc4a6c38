"""Runs the group batches of one process: here, in a child process, or not at all.

A group batch runs here, unless

- it is large: then a child process computes it while batches go on (`batches_aside`);
- it may end its process: then Spark waits for a child process, and a group whose child gives no
  answer is quarantined (`quarantine`);
- the group is quarantined: then its rows become dead letters until an operator releases it;
- many groups have a config, and this one is not due: then its rows wait (`pace`).

A group batch that takes more CPU time than `group_cpu_s` ends the process; the next start repeats
the Spark batch with children.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from pyspark.sql.types import Row

from muster.protocol.dead_letters import DeadLetter
from muster.protocol.topics import TopicKind
from muster.schemas import WriterSchema, schemas_of
from muster.state import missed_records, superseded
from muster.state.assignor_outcome import Aside
from muster.state.deadlines import ASK_AGAIN_MS
from muster.state.group import Group
from muster.streams.batch import batches_aside, group_batch, outbox, quarantine, waiting_rows
from muster.streams.batch.asides import Asides
from muster.streams.batch.child_process import ChildFailed, limit_cpu, run_in_child
from muster.streams.batch.group_batch import BatchResult, Publisher, Rows
from muster.streams.batch.inbox import (
    Inbox,
    newest_ms_of,
    open_lane,
    refuse,
    refuse_quarantined,
    small_ticks,
)
from muster.streams.batch.letter_limits import LetterBudget
from muster.streams.batch.pace import Pace
from muster.streams.batch.stored_values import Stored
from muster.streams.batch.waiting_rows import Waiting
from muster.streams.batch.work_limits import LargeConfigs, Limits
from muster.streams.source import TOPIC_AT, Packing, split_lane


class BatchRunner:
    """Runs group batches.

    Args:
        publishers: prefix → what its group batches need.
        topics: the input topics, ascending.
        writers: schemas of other writers.
        is_signed: whether the rows have room for signatures.
        group_cpu_s: CPU time that one group batch may take, in seconds.
    """

    def __init__(
        self,
        publishers: Mapping[str, Publisher],
        topics: Sequence[str],
        writers: tuple[WriterSchema, ...],
        *,
        is_signed: bool,
        group_cpu_s: float,
    ) -> None:
        self._publishers = dict(publishers)
        self._topics = tuple(topics)
        self._config_topics = frozenset(
            number for number, topic in enumerate(topics) if topic.endswith(f".{TopicKind.CONFIG}")
        )
        self._packing = Packing(self._topics, is_signed)
        self._writers = writers
        self._group_cpu_s = group_cpu_s
        self._placements: Callable[[str], Aside] | None = None
        self._batches: Asides | None = None
        self._is_suspect = False

    def _begin_batch(
        self, placements: Asides | None, batches: Asides | None, *, is_suspect: bool
    ) -> None:
        """Begin a Spark batch.

        Args:
            placements: computes large placements; None = they are computed in the batch.
            batches: computes large group batches; None = likewise.
            is_suspect: whether each group batch runs in a child process for which Spark waits.
        """
        self._pace = Pace()
        self._letter_budget = LetterBudget()
        self._large_configs = LargeConfigs()
        self._placements = None if placements is None else placements.of
        self._batches = batches
        self._is_suspect = is_suspect

    def _forget_groups(self) -> None:
        """Free the memory of the groups that this process keeps, because it does not suffice."""

    def _taken(self, rows: Rows, waiting: Waiting | None = None) -> BatchResult:
        """Run a group batch, in a child process if it is large or may do harm."""
        if rows.stored.is_quarantined:
            return self._taken_in_quarantine(rows)
        if waiting is not None and waiting.first:
            return self._taken_over(rows, waiting)
        due_ms = self._due_ms(rows, waiting)
        if due_ms is not None:
            rows = rows if self._is_suspect else rows._replace(group=self._known(rows))
            if not self._is_left(rows, rows.group):
                return self._wait(rows, due_ms, waiting)
        if self._is_careful(rows.stored):
            taken = self._run_in_child_or_quarantine(rows)
        elif self._is_large(rows):
            return self._taken_over(
                rows._replace(entries=[]), Waiting(rows.stored, rows.entries, [])
            )
        else:
            taken = self._run_here(rows)
        return self._woken(rows, taken) if rows.have_waited else taken

    def _run_here(self, rows: Rows) -> BatchResult:
        """Run a group batch in this process, if its memory suffices."""
        limit_cpu(self._group_cpu_s)
        try:
            return self._run(rows)
        except MemoryError:
            self._forget_groups()
        finally:
            limit_cpu(0)
        return self._run_in_child_or_quarantine(rows._replace(group=None))

    def _is_careful(self, stored: Stored) -> bool:
        """Whether a group's batch may end the process that runs it, and Spark waits for a child."""
        return self._is_suspect or stored.is_on_probation

    def _is_large(self, rows: Rows) -> bool:
        """Whether a child computes the batch while others go on."""
        return (
            self._batches is not None
            and batches_aside.is_large(rows)
            and quarantine.names_a_group(rows.lane)
            and not self._is_left(rows, rows.group)
            and not self._batches.is_full
        )

    def _is_left(self, rows: Rows, group: Group | None) -> bool:
        """Whether the group is left to a later coordinator, whose wake-up must stand."""
        return group is not None and group.is_left_to_a_later_one(self._publisher(rows).epoch)

    def _due_ms(self, rows: Rows, waiting: Waiting | None) -> int | None:
        """When a group with a config is due; None = its rows are processed in this batch.

        The answer must not depend on what else this process does, or on which groups it has in
        memory, because a batch that Spark repeats must process the same groups.
        """
        if not rows.configs:
            return None
        was_due_ms = None if waiting is None else waiting.due_ms
        due_ms = self._pace.due_ms(newest_ms_of(rows.entries), was_due_ms)
        if due_ms is None or batches_aside.is_large(rows):
            return None
        may_wait = waiting_rows.may_wait(rows) and quarantine.names_a_group(rows.lane)
        return due_ms if may_wait else None

    def _wait(self, rows: Rows, due_ms: int, waiting: Waiting | None) -> BatchResult:
        """Store all rows of a group until it is due, with a wake-up if none is outstanding."""
        now = Waiting(rows.stored, [], rows.entries, due_ms)
        stored = waiting_rows.stored_with(now, self._packing)
        taken = BatchResult([], rows.group, stored)
        is_woken = waiting is not None and waiting.due_ms == due_ms
        # A clock that is ahead of the broker uses a wake-up up before the group is due.
        if is_woken and not small_ticks(rows.entries, signed=rows.signed):
            return taken
        return self._woken(rows, taken, at_ms=due_ms)

    def _taken_over(self, rows: Rows, waiting: Waiting) -> BatchResult:
        """Take over the result of the rows that wait, if it is there.

        The rows of this batch wait behind them, also in the batch that takes the result over.
        """
        lane, before = rows.lane, rows.stored
        later, beyond = waiting_rows.within_room(rows.entries)
        why = "the group's events exceed what may wait while its batch is computed"
        refusals = self._refused(lane, beyond, DeadLetter.TOO_MUCH_AT_ONCE, why) if beyond else []
        result = self._asked(rows._replace(entries=waiting.first, have_waited=True))
        rows = rows._replace(entries=later or waiting.first)
        if isinstance(result, str):
            taken = self._quarantine(
                rows._replace(entries=sorted([*waiting.first, *later])), result
            )
        elif result is None:
            stored = waiting_rows.stored_with(Waiting(before, waiting.first, later), self._packing)
            taken = self._woken(rows, BatchResult([], rows.group, stored))
        elif later:
            stored = waiting_rows.stored_with(Waiting(result.stored, [], later), self._packing)
            taken = self._woken(rows, replace(result, stored=stored), again=True)
        else:
            taken = self._woken(rows, result)
        return replace(taken, rows=[*refusals, *taken.rows])

    def _asked(self, rows: Rows) -> BatchResult | str | None:
        """The result of a large group batch, why there is none, or None while it is computed."""
        if self._is_careful(rows.stored) or self._batches is None:
            try:
                return self._in_child(lambda: self._run(rows))
            except ChildFailed as failure:
                return str(failure)

        def work() -> BatchResult:
            # No batch waits for this one, but its group does: a placement is computed afterwards.
            self._placements = lambda prefix: lambda question, place: None
            self._letter_budget, self._large_configs = LetterBudget.apart(), LargeConfigs()
            return self._run(rows)

        question = batches_aside.question(rows.lane, rows.stored, rows.entries)
        return self._batches.ask(question, work)

    def _woken(
        self, rows: Rows, taken: BatchResult, *, again: bool = False, at_ms: int | None = None
    ) -> BatchResult:
        """Add a wake-up in place of the group's own, if the batch publishes none or `again`.

        `at_ms`: for when it is; None = for some moments later.
        """
        if self._is_left(rows, taken.group) or (not again and waiting_rows.wakes(taken.rows)):
            return taken
        publisher = self._publisher(rows)
        if at_ms is None:
            at_ms = newest_ms_of(rows.entries) + ASK_AGAIN_MS
        wake_up = waiting_rows.wake_up(rows.lane, at_ms, publisher, taken.stored)
        return replace(taken, rows=[*taken.rows, *wake_up])

    def _taken_in_quarantine(self, rows: Rows) -> BatchResult:
        """Refuse the rows of a quarantined group, unless an operator releases it with them."""
        lane, entries, topics = rows.lane, rows.entries, self._topics
        rows = rows._replace(stored=self._left_if_superseded(rows, rows.stored))
        if quarantine.successor_of(rows.stored) > self._publisher(rows).epoch:
            return BatchResult([], None, rows.stored)
        has_read = quarantine.configs_read(lane, rows.stored) if self._has_config(entries) else {}
        unread = quarantine.unread(entries, topics, has_read)
        inbox = self._inbox(rows) if self._has_config(unread) else None
        if inbox is None or not quarantine.releases(inbox, has_read):
            inbox = refuse_quarantined(lane, unread, topics, rows.signed, None)
            return BatchResult(self._letters(inbox), None, rows.stored)
        return self._release(rows)

    def _left_if_superseded(self, rows: Rows, stored: Stored) -> Stored:
        """Note in the stored values of a quarantined group if a row is a later one's tick."""
        ticks = small_ticks(rows.entries, signed=rows.signed)
        if not ticks:
            return stored
        named = superseded.newest_named(self._inbox(rows._replace(entries=ticks)).events)
        if named <= self._publisher(rows).epoch:
            return stored
        return quarantine.left_to(stored, named, self._packing)

    def _run(self, rows: Rows) -> BatchResult:
        """Read the rows and apply their events to the group.

        Raises:
            MemoryError: there is not enough memory.
        """
        rows = rows._replace(group=self._known(rows))
        inbox = self._inbox(rows)
        if inbox.group is None or (rows.entries and not inbox.events and not rows.have_waited):
            return BatchResult(self._letters(inbox), rows.group, rows.stored)
        return group_batch.take(
            *(rows.group, rows.stored, inbox, self._publisher(rows), self._letter_budget),
            have_waited=rows.have_waited,
        )

    def _known(self, rows: Rows) -> Group | None:
        return group_batch.known(rows, predecessors_obey=self._publisher(rows).predecessors_obey)

    def _inbox(self, rows: Rows) -> Inbox:
        """The events of the rows."""
        lane, entries, keyring, stored, group, *_ = rows
        schemas = schemas_of(self._writers)
        most = self._publisher(rows).group_tasks_max
        members = 0 if group is None else len(group.roster)
        tasks = group_batch.tasks_of(group, stored)
        limits = Limits(most, tasks, members, stored.credit, self._large_configs)
        try:
            return open_lane(
                lane, entries, self._topics, schemas, keyring, stored.replay_guard, limits
            )
        except MemoryError:
            raise
        except Exception:
            # A bug in muster: raising would bring the same rows back at every start.
            failed, story = DeadLetter.GROUP_FAILED, traceback.format_exc()
            return refuse(lane, entries, self._topics, rows.signed, failed, story)

    def _run_in_child_or_quarantine(self, rows: Rows) -> BatchResult:
        """Run a group batch in a child; if it gives no answer, quarantine the group."""
        try:
            return self._in_child(lambda: self._run(rows))
        except ChildFailed as failure:
            return self._quarantine(rows, str(failure))

    def _release(self, rows: Rows) -> BatchResult:
        """Run the batch that releases a quarantined group (see the three steps in `quarantine`)."""
        try:
            with suppress(ChildFailed):
                return self._in_child(lambda: self._catch_up(rows))
            anew = rows._replace(stored=rows.stored.asked_anew())
            return self._in_child(lambda: self._unless_it_stays(rows, self._run(anew)))
        except ChildFailed as failure:
            return self._quarantine(rows, str(failure))

    def _catch_up(self, rows: Rows) -> BatchResult:
        """Process the rows that were set aside at the quarantine, then the rows of this batch.

        Raises:
            ChildFailed: the rows were not kept, or are of topics that the job does not read.
        """
        known = quarantine.before(rows.lane, rows.stored, self._packing)
        if known is None:
            raise ChildFailed("its rows were not kept, or are of other topics")
        stored, entries = known
        asked = rows
        first = self._run(rows._replace(stored=stored, entries=entries))
        rows = rows._replace(stored=first.stored, group=first.group)
        group = group_batch.known(rows, predecessors_obey=False)
        if group is not None:  # heartbeats that came during the quarantine are lost
            rows = rows._replace(group=missed_records.after(group))
        second = self._run(rows)
        deletions: list[Row] = []
        if second.stored.snapshot is None:
            deletions = quarantine.forgotten(rows.lane, self._publisher(rows))
        second = replace(second, rows=[*first.rows, *second.rows, *deletions])
        return self._unless_it_stays(asked, second)

    def _unless_it_stays(self, rows: Rows, result: BatchResult) -> BatchResult:
        """The result of a release; what is kept stays if the group stays quarantined.

        It does if the core fails, or if an event says that a later coordinator has the group.
        """
        if not result.stored.is_quarantined:
            return result
        successor = None if result.group is None else result.group.recovery.successor
        stored = rows.stored
        if successor is not None:
            stored = quarantine.left_to(stored, successor, self._packing)
        return replace(result, stored=stored)

    def _in_child(self, work: Callable[[], BatchResult]) -> BatchResult:
        """Run `work` in a child process and return its result, without the group.

        Raises:
            ChildFailed: the child gave no answer.
        """

        def answer() -> tuple[list[Row], Stored, LetterBudget]:
            taken = work()
            return taken.rows, taken.stored, self._letter_budget

        rows, stored, self._letter_budget = run_in_child(answer, self._group_cpu_s)
        return BatchResult(rows, None, stored)

    def _has_config(self, entries: Sequence[bytes]) -> bool:
        return any(map(self._is_config, entries))

    def _is_config(self, entry: bytes) -> bool:
        return entry[TOPIC_AT] in self._config_topics  # for every row, so it must be quick

    def _quarantine(self, rows: Rows, story: str) -> BatchResult:
        """Quarantine a group; rows whose key names no group only become dead letters."""
        publisher = self._publisher(rows)
        if not rows.entries:  # all were old; the next rows show again what the group does
            return BatchResult([], None, rows.stored)
        if not quarantine.names_a_group(rows.lane):
            letters = self._refused(rows.lane, rows.entries, DeadLetter.GROUP_FAILED, story)
            return BatchResult(letters, None, rows.stored)
        where = (rows.lane, rows.entries, self._topics)
        signed = rows.signed
        taken = quarantine.begin(*where, rows.stored, publisher, self._letter_budget, signed, story)
        return replace(taken, stored=self._left_if_superseded(rows, taken.stored))

    def _publisher(self, rows: Rows) -> Publisher:
        prefix = split_lane(rows.lane)[0]
        publisher = self._publishers[prefix]
        if self._placements is not None:
            publisher = publisher._replace(aside=self._placements(prefix))
        return publisher

    def _refused(
        self, lane: bytes, entries: Sequence[bytes], reason: DeadLetter, message: str
    ) -> list[Row]:
        """The rows of the dead letters for all these rows of a lane."""
        signed = self._packing.signed
        return self._letters(refuse(lane, entries, self._topics, signed, reason, message))

    def _letters(self, inbox: Inbox, *, is_shared: bool = False) -> list[Row]:
        """The rows of an inbox's dead letters."""
        rejected = inbox.rejected
        letters = self._letter_budget.admitted(inbox.prefix, rejected, is_shared=is_shared)
        partitions = self._publishers[inbox.prefix].partitions
        return outbox.rows(inbox.prefix, letters, partitions)
