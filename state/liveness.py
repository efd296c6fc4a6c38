"""The liveness of a group: what a batch of heartbeats changes, kept apart from the snapshot.

It has arrays with one row per slot, the clocks, the read offsets and the published wake-up. A batch
of heartbeats is one vectorised update, whatever the size of the snapshot and the number of tasks.

The group clock, `clock_ms`, is the newest broker timestamp of the group's membership records. The
session clock, `session_ms`, follows it by the rules of `session_clock.py`. Sessions and demands use
session time.

A *demand* is what a member must do in time: release tasks, answer, or leave (if fenced).
A heartbeat is a *miss* if its digest is not the expected one or a requested report has not come.
`heartbeats.py` says after how many misses the member's record is published again.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from muster.protocol.bits import inflate
from muster.protocol.errors import DecodeError
from muster.protocol.events import Mark
from muster.protocol.expected_heartbeats import Agreement

LONG_AGO = 0
"""A wake-up time that has passed, so that another one is published."""
NEVER = np.iinfo(np.int64).max
MUTE = 1
"""Flag: the member's heartbeats do not count, because it is away or was fenced."""
ASKED = 2
"""Flag: a report was asked for."""
FENCED = 4
"""Flag: it broke the rules; it keeps its tasks until it leaves or a session has passed."""
REFUSED = 8
"""Flag: its newest event was refused because of the signature; see `events.Refused`."""
UNREAD = 16
"""Flag: it repeated its join, and no heartbeat or report has shown since that it reads."""
DEAF = 32
"""Flag: it goes on joining without reading; it is given no tasks. See `deafness`."""
APART = 64
"""Flag: the member heartbeats apart; its heartbeats come with ticks."""
AGREED = 128
"""Flag: its newest heartbeat had the digest that is expected now."""
OFFERED = 256
"""Flag: the member can heartbeat apart; it does once a clock listens."""
MISSES_OF_A_LOSS = 2
"""So many misses in a row mean that a member has not got its newest record: it is asked. One miss
means nothing: a heartbeat may be written before its member reads a record that is on its way."""
BROKERS_DIFFER_MS = 1_000
"""The clocks of two brokers may differ by so much."""
NO_MARK = Mark(-1, 0)
"""The mark before any wake-up."""

NO_AGREEMENT = Agreement(0, 0, 0, 0)
"""Stored in place of an agreement that does not exist."""

_VERSION = 4
_HEADER = Struct("<BqqqqqIqqqqIIQ")
"""Version, clocks, wake-up and its mark, number of slots, the last three of `Liveness`' times, and
the agreement of the wake-up."""
_HEADERS = {4: _HEADER, 3: Struct("<BqqqqqIqqq"), 2: Struct("<BqqqqqI")}
"""Version → its header. From version 3 on the arrays are deflated."""
_SLOT_BYTES = 35
_FIELDS = (
    *("last_ms", "timeout_ms", "response_due", "digest"),
    *("epoch", "reported", "misses", "flags"),
)
_TYPES = (np.int64, np.int64, np.int64, np.uint64, np.int32, np.int32, np.uint8, np.uint16)
_OLD_TYPES = (*_TYPES[:-1], np.uint8)
_LITTLE_ENDIAN, _OLD_LITTLE_ENDIAN = (
    tuple(zip(_FIELDS, [np.dtype(kind).newbyteorder("<") for kind in kinds], strict=True))
    for kinds in (_TYPES, _OLD_TYPES)
)
"""Arrays → their types as they are stored, in this version and before version 3."""
_STORED = tuple(column for column in _LITTLE_ENDIAN if column[0] != "digest")


@dataclass(slots=True, eq=False)
class Liveness:
    """Sessions by slot, the clocks and the read offsets. One `Group` owns it; drafts copy it.

    Attributes:
        clock_ms: the group clock, epoch milliseconds.
        session_ms: the session clock.
        covered_ms: broker time up to which the session clock has counted; without members that
            heartbeat apart, this is the group clock.
        claimed_ms: the newest end of a cover, as its clock gave it: later than `covered_ms` where
            brokers' times differ. 0 = there was none.
        listened_ms: group clock at the newest tick with a cover; 0 = there was none.
        wake_ms: time of the published wake-up, None = none.
        published_mark: the mark of the published wake-up.
        agreement: the heartbeats with which the published wake-up lets the clock wait.
        through: (topic, partition) → newest offset read.
        last_ms: session time when the member was last heard.
        timeout_ms: session timeout in force; 0 = the slot is free.
        response_due: the pending response; 0 = none. Above 0: session time at which the member's
            time is over. Below 0: minus the value of `taken` when the demand was made; no tick has
            proved yet that the member could read it.
        digest: digest expected of the member.
        epoch: member epoch.
        reported: newest revision the member reported on.
        misses: misses in a row, up to 255.
        flags: `MUTE`, `ASKED`, `FENCED`, `REFUSED`, `UNREAD`, `DEAF`, `APART`, `AGREED`,
            `OFFERED`.
    """

    clock_ms: int
    session_ms: int
    covered_ms: int
    claimed_ms: int
    listened_ms: int
    wake_ms: int | None
    published_mark: Mark
    agreement: Agreement | None
    through: Mapping[tuple[str, int], int]
    last_ms: NDArray[np.int64]
    timeout_ms: NDArray[np.int64]
    response_due: NDArray[np.int64]
    digest: NDArray[np.uint64]
    epoch: NDArray[np.int32]
    reported: NDArray[np.int32]
    misses: NDArray[np.uint8]
    flags: NDArray[np.uint16]
    _earliest_ms: int | None = field(default=None)

    @classmethod
    def new(cls, slots: int = 0) -> Liveness:
        """A liveness without members and with the clocks at 0."""
        arrays = (np.zeros(slots, dtype=dtype) for dtype in _TYPES)
        return cls(0, 0, 0, 0, 0, None, NO_MARK, None, {}, *arrays)  # type: ignore[arg-type]  # one array per field, in order

    def copy(self) -> Liveness:
        """An independent copy."""
        return replace(
            self,
            through=dict(self.through),
            **{name: getattr(self, name).copy() for name in _FIELDS},
        )

    def emptied(self) -> Liveness:
        """A copy with the clocks and offsets, without slots."""
        empty = {name: getattr(self, name)[:0] for name in _FIELDS}
        return replace(self, **empty, _earliest_ms=None)

    def grow(self, slots: int) -> None:
        """Make room for this many slots."""
        missing = slots - len(self.last_ms)
        for name, kind in zip(_FIELDS, _TYPES, strict=True) if missing > 0 else ():
            empty_rows = np.zeros(missing, dtype=kind)
            setattr(self, name, np.concatenate((getattr(self, name), empty_rows)))

    def start(self, slot: int, timeout_ms: int) -> None:
        """Start a session for a new member in the slot."""
        self.last_ms[slot] = self.activity_ms
        self.timeout_ms[slot] = timeout_ms
        self.response_due[slot] = 0
        self.digest[slot] = self.epoch[slot] = self.reported[slot] = 0
        self.misses[slot] = self.flags[slot] = 0
        self._earliest_ms = None

    def clear(self, slot: int) -> None:
        """Free the slot."""
        self.start(slot, 0)

    def hear(self, slot: int) -> None:
        """Note an event of the member that is not a heartbeat."""
        if not self.flags[slot] & MUTE:
            self.last_ms[slot] = self.activity_ms
            self.flags[slot] &= 0xFFFF & ~REFUSED

    def set_timeout(self, slot: int, timeout_ms: int) -> None:
        """Set the session timeout in force."""
        self.timeout_ms[slot] = timeout_ms
        self._earliest_ms = None

    @property
    def apart(self) -> NDArray[np.bool_]:
        """bool[slots]: members that heartbeat apart."""
        apart: NDArray[np.bool_] = (self.flags & APART) != 0
        return apart

    @property
    def is_apart(self) -> bool:
        """Whether a member heartbeats apart."""
        return bool(np.bitwise_or.reduce(self.flags) & APART)

    def is_listened_to(self, timeout_ms: int) -> bool:
        """Whether a clock has listened within two sessions of this length, or may wait."""
        if self.agreement is not None and self.clock_ms < self.agreement.until_ms:
            return True
        return self.listened_ms > max(self.clock_ms - 2 * timeout_ms, 0)

    @property
    def activity_ms(self) -> int:
        """Session time of an event that is read from `muster.membership` now.

        The session clock may be behind the group clock: while members heartbeat apart, and until
        `session_clock.catch_up` when the last of them has left. The time before the event must not
        count later.
        """
        is_behind = self.covered_ms < self.clock_ms
        return self.activity_of(self.clock_ms) if is_behind or self.is_apart else self.session_ms

    def activity_of(self, at_ms: int) -> int:
        """Session time of an event of this broker time, while the session clock is behind."""
        return self.session_ms + max(at_ms - self.covered_ms, 0) + BROKERS_DIFFER_MS

    def has_same_apart(self, other: Liveness) -> bool:
        """Whether the members of the same slots heartbeat apart."""
        return (self.flags & APART).tobytes() == (other.flags & APART).tobytes()

    def offer(self, slot: int, offered: bool, apart: bool) -> None:
        """Note whether a member can heartbeat apart, and whether it is told to."""
        other_flags = self.flags[slot] & (0xFFFF & ~(APART | OFFERED))
        self.flags[slot] = other_flags | (OFFERED if offered else 0) | (APART if apart else 0)

    @property
    def earliest_ms(self) -> int:
        """Session time before which no session ends and no pending response is overdue."""
        if self._earliest_ms is None:
            session_ends = np.where(self._counts(), self.last_ms + self.timeout_ms, NEVER)
            response_ends = np.where(self.response_due > 0, self.response_due, NEVER)
            self._earliest_ms = int(
                min(session_ends.min(initial=NEVER), response_ends.min(initial=NEVER))
            )
        return self._earliest_ms

    def _counts(self) -> NDArray[np.bool_]:
        """bool[slots]: members whose session ends by silence; a fenced one ends by its demand."""
        counts: NDArray[np.bool_] = (self.timeout_ms > 0) & ((self.flags & FENCED) == 0)
        return counts

    @property
    def taken(self) -> int:
        """A number that grows with every record read from the group's inputs, by their offsets."""
        return 1 + sum(offset + 1 for offset in self.through.values())

    def reset_earliest(self) -> None:
        """Discard the cached `earliest_ms`, because heartbeats have moved it."""
        self._earliest_ms = None

    def overdue(self) -> tuple[list[int], list[int]]:
        """Slots whose session has ended, and slots whose response is overdue; both ascending."""
        if self.session_ms < self.earliest_ms:
            return [], []
        self._earliest_ms = None
        if self.session_ms < self.earliest_ms:
            return [], []
        expired = self._counts() & (self.last_ms + self.timeout_ms <= self.session_ms)
        is_late = (self.response_due > 0) & (self.response_due <= self.session_ms) & ~expired
        return np.flatnonzero(expired).tolist(), np.flatnonzero(is_late).tolist()

    def newest_sign_ms(self, slots: list[int]) -> int:
        """Time of the group clock before which, or at which, these members were last heard.

        The session clock falls behind, so the exact time may be earlier.
        """
        newest_ms = int(self.last_ms[slots].max(initial=0))
        return newest_ms + max(self.covered_ms - self.session_ms, 0)

    def demand(self, slot: int) -> None:
        """Demand something of a member; its time starts when it can have read the demand.

        An `UNREAD` member keeps the time of its first demand.
        """
        if not (self.flags[slot] & UNREAD and self.response_due[slot]):
            self.restart_demand(slot)

    def restart_demand(self, slot: int) -> None:
        """Demand something of a member, whatever was demanded before."""
        self.response_due[slot] = -self.taken
        self._earliest_ms = None

    def cancel_demand(self, slot: int) -> None:
        """Drop a member's demand: it has answered, or need not. It is kept while `UNREAD`."""
        if self.flags[slot] & UNREAD:
            return
        self.response_due[slot] = 0
        self._earliest_ms = None

    def set_response_deadline(self, slot: int, patience_ms: int, step_ms: int) -> None:
        """Start a member's time: it has `patience_ms` of session time from now.

        Covers may be behind for minutes, but the next one counts for `step_ms` at most.
        """
        now_ms = min(self.activity_ms, self.session_ms + step_ms + BROKERS_DIFFER_MS)
        self.response_due[slot] = later(now_ms, patience_ms)
        self._earliest_ms = None

    def demands_without_deadline(self, taken: int) -> list[int]:
        """Slots with a demand whose time has not started, made when `taken` was at most this."""
        return np.flatnonzero((self.response_due < 0) & (self.response_due >= -taken)).tolist()

    def renew_wake_up(self) -> None:
        """Let the group publish another wake-up after this batch."""
        self.wake_ms, self.agreement = LONG_AGO, None

    def to_bytes(self) -> bytes:
        """The header, the read offsets, and the arrays, deflated; little endian.

        The digests follow from what the members hold, so they are left out. All else is equal for
        most members, so a quiet group's bytes do not grow with its members.
        """
        parts = [
            _HEADER.pack(
                _VERSION,
                self.clock_ms,
                self.session_ms,
                -1 if self.wake_ms is None else self.wake_ms,
                *self.published_mark,
                len(self.last_ms),
                self.covered_ms,
                self.claimed_ms,
                self.listened_ms,
                *(self.agreement or NO_AGREEMENT),
            )
        ]
        offset_lines = [f"{t}\t{p}\t{o}" for (t, p), o in sorted(self.through.items())]
        offset_text = "\n".join(offset_lines).encode()
        parts += [len(offset_text).to_bytes(4, "little"), offset_text]
        array_parts: list[bytes] = []
        for name, little_endian in _STORED:
            values = getattr(self, name)
            values = self.session_ms - values if name == "last_ms" else values
            array_parts.append(values.astype(little_endian, copy=False).tobytes())
        return b"".join((*parts, zlib.compress(b"".join(array_parts), 1)))

    @classmethod
    def from_bytes(cls, data: bytes) -> tuple[Liveness, int]:
        """Read what `to_bytes` wrote; returns the value and the offset of its end.

        Raises:
            ValueError: the bytes are not a liveness of a version that can be read.
        """
        version = data[0] if data else 0
        header = _HEADERS.get(version)
        if header is None or len(data) < header.size + 4:
            raise ValueError(f"no liveness of version {_VERSION}: {data[:8].hex()}")
        _, clock_ms, session_ms, wake_ms, epoch, taken, slots, *later_fields = header.unpack_from(
            data
        )
        covered_ms, claimed_ms, listened_ms = later_fields[:3] or (clock_ms, 0, 0)
        agreement = Agreement(*(later_fields[3:] or NO_AGREEMENT))
        text_start = header.size + 4
        text_end = text_start + int.from_bytes(data[text_start - 4 : text_start], "little")
        through = {}
        for line in data[text_start:text_end].decode().splitlines():
            topic, partition, offset = line.split("\t")
            through[topic, int(partition)] = int(offset)
        is_deflated = version >= 3
        if is_deflated:
            array_bytes, text_end = _inflated(data, text_end, slots)
            array_start, stored_fields = 0, _STORED
        else:
            array_bytes, array_start = data, text_end
            stored_fields = _OLD_LITTLE_ENDIAN
        liveness = cls.new(slots)
        for name, kind in stored_fields:
            if array_start + slots * kind.itemsize > len(array_bytes):
                end = len(array_bytes)
                raise ValueError(f"liveness of {slots} slots is cut short at byte {end}")
            column = np.frombuffer(array_bytes, kind, slots, array_start)
            setattr(liveness, name, column.astype(getattr(liveness, name).dtype))
            array_start += slots * kind.itemsize
        if is_deflated:
            liveness.last_ms = session_ms - liveness.last_ms
        liveness.clock_ms, liveness.session_ms = clock_ms, session_ms
        liveness.covered_ms, liveness.claimed_ms = covered_ms, claimed_ms
        liveness.listened_ms = listened_ms
        liveness.wake_ms = None if wake_ms < 0 else wake_ms
        liveness.published_mark, liveness.through = Mark(epoch, taken), through
        liveness.agreement = agreement if agreement.members else None
        return liveness, text_end if is_deflated else array_start


def later(at_ms: int, wait_ms: int) -> int:
    """The time `wait_ms` after `at_ms`.

    A setting may be the largest number there is, so the sum could be more than a record can hold.
    """
    return min(at_ms + wait_ms, NEVER)


def _inflated(data: bytes, start: int, slots: int) -> tuple[bytes, int]:
    """The deflated arrays, and the offset behind them."""
    try:
        return inflate(data, start, slots * _SLOT_BYTES)
    except DecodeError as error:
        raise ValueError(f"arrays that cannot be read: {error}") from None
