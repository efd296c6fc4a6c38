"""Signatures of events: who may say what in a group, shown by a keyed hash (KIP-507's idea).

A signature travels in the record header `HEADER`, so keys and values stay as they are and a reader
that knows nothing of it reads the record as before. It is an HMAC over everything that gives the
record its meaning: full topic name, record key (the group), when it was signed, by which key, and
the value or that there is none. So no record can be passed off as another group's, another
prefix' or another topic's, and none can be kept back for later: it counts only while the broker's
timestamp is within the key's window of the time it was signed. (`muster.streams.counted`,
which keeps state, sees to it that it counts once.)

All times are compared with the *broker's* timestamp of the record, and a key is never changed but
to give it an end. So a verdict depends on the record and on what the keyring said at the record's
time, not on when a reader looks: a batch that is worked off again after the keys have rotated, or
a log that is folded a week later, comes to the same events (`muster.keyring` has the times).

Keys have ids. All in a keyring verify until they end; the newest that has begun to sign signs.
What a key may sign can be narrowed to groups and to callers (`Caller`). Pure: keyrings are read,
followed and rotated by `muster.keyring`.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256, sha384, sha512
from typing import Any, NamedTuple

from muster.protocol.dead_letters import DeadLetter
from muster.protocol.errors import EncodeError
from muster.protocol.events import (
    Drain,
    Event,
    GroupConfig,
    GroupDeleted,
    Heartbeat,
    Join,
    LagReport,
    Leave,
    Refused,
    Report,
    Tick,
)

HEADER = "signature"
VERSION = 1
KEY_ID_CHARS_MAX = 64
SIGNATURE_BYTES_MAX = 255
SECRET_BYTES_MIN = 16
WINDOW_MS = 300_000
"""How far clocks may differ, and how long a record may wait for a broker that is away; librdkafka
gives up a record after the same time."""

_KEY_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{KEY_ID_CHARS_MAX}}}")
_FIXED = 11
"""Bytes before the key id: version, algorithm, time, length of the id."""
_MAGIC = b"muster"
_ABSENT, _PRESENT = b"\0", b"\1"


OF_MEMBERS = Heartbeat | Join | Report | Leave
"""Events in a member's name that are signs of its life."""


class _Algorithm(NamedTuple):
    number: int
    new: Callable[[bytes], Any]


ALGORITHMS: Mapping[str, _Algorithm] = {
    "HmacSHA256": _Algorithm(1, sha256),
    "HmacSHA384": _Algorithm(2, sha384),
    "HmacSHA512": _Algorithm(3, sha512),
}
"""Java's name, as KIP-507 has it → number on the wire, the hash."""
DEFAULT_ALGORITHM = "HmacSHA256"


class Caller(StrEnum):
    """In what part an event is written."""

    MEMBER = "member"
    EXPORTER = "exporter"
    OPERATOR = "operator"
    CLOCK = "clock"


class Verdict(NamedTuple):
    """Why an event does not count."""

    reason: DeadLetter
    message: str


class Subject(NamedTuple):
    """What is signed: a record as it stands in Kafka.

    Attributes:
        topic: full name.
        key: of the record.
        value: None = a tombstone.
    """

    topic: str
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A secret shared by those who sign and those who verify. Printing it hides the secret.

    Attributes:
        id: its name on the wire.
        secret: at least 16 bytes.
        algorithm: one of `ALGORITHMS`.
        from_ms: it signs from this time on (the signer's clock); before, it only verifies, so that
            every holder of the keyring has it by then.
        until_ms: records the broker stamped later do not count; None = no end.
        window_ms: how far the time of signing and the broker's timestamp may be apart.
        groups: group ids it may sign for; one that ends in ``*`` means all that begin so.
        callers: in what parts it may sign.
    """

    id: str
    secret: bytes = field(repr=False)
    algorithm: str = DEFAULT_ALGORITHM
    from_ms: int = 0
    until_ms: int | None = None
    window_ms: int = WINDOW_MS
    groups: tuple[str, ...] = ("*",)
    callers: frozenset[Caller] = frozenset(Caller)

    def fault(self) -> str | None:
        """What would be right, where something is wrong; None when it is fine."""
        if not _KEY_ID.fullmatch(self.id):
            return f"a key id of 1 to {KEY_ID_CHARS_MAX} letters, digits, '.', '_' or '-'"
        if len(self.secret) < SECRET_BYTES_MIN:
            return f"a secret of at least {SECRET_BYTES_MIN} bytes"
        if self.until_ms is not None and self.until_ms < self.from_ms:
            return "until_ms not before from_ms"
        return None

    def covers(self, group: str, caller: Caller) -> bool:
        """Whether it may sign events of a caller in a group; members report lag themselves."""
        reports = caller is Caller.EXPORTER and Caller.MEMBER in self.callers
        return (reports or caller in self.callers) and matches(self.groups, group)

    def signs(self, now_ms: int) -> bool:
        """Whether it signs at a time."""
        return self.from_ms <= now_ms and (self.until_ms is None or now_ms <= self.until_ms)


class Requirement(NamedTuple):
    """From when to when every event of some groups must be signed (broker time).

    Attributes:
        groups: as in `SigningKey.groups`.
        from_ms, until_ms: both included; None = no end.
    """

    groups: tuple[str, ...]
    from_ms: int = 0
    until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """The keys of one topic prefix, or of several.

    Attributes:
        keys: in any order; ids differ.
        required: where events without a signature do not count.
    """

    keys: tuple[SigningKey, ...]
    required: tuple[Requirement, ...] = ()

    def signer(self, group: str, caller: Caller, now_ms: int) -> SigningKey | None:
        """The key that signs now: of those that may, the one that began last; None = none may."""
        fit = [key for key in self.keys if key.signs(now_ms) and key.covers(group, caller)]
        return max(fit, key=lambda key: (key.from_ms, key.id), default=None)

    def requires(self, group: str, at_ms: int) -> bool:
        """Whether an event that the broker stamped then must be signed."""
        return any(
            matches(each.groups, group)
            and each.from_ms <= at_ms
            and (each.until_ms is None or at_ms <= each.until_ms)
            for each in self.required
        )


def matches(patterns: tuple[str, ...], group: str) -> bool:
    """Whether a group is one of them; a pattern that ends in ``*`` means all that begin so."""
    return any(
        group.startswith(each[:-1]) if each.endswith("*") else group == each for each in patterns
    )


def caller_of(event: Event) -> Caller:
    """In what part an event is written."""
    if isinstance(event, GroupConfig | GroupDeleted | Drain):
        return Caller.OPERATOR
    if isinstance(event, LagReport):
        return Caller.EXPORTER
    return Caller.CLOCK if isinstance(event, Tick) else Caller.MEMBER


def refusal(event: Event) -> Refused | None:
    """What a group is told of an event that is not believed; None = nothing."""
    if not isinstance(event, OF_MEMBERS):
        return None
    return Refused(group=event.group, member=event.member, origin=event.origin)


def sign(keyring: Keyring, group: str, caller: Caller, subject: Subject, now_ms: int) -> bytes:
    """The signature of a record.

    Args:
        keyring: the prefix' keys.
        group: whose event it is.
        caller: in what part it is written.
        subject: the record.
        now_ms: wall clock, epoch milliseconds.

    Raises:
        EncodeError: no key of the keyring may sign it now.
    """
    key = keyring.signer(group, caller, now_ms)
    if key is None:
        raise EncodeError(f"no signing key for the {caller} part of group {group!r} signs now")
    name = key.id.encode()
    start = bytes((VERSION, ALGORITHMS[key.algorithm].number))
    head = start + now_ms.to_bytes(8, "big") + bytes((len(name),)) + name
    return head + _Mac(key, subject.topic, subject.key).of(head, subject.value)


class Verifier:
    """Judges the signatures of one group's records on one topic.

    Made once for many records: what is the same in all of them is hashed once.

    Args:
        keyring: the prefix' keys.
        group: whose events they are.
        topic: full name.
        key: of the records.
    """

    def __init__(self, keyring: Keyring, group: str, topic: str, key: bytes) -> None:
        self._keyring = keyring
        self._group = group
        self._topic = topic
        self._key = key
        self._macs: dict[bytes, _Mac | None] = {}

    def verdict(
        self, caller: Caller, value: bytes | None, signature: bytes, at_ms: int
    ) -> Verdict | None:
        """Why an event does not count; None when it does.

        Args:
            caller: in what part it is written.
            value: of the record; None = a tombstone.
            signature: of the header; empty = it has none.
            at_ms: the broker's timestamp of the record.
        """
        if not signature:
            if self._keyring.requires(self._group, at_ms):
                return Verdict(DeadLetter.UNSIGNED, "events of this group must be signed")
            return None
        end = _FIXED + signature[_FIXED - 1] if len(signature) >= _FIXED else 0
        mac = self._mac(signature[_FIXED:end])
        if mac is None or signature[:2] != mac.start:
            return self._misfit(signature, end)
        head = signature[:end]
        if not hmac.compare_digest(mac.of(head, value), signature[end:]):
            message = f"not the signature of key {mac.key.id!r} over this record"
            return Verdict(DeadLetter.WRONG_SIGNATURE, message)
        return self._judged(mac.key, caller, int.from_bytes(head[2:10], "big"), at_ms)

    def until_ms(self, signature: bytes) -> int:
        """Broker time after which a signature that is right is stale."""
        end = _FIXED + signature[_FIXED - 1]
        mac = self._macs[signature[_FIXED:end]]
        assert mac is not None  # there was a verdict on it
        return int.from_bytes(signature[2:10], "big") + mac.key.window_ms

    def _mac(self, key_id: bytes) -> _Mac | None:
        if key_id not in self._macs:
            name = key_id.decode("ascii", "replace")
            key = next((key for key in self._keyring.keys if key.id == name), None)
            if key is None:
                return None  # not kept: a forger has many names
            self._macs[key_id] = _Mac(key, self._topic, self._key)
        return self._macs[key_id]

    def _misfit(self, signature: bytes, end: int) -> Verdict:
        """Of no key here, or not as a key here signs."""
        key_id = signature[_FIXED:end].decode("ascii", "backslashreplace")
        whole = 0 < end <= len(signature) <= SIGNATURE_BYTES_MAX
        if not whole or signature[0] != VERSION or not _KEY_ID.fullmatch(key_id):
            message = f"not a signature: it begins with {signature[:2].hex()}"
            return Verdict(DeadLetter.MALFORMED_SIGNATURE, message)
        if any(key.id == key_id for key in self._keyring.keys):
            message = f"key {key_id!r} does not sign with algorithm {signature[1]}"
            return Verdict(DeadLetter.KEY_NOT_ALLOWED, message)
        return Verdict(
            DeadLetter.UNKNOWN_KEY, f"signed with key {key_id!r}, which is not known here"
        )

    def _judged(
        self, key: SigningKey, caller: Caller, signed_ms: int, at_ms: int
    ) -> Verdict | None:
        """Whether a signature that is right may be used here and now."""
        if not key.covers(self._group, caller):
            message = f"key {key.id!r} may not sign the {caller} part of group {self._group!r}"
            return Verdict(DeadLetter.KEY_NOT_ALLOWED, message)
        if key.until_ms is not None and at_ms > key.until_ms:
            message = f"key {key.id!r} ended {at_ms - key.until_ms} ms before the broker's time"
            return Verdict(DeadLetter.KEY_RETIRED, message)
        if abs(at_ms - signed_ms) > key.window_ms:
            message = f"signed {at_ms - signed_ms} ms before the broker's time"
            return Verdict(
                DeadLetter.STALE_SIGNATURE, f"{message}; {key.window_ms} ms are accepted"
            )
        return None


class _Mac:
    """HMAC (RFC 2104) of a key over records of one topic and record key.

    The hashes of the padded secret and of what all records share are kept and copied: a quarter of
    what `hmac.digest` takes, which begins anew for every record.
    """

    __slots__ = ("_inner", "_outer", "key", "start")

    def __init__(self, key: SigningKey, topic: str, record_key: bytes) -> None:
        number, new = ALGORITHMS[key.algorithm]
        block: int = new(b"").block_size
        secret: bytes = key.secret if len(key.secret) <= block else new(key.secret).digest()
        padded = secret.ljust(block, b"\0")
        self.key = key
        self.start = bytes((VERSION, number))
        self._inner = new(bytes(byte ^ 0x36 for byte in padded))
        self._outer = new(bytes(byte ^ 0x5C for byte in padded))
        self._inner.update(_MAGIC + _measured(topic.encode()) + _measured(record_key))

    def of(self, head: bytes, value: bytes | None) -> bytes:
        """The hash over head and value."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(head + _ABSENT if value is None else head + _PRESENT + value)
        outer.update(inner.digest())
        found: bytes = outer.digest()
        return found


def _measured(text: bytes) -> bytes:
    """Length before text, so that nothing can be shifted from one to the next."""
    return len(text).to_bytes(4, "big") + text
