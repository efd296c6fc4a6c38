"""When each group gets its ticks. Pure: the caller passes the time.

A group has one alarm: the time of its newest wake-up. `Schedule.due` returns the groups whose time
has come, with some that are a little early, so that the query reads many ticks in one batch. It
leaves out a group whose members heartbeat as agreed, and one that has used up its ticks. A group
that does not answer gets its tick again, ever more rarely, and a query that is behind gets few
ticks. `clock` writes them.

Groups whose rows wait (`batch.waiting_rows`) take turns, because thousands of them may be due while
a batch processes a few: each gets its tick when one before it has answered.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from muster.protocol.events import Mark
from muster.protocol.expected_heartbeats import Agreement
from muster.streams.heartbeat_covers import Sleeper

RETRY_MS = 1_000
"""A group that has not answered its tick gets another one after this time."""
RETRY_MS_MAX = 30_000
"""Each retry waits twice as long, up to this: the coordinator may be down or behind."""
BURST = 8
"""A group may get this many ticks at once."""
SPACING_MS = 500
"""The time between further ticks of a group. Its config decides how often it asks to be woken, so
without a limit the ticks of one group could slow the job down for all groups."""
BEHIND_TICKS = 100
"""Ticks a second for all groups together while the query is behind: more would only make the
backlog longer, and a tick has no effect before it is read."""
TURNS_MAX = 48
"""Groups with waiting rows that may have a tick without an answer: as many as a batch processes
(`batch.pace`). A batch that meets more of them only stores their rows once more."""
TURN_RETRY_MS = 4_000
"""Such a group that has not answered makes room for another after this time, and gets its tick
again. It is longer than a batch should take."""
EARLY_TICKS_MAX = 128
"""With a tick that is due, the clock writes up to this many others early, so that the query reads
them all in one batch."""
EARLY_SHARE = 6
"""A tick is early by at most the group's whole wait divided by this."""
HURRY_MS = 1_000
"""A tick that a group wants within this time does not wait for heartbeats."""
STALE_MAX = 4
"""An alarm that is replaced stays queued until its time, which a group may have set weeks ahead.
The queue is made anew when it has this many entries for each group (and `STALE_MIN` more)."""
STALE_MIN = 1_000


@dataclass(slots=True)
class _Alarm:
    """When a group wants to be woken, and when it is next.

    Attributes:
        by_clock: `wanted_ms` is a time of this clock, not one that the group has published.
        takes_turns: the rows of the group wait, so it gets its tick when it is its turn.
    """

    wanted_ms: int
    at_ms: int
    published: Mark | None = None
    retry_ms: int = RETRY_MS
    apart: bool = False
    wait_ms: int = 0
    by_clock: bool = False
    agreement: Agreement | None = None
    takes_turns: bool = False


@dataclass(slots=True)
class _Allowance:
    """Ticks a group may get: `ticks` of them at `since_ms`, and one more every `SPACING_MS`."""

    ticks: float
    since_ms: int

    def take(self, now_ms: int) -> int:
        """Take one tick and return 0; without one left, return the milliseconds until the next."""
        grown = max(now_ms - self.since_ms, 0) / SPACING_MS
        self.ticks, self.since_ms = min(self.ticks + grown, BURST), now_ms
        if self.ticks < 1:
            return max(1, round((1 - self.ticks) * SPACING_MS))
        self.ticks -= 1
        return 0


class Schedule:
    """Which groups want to be woken, and when. Times are the broker's, epoch milliseconds.

    Args:
        needless_until_ms: (group, its agreement, now) → the time up to which the group needs no
            tick, by what its members write; 0 = it needs one.
    """

    def __init__(
        self, needless_until_ms: Callable[[Sleeper, Agreement, int], int] = lambda *_: 0
    ) -> None:
        self._needless_until_ms = needless_until_ms
        self._alarms: dict[Sleeper, _Alarm] = {}
        self._allowed: dict[Sleeper, _Allowance] = {}
        self._behind_ms = -1_000
        self._queue: list[tuple[int, Sleeper]] = []
        self._early: list[tuple[int, int, Sleeper]] = []
        self._waiting: list[tuple[int, Sleeper]] = []
        """Groups that take turns, whose time has come, without a tick; a heap as `_queue`."""
        self._unanswered: dict[Sleeper, int] = {}
        """Group that has its turn → the time until which it keeps others waiting."""

    def note(
        self,
        sleeper: Sleeper,
        at_ms: int | None,
        published: Mark | None = None,
        *,
        apart: bool = False,
        now_ms: int = 0,
        by_clock: bool = False,
        agreement: Agreement | None = None,
        takes_turns: bool = False,
    ) -> None:
        """Note when a group wants to be woken; None = never.

        `published` is the mark of its wake-up, `apart` whether its members heartbeat apart (then
        `now_ms` is when the wake-up was read), `agreement` the heartbeats with which it needs no
        tick. `by_clock`: the time is this clock's, not one that the group has published.
        `takes_turns`: the group's rows wait, so it gets its tick when it is its turn.
        """
        self._unanswered.pop(sleeper, None)
        if at_ms is None:
            self._alarms.pop(sleeper, None)
            self._allowed.pop(sleeper, None)
            return
        self._forget_replaced()
        wait_ms = max(at_ms - now_ms, 0)
        self._alarms[sleeper] = _Alarm(
            *(at_ms, at_ms, published),
            apart=apart,
            wait_ms=wait_ms,
            by_clock=by_clock,
            agreement=agreement,
            retry_ms=TURN_RETRY_MS if takes_turns else RETRY_MS,
            takes_turns=takes_turns,
        )
        heapq.heappush(self._queue, (at_ms, sleeper))
        if apart:
            heapq.heappush(self._early, (at_ms - wait_ms // EARLY_SHARE, at_ms, sleeper))

    def _forget_replaced(self) -> None:
        """Make a queue anew that is full of alarms that newer ones have replaced."""
        most = STALE_MAX * len(self._alarms) + STALE_MIN
        if len(self._queue) + len(self._waiting) > most:
            self._queue_anew()
        if len(self._early) > most:
            # An alarm that was due since then is queued at its next time; it has no early one.
            queued = {(at_ms, sleeper): early_ms for early_ms, at_ms, sleeper in self._early}
            self._early = [
                (early_ms, at_ms, sleeper)
                for (at_ms, sleeper), early_ms in queued.items()
                if sleeper in self._alarms and self._alarms[sleeper].at_ms == at_ms
            ]
            heapq.heapify(self._early)

    def set_back(self, by_ms: int) -> None:
        """Note that the time was ahead by so much when the alarms were set.

        What a group has published stays as it is. Retries, and what this clock has wanted itself,
        come earlier by as much.
        """
        for alarm in self._alarms.values():
            if alarm.by_clock:
                alarm.wanted_ms -= by_ms
                alarm.at_ms -= by_ms
            elif alarm.at_ms > alarm.wanted_ms:
                alarm.at_ms = max(alarm.at_ms - by_ms, alarm.wanted_ms)
        self._behind_ms -= by_ms
        for allowance in self._allowed.values():
            allowance.since_ms -= by_ms
        self._unanswered = {each: until - by_ms for each, until in self._unanswered.items()}
        self._queue_anew()

    def _queue_anew(self) -> None:
        self._queue = [(alarm.at_ms, sleeper) for sleeper, alarm in self._alarms.items()]
        heapq.heapify(self._queue)
        self._waiting = []

    def due(self, now_ms: int, *, is_behind: bool = False) -> list[tuple[Sleeper, Mark | None]]:
        """The groups that are due, each with the mark of its wake-up.

        Each of them is scheduled again, in case the job does not answer the tick. While the query
        is behind they are `BEHIND_TICKS` a second at most, all groups together.
        """
        due: list[tuple[Sleeper, Mark | None]] = []
        most = len(self._alarms)
        if is_behind:
            most = BEHIND_TICKS if now_ms - self._behind_ms >= 1_000 else 0
            self._behind_ms = now_ms if most else self._behind_ms
        while self._queue and self._queue[0][0] <= now_ms and len(due) < most:
            at_ms, sleeper = heapq.heappop(self._queue)
            alarm = self._alarms.get(sleeper)
            if alarm is not None and alarm.takes_turns and alarm.at_ms == at_ms:
                heapq.heappush(self._waiting, (at_ms, sleeper))
            else:
                due += self._taken(at_ms, sleeper, now_ms)
        due += self._taken_in_turn(now_ms, most - len(due))
        most = min(most, len(due) + EARLY_TICKS_MAX) if due else 0
        while self._early and self._early[0][0] <= now_ms and len(due) < most:
            due += self._taken(*heapq.heappop(self._early)[1:], now_ms)
        return due

    def _taken_in_turn(self, now_ms: int, most: int) -> list[tuple[Sleeper, Mark | None]]:
        """The groups whose turn it is now, those first that are due for longest."""
        due: list[tuple[Sleeper, Mark | None]] = []
        if not self._waiting:
            return due
        late = [each for each, until_ms in self._unanswered.items() if until_ms <= now_ms]
        for sleeper in late:
            del self._unanswered[sleeper]
        while self._waiting and len(due) < most and len(self._unanswered) < TURNS_MAX:
            at_ms, sleeper = heapq.heappop(self._waiting)
            taken = self._taken(at_ms, sleeper, now_ms)
            if taken:
                self._unanswered[sleeper] = now_ms + TURN_RETRY_MS
            due += taken
        return due

    def _taken(
        self, at_ms: int, sleeper: Sleeper, now_ms: int
    ) -> list[tuple[Sleeper, Mark | None]]:
        """The group of an alarm at this time; none if a newer alarm replaced it or it must wait."""
        alarm = self._alarms.get(sleeper)
        if alarm is None or alarm.at_ms != at_ms:
            return []  # a newer wake-up has replaced this one, or its tick was early
        if alarm.agreement is not None:
            later_ms = self._needless_until_ms(sleeper, alarm.agreement, now_ms)
            if later_ms > now_ms:
                alarm.wanted_ms = alarm.at_ms = later_ms
                heapq.heappush(self._queue, (later_ms, sleeper))
                return []
        wait_ms = self._allowed.setdefault(sleeper, _Allowance(BURST, now_ms)).take(now_ms)
        alarm.at_ms = max(now_ms + (wait_ms or alarm.retry_ms), alarm.wanted_ms)
        heapq.heappush(self._queue, (alarm.at_ms, sleeper))
        if wait_ms:
            return []
        alarm.retry_ms = min(2 * alarm.retry_ms, RETRY_MS_MAX)
        return [(sleeper, alarm.published)]

    def heartbeats_wanted_ms(self, sleeper: Sleeper) -> int:
        """Broker time up to which a tick of a group should know the heartbeats; 0 = any."""
        alarm = self._alarms.get(sleeper)
        return 0 if alarm is None or not alarm.apart else alarm.wanted_ms

    def is_in_a_hurry(self, sleeper: Sleeper) -> bool:
        """Whether a group wanted its tick too soon to wait for heartbeats."""
        alarm = self._alarms.get(sleeper)
        return alarm is not None and alarm.wait_ms < HURRY_MS

    def __contains__(self, sleeper: object) -> bool:
        return sleeper in self._alarms

    def next_ms(self) -> int | None:
        """The next time at which `due` may return a group; None = not before the next `note`."""
        waits_ms = min(self._unanswered.values(), default=None) if self._waiting else None
        times_ms = [*([] if waits_ms is None else [waits_ms]), *(at for at, _ in self._queue[:1])]
        return min(times_ms, default=None)

    def overdue_ms(self, now_ms: int) -> int:
        """How late the wake-up is that waits longest for an answer; 0 = none is late.

        A group that takes turns may have to wait long, so it does not count.
        """
        alarms = [*self._alarms.values()]
        past = (now_ms - alarm.wanted_ms for alarm in alarms if not alarm.takes_turns)
        return max(0, max(past, default=0))

    def __len__(self) -> int:
        return len(self._alarms)
