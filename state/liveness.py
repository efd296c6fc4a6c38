"""Who was heard when: what every batch of heartbeats changes, and nothing else.

One row a slot in packed arrays, and beside them the clock, the offsets taken in and the published
wake-up. A batch of heartbeats is one vectorised update: its cost depends neither on the size of
the group's snapshot nor on the number of tasks.

Two clocks. `clock_ms` is the newest broker timestamp of the group's membership records.
`session_ms` follows it, but a jump counts for at most one step (`deadlines.step_of`), so an outage
of the broker is no silence of the members. Sessions and debts are kept in session time.

What a member must answer within a time is a *debt*: to release, or, once fenced, to be gone. Its
time runs from a tick that proves that the demand had been published (`deadlines.py`): a coordinator
that is behind reads on for a while in a past in which no member could have answered.

A heartbeat that disagrees (other digest than expected, or a report was asked for and has not
come) is a *miss*. At the 2nd, 4th, 8th … miss in a row the member's record is to be published
again: soon after a loss, and without a storm while a backlog is worked off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muster.protocol.events import Heartbeat, Mark

NEVER = np.iinfo(np.int64).max
MUTE = 1
"""Flag: the member's heartbeats do not count: it is away, or was fenced."""
ASKED = 2
"""Flag: a report was asked for."""
FENCED = 4
"""Flag: it broke the rules and holds its tasks until it rejoins, leaves or its session is over."""
REFUSED = 8
"""Flag: the newest event in its name was refused for its signature; see `events.Refused`."""
UNSEEN = Mark(-1, 0)
"""No wake-up has said anything yet."""

_VERSION = 2
_HEADER = Struct("<BqqqqqI")
_FIELDS = (
    *("last_ms", "timeout_ms", "debt", "digest"),
    *("epoch", "reported", "misses", "flags"),
)
_TYPES = (np.int64, np.int64, np.int64, np.uint64, np.int32, np.int32, np.uint8, np.uint8)
_BITS = np.array([n.bit_length() for n in range(256)], dtype=np.uint8)


@dataclass(slots=True, eq=False)
class Liveness:
    """Sessions by slot, and how far the log was read. Owned by one `Group`; drafts copy it.

    Attributes:
        clock_ms: the group's clock.
        session_ms: the session clock.
        wake_ms: published wake-up, None = none.
        shown: what that wake-up said was published.
        through: (topic, partition) → newest offset taken in.
        last_ms: session time of the last sign of life.
        timeout_ms: session timeout in force; 0 = the slot is free.
        debt: 0 = the member owes nothing. Above: session time at which it has had its time (to
            release, or, fenced, to be gone). Below: minus what `taken` was when it was told;
            nothing has proved yet that it could have read it.
        digest: digest expected of the member.
        epoch: member epoch.
        reported: newest revision the member reported on.
        misses: heartbeats in a row that disagreed, up to 255.
        flags: `MUTE`, `ASKED`, `FENCED`, `REFUSED`.
    """

    clock_ms: int
    session_ms: int
    wake_ms: int | None
    shown: Mark
    through: Mapping[tuple[str, int], int]
    last_ms: NDArray[np.int64]
    timeout_ms: NDArray[np.int64]
    debt: NDArray[np.int64]
    digest: NDArray[np.uint64]
    epoch: NDArray[np.int32]
    reported: NDArray[np.int32]
    misses: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    _earliest_ms: int | None = field(default=None)

    @classmethod
    def new(cls, slots: int = 0) -> Liveness:
        """No member, and no clock yet."""
        rows = (np.zeros(slots, dtype=kind) for kind in _TYPES)
        return cls(0, 0, None, UNSEEN, {}, *rows)  # type: ignore[arg-type]  # one array per field, in order

    def copy(self) -> Liveness:
        """An independent copy."""
        return replace(
            self,
            through=dict(self.through),
            **{name: getattr(self, name).copy() for name in _FIELDS},
        )

    def emptied(self) -> Liveness:
        """The clocks and offsets alone, without slots."""
        nobody = {name: getattr(self, name)[:0] for name in _FIELDS}
        return replace(self, **nobody, _earliest_ms=None)

    def grow(self, slots: int) -> None:
        """Make room for this many slots."""
        missing = slots - len(self.last_ms)
        for name, kind in zip(_FIELDS, _TYPES, strict=True) if missing > 0 else ():
            more = np.zeros(missing, dtype=kind)
            setattr(self, name, np.concatenate((getattr(self, name), more)))

    def seat(self, slot: int, timeout_ms: int) -> None:
        """A member takes the slot."""
        self.last_ms[slot] = self.session_ms
        self.timeout_ms[slot] = timeout_ms
        self.debt[slot] = 0
        self.digest[slot] = self.epoch[slot] = self.reported[slot] = 0
        self.misses[slot] = self.flags[slot] = 0
        self._earliest_ms = None

    def clear(self, slot: int) -> None:
        """The slot is free again."""
        self.seat(slot, 0)

    def hear(self, slot: int) -> None:
        """A sign of life that is no heartbeat."""
        if not self.flags[slot] & MUTE:
            self.last_ms[slot] = self.session_ms
            self.flags[slot] &= 0xFF & ~REFUSED

    def set_timeout(self, slot: int, timeout_ms: int) -> None:
        """Another session timeout is in force."""
        self.timeout_ms[slot] = timeout_ms
        self._earliest_ms = None

    def move_to(self, at_ms: int, step_ms: int) -> None:
        """Move both clocks; the session clock by `step_ms` at most."""
        if at_ms <= self.clock_ms:
            return
        if self.clock_ms == 0:
            self.clock_ms = self.session_ms = at_ms
            return
        self.session_ms += min(at_ms - self.clock_ms, step_ms)
        self.clock_ms = at_ms

    @property
    def earliest_ms(self) -> int:
        """Session time before which no session is over and no debt due."""
        if self._earliest_ms is None:
            ends = np.where(self._counts(), self.last_ms + self.timeout_ms, NEVER)
            due = np.where(self.debt > 0, self.debt, NEVER)
            self._earliest_ms = int(min(ends.min(initial=NEVER), due.min(initial=NEVER)))
        return self._earliest_ms

    def _counts(self) -> NDArray[np.bool_]:
        """Whose session is over when nothing is heard: a fenced member is gone by its debt."""
        counts: NDArray[np.bool_] = (self.timeout_ms > 0) & ((self.flags & FENCED) == 0)
        return counts

    @property
    def taken(self) -> int:
        """Grows with every record of the group's inputs; the same for the same records."""
        return 1 + sum(offset + 1 for offset in self.through.values())

    def recount(self) -> None:
        """Forget the lower bound `earliest_ms`; heartbeats have moved it."""
        self._earliest_ms = None

    def overdue(self) -> tuple[list[int], list[int]]:
        """Slots whose session is over by now, and whose debt is due; both ascending."""
        if self.session_ms < self.earliest_ms:
            return [], []
        self._earliest_ms = None
        if self.session_ms < self.earliest_ms:
            return [], []
        silent = self._counts() & (self.last_ms + self.timeout_ms <= self.session_ms)
        slow = (self.debt > 0) & (self.debt <= self.session_ms) & ~silent
        return np.flatnonzero(silent).tolist(), np.flatnonzero(slow).tolist()

    def demand(self, slot: int) -> None:
        """The member is told to do something; its time starts when that is proved to be read."""
        self.debt[slot] = -self.taken
        self._earliest_ms = None

    def acquit(self, slot: int) -> None:
        """The member owes nothing."""
        self.debt[slot] = 0
        self._earliest_ms = None

    def give_time(self, slot: int, patience_ms: int) -> None:
        """The member could read what it was told, and has this long from now."""
        self.debt[slot] = self.session_ms + patience_ms
        self._earliest_ms = None

    def unproved(self, taken: int) -> list[int]:
        """Slots of demands, made with that much taken in or less, whose time has not started."""
        return np.flatnonzero((self.debt < 0) & (self.debt >= -taken)).tolist()

    def beat(
        self, slots: NDArray[np.intp], beats: Sequence[Heartbeat], session_ms: NDArray[np.int64]
    ) -> tuple[list[int], list[int]]:
        """Take heartbeats in.

        Args:
            slots: slot of each sender.
            beats: the heartbeats, oldest first.
            session_ms: session time of each.

        Returns:
            Slots whose record is to be published again, and slots that claim an epoch they were
            never given, both ascending.
        """
        count = len(beats)
        epoch = np.fromiter((b.epoch for b in beats), dtype=np.int64, count=count)
        digest = np.fromiter((b.digest for b in beats), dtype=np.uint64, count=count)
        muted = (self.flags[slots] & MUTE) != 0
        self.last_ms[slots[~muted]] = session_ms[~muted]
        self.flags[slots[~muted]] &= 0xFF & ~REFUSED
        disagrees = (digest != self.digest[slots]) | ((self.flags[slots] & ASKED) != 0) | muted
        above = (epoch > self.epoch[slots]) & ~muted
        before = self.misses.copy()
        self.misses[slots[~disagrees]] = 0
        last = np.unique(slots[::-1], return_index=True)[1]
        final = count - 1 - last  # index of each sender's newest heartbeat
        missed = np.unique(slots[disagrees])
        counted = np.bincount(slots[disagrees], minlength=len(self.misses))[missed]
        total = np.minimum(self.misses[missed].astype(np.int64) + counted, 255)
        self.misses[missed] = total.astype(np.uint8)
        self.misses[slots[final][~disagrees[final]]] = 0
        now = self.misses
        again = (now >= 2) & (_BITS[now] > np.maximum(_BITS[before], 1))
        return np.flatnonzero(again).tolist(), np.unique(slots[above]).tolist()

    def to_bytes(self) -> bytes:
        """Version, clocks, wake-up and what it said, offsets, arrays; little endian."""
        parts = [
            _HEADER.pack(
                _VERSION,
                self.clock_ms,
                self.session_ms,
                -1 if self.wake_ms is None else self.wake_ms,
                *self.shown,
                len(self.last_ms),
            )
        ]
        lines = [f"{t}\t{p}\t{o}" for (t, p), o in sorted(self.through.items())]
        text = "\n".join(lines).encode()
        parts += [len(text).to_bytes(4, "little"), text]
        for name, kind in zip(_FIELDS, _TYPES, strict=True):
            little = np.dtype(kind).newbyteorder("<")
            parts.append(getattr(self, name).astype(little, copy=False).tobytes())
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> tuple[Liveness, int]:
        """The value back, and where it ends.

        Raises:
            ValueError: not a liveness, or of another version.
        """
        if len(data) < _HEADER.size + 4 or data[0] != _VERSION:
            raise ValueError(f"no liveness of version {_VERSION}: {data[:8].hex()}")
        _, clock_ms, session_ms, wake_ms, epoch, taken, slots = _HEADER.unpack_from(data)
        place = _HEADER.size + 4
        end = place + int.from_bytes(data[place - 4 : place], "little")
        through = {}
        for line in data[place:end].decode().splitlines():
            topic, partition, offset = line.split("\t")
            through[topic, int(partition)] = int(offset)
        arrays: list[Any] = []
        for kind in _TYPES:
            width = np.dtype(kind).newbyteorder("<")
            if end + slots * width.itemsize > len(data):
                raise ValueError(f"liveness of {slots} slots is cut short at byte {len(data)}")
            arrays.append(np.frombuffer(data, width, slots, end).astype(kind))
            end += slots * width.itemsize
        wake = None if wake_ms < 0 else wake_ms
        return cls(clock_ms, session_ms, wake, Mark(epoch, taken), through, *arrays), end
