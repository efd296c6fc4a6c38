"""A clock as a value: what it has heard of members that heartbeat apart, and the tick on its way.

The fold is the real `Heartbeats` (`streams/heartbeat_covers.py`). Every clock that runs reads the
whole heartbeats topic, from the end that it had when the clock began.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from exploration.member import GROUP
from exploration.values import Values

from muster.protocol import codec
from muster.protocol.events import Heartbeat, Mark, Origin, Tick
from muster.protocol.expected_heartbeats import Agreement
from muster.protocol.ids import GroupId
from muster.protocol.tick_covers import Cover
from muster.streams.heartbeat_covers import Heartbeats, Row, Sleeper

PREFIX = "muster"
SLEEPER = Sleeper(PREFIX, GROUP)
MARKER = Tick(group=GroupId("~marker"))
"""What a clock writes to the heartbeats topic where it must read something."""
HEARTBEATS = "heartbeats"


class Clock(NamedTuple):
    """A clock that runs. Folds, records and ticks are numbers of `Values`.

    Attributes:
        name: a number; a clock that starts later has another.
        fold: what it has read.
        unread: records of the heartbeats topic that it has not read.
        sent: the tick that it has written and Kafka has not stored; 0 = none.
        ticked: when it last wrote one for the newest wake-up; 0 = not yet.
        marked: it has written a marker for the newest wake-up.
    """

    name: int
    fold: int
    unread: tuple[int, ...] = ()
    sent: int = 0
    ticked: int = 0
    marked: bool = False

    def relative(self, values: Values, now: int) -> tuple[Any, ...]:
        """The clock without its moments."""
        return (
            self.name,
            values.relative(self.fold, now),
            tuple([values.relative(n, now) for n in self.unread]),
            values.relative(self.sent, now),
            max(self.ticked - now, -2_000) if self.ticked else None,
            self.marked,
        )


class Clocks:
    """What clocks do; each step of a fold is computed once."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._read: dict[tuple[int, tuple[int, ...]], int] = {}
        self._covers: dict[int, tuple[int, Cover | None]] = {}
        self._done: dict[tuple[int, bool], int] = {}

    def stored(self, event: Heartbeat | Tick, at_ms: int) -> int:
        """The number of a record of the heartbeats topic."""
        return self.values.put(replace(event, origin=Origin(HEARTBEATS, 0, -1, at_ms)))

    def started(self, name: int) -> Clock:
        """A clock that has read nothing."""
        fold = Heartbeats()
        fold.listen(PREFIX, 1)
        return Clock(name, self.values.put(fold))

    def read(self, clock: Clock) -> Clock:
        """Read everything that is there."""
        place = (clock.fold, clock.unread)
        if place not in self._read:
            fold = _copy(self.values[clock.fold])
            fold.read(PREFIX, [self._row(n) for n in clock.unread], {SLEEPER})
            self._read[place] = self.values.put(fold)
        return clock._replace(fold=self._read[place], unread=())

    def _row(self, number: int) -> Row:
        event = self.values[number]
        encoded = codec.encode(event)
        return Row(0, encoded.key, encoded.value, event.origin.at_ms)

    def waits(self, clock: Clock, agreement: Agreement | None, now: int) -> bool:
        """Whether the group needs no tick now, by what the clock has read."""
        if agreement is None:
            return False
        fold: Heartbeats = self.values[clock.fold]
        return fold.needless_until_ms(SLEEPER, agreement, now) > now

    def ticks(self, clock: Clock, published: Mark | None, now: int) -> Clock:
        """Write a tick with a cover of what was read since the tick before."""
        if clock.fold not in self._covers:
            fold = _copy(self.values[clock.fold])
            cover = fold.cover(SLEEPER)
            self._covers[clock.fold] = (self.values.put(fold), cover)
        fold_after, cover = self._covers[clock.fold]
        tick = self.values.put(Tick(group=GROUP, published=published, cover=cover))
        return clock._replace(fold=fold_after, sent=tick, ticked=now)

    def done(self, clock: Clock, *, written: bool) -> Clock:
        """The tick was acknowledged, or given up."""
        place = (clock.fold, written)
        if place not in self._done:
            fold = _copy(self.values[clock.fold])
            fold.done(SLEEPER, written=written)
            self._done[place] = self.values.put(fold)
        return clock._replace(fold=self._done[place], sent=0)


def _copy(fold: Heartbeats) -> Heartbeats:
    """An independent copy."""
    twin = Heartbeats()
    for name, held in vars(fold).items():
        setattr(twin, name, _part(held))
    return twin


def _part(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _part(part) for key, part in value.items()}
    if not hasattr(value, "__dataclass_fields__"):
        return value
    parts = {name: _part(getattr(value, name)) for name in value.__dataclass_fields__}
    return replace(value, **parts)
