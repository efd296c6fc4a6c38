"""The two values that the state store keeps of a group, byte by byte.

``liveness``  version (1 byte), flags (1 byte), tag of the snapshot (8 bytes), its clock (8 bytes),
              then the core's packed array (`Group.liveness`). In version 2 the replay guard
              comes before the array: its length (4 bytes), then its bytes. In version 3 the end of
              the probation (8 bytes, epoch ms) comes before the replay guard. Version 4 is like
              version 3, and the credit (`work_limits`) comes before the replay guard, too.
``snapshot``  the group's published record, framed.

`processor` says why there are two.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from muster.protocol import codec
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot
from muster.protocol.topics import TopicKind
from muster.streams.batch.work_limits import CREDIT_BYTES, Credit

HEADER = Struct(">BB8sq")
PLAIN, SIGNED, ON_PROBATION, ON_CREDIT = 1, 2, 3, 4
"""Versions of the liveness value."""
_LENGTH = Struct(">I")
_UNTIL = Struct(">q")
PARKED_FLAG = 1
"""The group failed in its newest batch."""
TURN_FLAG = 2
"""Flips with every published snapshot, whose parts must not overwrite those of the one before."""
QUARANTINED_FLAG = 4
"""The group is quarantined (`quarantine`). Then the core's array is replaced by what the release
needs: the array before, and the rows that were set aside."""
WAITING_FLAG = 8
"""Rows of the group wait (`waiting_rows`). Then the core's array is replaced by the liveness before
them and these rows, and the clock of the snapshot by the time at which the group is due."""


class Header(NamedTuple):
    """The job's part of a liveness value: flags, and tag and clock (epoch ms) of the snapshot."""

    flags: int = 0
    tag: bytes = b""
    clock_ms: int = 0


def tag_of(snapshot: bytes) -> bytes:
    """The tag of a published record."""
    return blake2b(snapshot, digest_size=8).digest()


class Parts(NamedTuple):
    """The parts of a liveness value.

    Attributes:
        header: the job's part.
        replay_guard: as `ReplayGuard` writes it.
        core: the core's array; of a quarantined group, what its release needs.
        probation_until_ms: end of the probation after a quarantine, in broker time: until then each
            batch of the group runs in a child process; 0 = no probation.
        credit: the group's credit; None = it is whole.
    """

    header: Header
    replay_guard: bytes
    core: bytes
    probation_until_ms: int = 0
    credit: Credit | None = None

    def to_bytes(self) -> bytes:
        """The liveness value, in the lowest version that can hold the parts."""
        if not (self.replay_guard or self.probation_until_ms or self.credit):
            return HEADER.pack(PLAIN, *self.header) + self.core
        version, more = SIGNED, b""
        if self.probation_until_ms or self.credit:
            version, more = ON_PROBATION, _UNTIL.pack(self.probation_until_ms)
        if self.credit is not None:
            version, more = ON_CREDIT, more + self.credit.to_bytes()
        head = HEADER.pack(version, *self.header) + more
        return head + _LENGTH.pack(len(self.replay_guard)) + self.replay_guard + self.core


class Stored(NamedTuple):
    """The two values that the state store has of a group; None = the value is missing."""

    liveness: bytes | None = None
    snapshot: bytes | None = None

    def record(self, group: GroupId) -> GroupSnapshot | None:
        """The published record of the group."""
        if self.snapshot is None:
            return None
        record = codec.decode_record(TopicKind.GROUPS, group.encode(), self.snapshot)
        assert isinstance(record, GroupSnapshot)  # only this job writes the stored value
        return record

    def parts(self) -> Parts | None:
        """The parts of the liveness; None = it is missing or from another version of muster."""
        data = self.liveness
        if data is None or data[0] not in (PLAIN, SIGNED, ON_PROBATION, ON_CREDIT):
            return None
        version, *header = HEADER.unpack_from(data)
        at = HEADER.size
        length = until_ms = 0
        credit: Credit | None = None
        if version in (ON_PROBATION, ON_CREDIT):
            (until_ms,) = _UNTIL.unpack_from(data, at)
            at += _UNTIL.size
        if version == ON_CREDIT:
            credit = Credit.from_bytes(data[at : at + CREDIT_BYTES])
            at += CREDIT_BYTES
        if version != PLAIN:
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
        guard, core = data[at : at + length], data[at + length :]
        return Parts(Header(*header), guard, core, until_ms, credit)

    def asked_anew(self) -> Stored:
        """Without the core's array, so that the group's members are asked for reports."""
        parts = self.parts()
        if parts is None:  # there is no such array
            return self
        return Stored(parts._replace(core=b"").to_bytes(), self.snapshot)

    @property
    def replay_guard(self) -> bytes:
        """The group's replay guard."""
        parts = self.parts()
        return b"" if parts is None else parts.replay_guard

    @property
    def credit(self) -> Credit | None:
        """The group's credit; None = it is whole."""
        parts = self.parts()
        return None if parts is None else parts.credit

    @property
    def is_quarantined(self) -> bool:
        """Whether the group is set aside (`quarantine`)."""
        return self.liveness is not None and bool(self.liveness[1] & QUARANTINED_FLAG)

    @property
    def is_on_probation(self) -> bool:
        """Whether the group was released from quarantine a short time ago."""
        if self.liveness is None or self.liveness[0] not in (ON_PROBATION, ON_CREDIT):
            return False
        return _UNTIL.unpack_from(self.liveness, HEADER.size)[0] > 0  # type: ignore[no-any-return]
