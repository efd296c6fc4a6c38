"""Streams of server-sent events: what changed in a group, or in the list of groups.

Each message says what differs from the previous message. While a slow browser receives one, later
records only mark the group as changed, and the next message has the newest state. So the reader
never waits for a page, and a page costs at most one message of memory.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool

from muster.console.explanations import Explainer, generation_json
from muster.console.fleet import findings, rows
from muster.console.frames import Frame, Json, delta, differing, frame
from muster.console.history import History, Moment
from muster.console.store import GroupKey, Store
from muster.doctor.finding import Finding
from muster.output import wall_ms

PAUSE_S = 0.05
"""Least time between two messages to a page of a group."""
FLEET_PAUSE_S = 1.0
COUNTS_S = 1.0
"""How often sentences that count seconds are sent again."""
KEEP_ALIVE_S = 15.0
STREAMS_MAX = 500
FRAMES_MAX = 64
GENERATIONS_SHOWN = 300
MOMENTS_SHOWN = 1_500


class Hub:
    """Wakes the pages of a group, in the event loop, when the store gets a record of it."""

    def __init__(self, store: Store) -> None:
        self._lock = threading.Lock()
        self._changed: set[GroupKey] = set()
        self._is_called = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[GroupKey | None, set[asyncio.Event]] = {}
        self._end = asyncio.Event()
        self.streams = 0
        store.listen(self._note)

    @property
    def has_ended(self) -> bool:
        """Whether the console stops, so that all streams end."""
        return self._end.is_set()

    def end(self) -> None:
        """End all streams; called in the event loop."""
        self._end.set()
        for waiting in self._waiting.values():
            for event in waiting:
                event.set()

    async def rest(self, pause_s: float) -> None:
        """Wait so long, or until the streams end."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._end.wait(), pause_s)

    def _note(self, key: GroupKey) -> None:
        """Called by the reader; thousands of records cause one call of the event loop."""
        with self._lock:
            self._changed.add(key)
            loop = self._loop
            if self._is_called or loop is None:
                return
            self._is_called = True
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        with self._lock:
            changed, self._changed, self._is_called = self._changed, set(), False
        for key in (*changed, None):
            for event in self._waiting.get(key, ()):
                event.set()

    @contextmanager
    def watch(self, key: GroupKey | None) -> Iterator[asyncio.Event]:
        """An event that is set when a group has changed; None = any group."""
        self._loop = asyncio.get_running_loop()
        event = asyncio.Event()
        self._waiting.setdefault(key, set()).add(event)
        self.streams += 1
        try:
            yield event
        finally:
            self.streams -= 1
            self._waiting[key].discard(event)
            if not self._waiting[key]:
                del self._waiting[key]


@dataclass(slots=True)
class _KeptFrame:
    """The frame of a moment; None = not made yet. `lock` is held while it is made."""

    moment: Moment
    frame: Frame | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class SharedViews:
    """Frames and rows that pages share, so that ten pages of a group cost little more than one."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._fleet_lock = threading.Lock()  # a large list takes long; pages of groups do not wait
        # By the moment itself: a group that comes back under its name counts from 0 again.
        self._frames: dict[int, _KeptFrame] = {}
        self._fleet: tuple[int, float, dict[str, Json]] = (-1, 0.0, {})

    def frame(self, key: GroupKey, moment: Moment) -> Frame | None:
        """The frame of a moment of a group; None = the group is gone."""
        with self._lock:
            kept = self._frames.pop(id(moment), None) or _KeptFrame(moment)
            self._frames[id(moment)] = kept
            while len(self._frames) > FRAMES_MAX:
                del self._frames[next(iter(self._frames))]
        with kept.lock:  # the pages of a group ask at the same time, when a record has come
            if kept.frame is None:
                history = self.store.history(key)
                if history is None:
                    return None
                kept.frame = frame(history, moment, history.snapshot(moment))
            return kept.frame

    def findings(self) -> dict[str, list[Finding]]:
        """The doctor's findings on groups and dead letters, by prefix."""
        return findings(self.store, wall_ms())

    def fleet(self) -> dict[str, Json]:
        """The rows of all groups, computed at most once a second."""
        with self._fleet_lock:
            changes, at_s, known = self._fleet
            now_s = time.monotonic()
            if now_s - at_s < FLEET_PAUSE_S or (changes == self.store.changes and now_s - at_s < 5):
                return known
            changes = self.store.changes
            made = rows(self.store, self.findings(), wall_ms())
            self._fleet = (changes, now_s, made)
            return made

    def status(self) -> Json:
        """The console's own state: {"caught_up", "fault", "skipped"}."""
        store = self.store
        return {"caught_up": store.caught_up, "fault": store.fault, "skipped": store.skipped}


class GroupStream:
    """The messages to one page of one group."""

    def __init__(self, views: SharedViews, key: GroupKey) -> None:
        self._views = views
        self._key = key
        self._history: History | None = None
        self._frame: Frame | None = None
        self._extra: Json = {}
        self._generations: dict[int, Json] = {}
        self._moment = -1
        self.counts = False

    def message(self) -> str | None:
        """What differs from the previous message, as JSON; None = nothing."""
        with self._views.store.lock:
            history = self._views.store.history(self._key)
            moment = None if history is None or not history.moments else history.moments[-1]
        made = None if moment is None else self._views.frame(self._key, moment)
        if history is not self._history:
            self._history, self._frame = history, None
        if history is None or moment is None or made is None:
            self._frame, self.counts = None, False
            return self._changes_json({"gone": True, **self._views.status()}, {})
        changed = {} if made is self._frame else delta(self._frame, made)
        if changed.get("whole"):
            self._generations, self._moment = {}, -1
        self._frame = made
        changed |= self._timeline(history, moment)
        notes = Explainer(history.snapshot(moment), moment.pending, wall_ms()).notes()
        self.counts = bool(notes)
        return self._changes_json({"gone": False, "notes": notes, **self._views.status()}, changed)

    def _changes_json(self, extra: Json, changed: Json) -> str | None:
        changed |= {k: v for k, v in extra.items() if self._extra.get(k) != v}
        self._extra = extra
        return json.dumps(changed, separators=(",", ":")) if changed else None

    def _timeline(self, history: History, moment: Moment) -> Json:
        """Moments and generations that are new or changed."""
        with self._views.store.lock:
            generations = list(history.generations)[-GENERATIONS_SHOWN:]
            moments = [
                [m.number, m.at_ms, m.generation]
                for m in list(history.moments)[-MOMENTS_SHOWN:]
                if m.number > self._moment
            ]
            oldest = history.moments[0].number if history.moments else moment.number
        changed: Json = {}
        now = {each.generation: generation_json(each, each.seen_ms) for each in generations}
        news = [row for number, row in now.items() if self._generations.get(number) != row]
        self._generations, self._moment = now, moment.number
        if news:
            changed["rounds"] = news
        if moments:
            changed["moments"] = moments
            changed["oldest"] = oldest
        return changed


class FleetStream:
    """The messages to one page of the list of groups."""

    def __init__(self, views: SharedViews) -> None:
        self._views = views
        self._rows: dict[str, Json] | None = None
        self._status: Json = {}

    def message(self) -> str | None:
        """Changed rows, and null for groups that are gone, as JSON; None = nothing differs.

        The first message has ``"whole": true``: it replaces what the page has of an earlier one.
        """
        made, status = self._views.fleet(), self._views.status()
        message: Json = {"whole": True} if self._rows is None else {}
        rows_changed = differing(self._rows or {}, made)
        if rows_changed:
            message["rows"] = rows_changed
        message |= differing(self._status, status)
        self._rows, self._status = made, status
        return json.dumps(message, separators=(",", ":")) if message else None


async def events(
    hub: Hub,
    key: GroupKey | None,
    message: Callable[[], str | None],
    pause_s: float,
    counts: Callable[[], bool] = lambda: False,
) -> AsyncIterator[str]:
    """The text of one stream, until the page is closed or the console stops.

    Args:
        hub: wakes the stream when the group has changed.
        key: the group; None = all groups.
        message: returns the next message; called in a thread.
        pause_s: least time between two messages.
        counts: whether to look again every second, because a shown sentence counts seconds.
    """
    with hub.watch(key) as event:
        yield "retry: 1500\n\n"
        quiet_since = time.monotonic()
        while not hub.has_ended:
            event.clear()
            payload = await run_in_threadpool(message)
            if payload is not None:
                quiet_since = time.monotonic()
                yield f"data: {payload}\n\n"
            elif time.monotonic() - quiet_since > KEEP_ALIVE_S:
                quiet_since = time.monotonic()
                yield ": nothing new\n\n"
            await hub.rest(pause_s)
            try:
                wait_s = COUNTS_S if counts() or key is None else KEEP_ALIVE_S / 3
                await asyncio.wait_for(event.wait(), wait_s)
            except TimeoutError:
                continue
