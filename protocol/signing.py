"""Signatures of events: keyed hashes that prove who may write what in a group (as in KIP-507).

A signature is in the record header `HEADER`. It is an HMAC over the full topic name, the record key
(the group), the time of signing, the key's id, and the value or its absence. So a record is not
valid for another group, prefix or topic. It counts only while the broker's timestamp is within the
key's window around the time of signing. (The replay guard in `muster.streams` counts it once.)

All times are compared with the *broker's* timestamp of the record, and a key changes only when it
gets an end. So a verdict depends on the record and on the keyring of its time, and a batch that is
processed again after a rotation, or a log that is replayed later, gives the same events.

All keys verify until their end; the newest one that has begun signs. A key can be limited to groups
and callers (`Caller`). This file is pure; `muster.signing` reads, follows and rotates keyrings.
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
    TopicsFound,
)

HEADER = "signature"
VERSION = 1
KEY_ID_CHARS_MAX = 64
SIGNATURE_BYTES_MAX = 255
SECRET_BYTES_MIN = 16
WINDOW_MS = 300_000
"""Default window: how far clocks may differ, and how long a record may wait for an unavailable
broker; librdkafka gives up a record after the same time."""

_KEY_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{KEY_ID_CHARS_MAX}}}")
_FIXED = 11
"""Bytes before the key id: version, algorithm, time, length of the id."""
_MAGIC = b"muster"
_ABSENT, _PRESENT = b"\0", b"\1"


OF_MEMBERS = Heartbeat | Join | Report | Leave
"""Events in a member's name, which count as signs of life."""


class _Algorithm(NamedTuple):
    number: int
    new: Callable[[bytes], Any]


ALGORITHMS: Mapping[str, _Algorithm] = {
    "HmacSHA256": _Algorithm(1, sha256),
    "HmacSHA384": _Algorithm(2, sha384),
    "HmacSHA512": _Algorithm(3, sha512),
}
"""Java's name as in KIP-507 → number on the wire, and hash function."""
DEFAULT_ALGORITHM = "HmacSHA256"


class Caller(StrEnum):
    """The part that the writer of an event plays."""

    MEMBER = "member"
    EXPORTER = "exporter"
    OPERATOR = "operator"
    CLOCK = "clock"


class Verdict(NamedTuple):
    """Why an event does not count."""

    reason: DeadLetter
    message: str


class Subject(NamedTuple):
    """The Kafka record to sign; a value of None is a tombstone."""

    topic: str
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A secret that signers and verifiers share. Its `repr` hides the secret.

    Attributes:
        id: its name on the wire.
        secret: at least 16 bytes.
        algorithm: one of `ALGORITHMS`.
        from_ms: it signs from this time on (signer's clock) and only verifies before, so that every
            holder of the keyring has the key before its first signature.
        until_ms: records that the broker stamped later do not count; None = no end.
        window_ms: how far the time of signing and the broker's timestamp may differ.
        groups: ids of groups it may sign for; ``x*`` means all ids that begin with x.
        callers: the parts for which it may sign.
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
        """What would be right, if something is wrong; None if the key is valid."""
        if not _KEY_ID.fullmatch(self.id):
            return f"a key id of 1 to {KEY_ID_CHARS_MAX} letters, digits, '.', '_' or '-'"
        if len(self.secret) < SECRET_BYTES_MIN:
            return f"a secret of at least {SECRET_BYTES_MIN} bytes"
        if self.until_ms is not None and self.until_ms < self.from_ms:
            return "until_ms not before from_ms"
        return None

    def covers(self, group: str, caller: Caller) -> bool:
        """Whether it may sign a caller's events in a group; a member's key may sign lag reports."""
        reports = caller is Caller.EXPORTER and Caller.MEMBER in self.callers
        return (reports or caller in self.callers) and matches(self.groups, group)

    def signs(self, now_ms: int) -> bool:
        """Whether it signs at a time."""
        return self.from_ms <= now_ms and (self.until_ms is None or now_ms <= self.until_ms)


class Requirement(NamedTuple):
    """A time (of the broker) in which every event of some groups must be signed.

    Attributes:
        groups: as in `SigningKey.groups`.
        from_ms, until_ms: both included; None = no end.
    """

    groups: tuple[str, ...]
    from_ms: int = 0
    until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """The keys of one or several topic prefixes.

    Attributes:
        keys: in any order, with distinct ids.
        required: when and in which groups events without a signature are refused.
    """

    keys: tuple[SigningKey, ...]
    required: tuple[Requirement, ...] = ()

    def signer(self, group: str, caller: Caller, now_ms: int) -> SigningKey | None:
        """The key that signs now: of those that may, the one that began last; None = none may."""
        allowed = [key for key in self.keys if key.signs(now_ms) and key.covers(group, caller)]
        return max(allowed, key=lambda key: (key.from_ms, key.id), default=None)

    def requires(self, group: str, at_ms: int) -> bool:
        """Whether an event with this broker timestamp must be signed."""
        return any(
            matches(rule.groups, group)
            and rule.from_ms <= at_ms
            and (rule.until_ms is None or at_ms <= rule.until_ms)
            for rule in self.required
        )


def matches(patterns: tuple[str, ...], group: str) -> bool:
    """Whether a group fits one of the patterns; ``x*`` means all ids that begin with x."""
    return any(group.startswith(p[:-1]) if p.endswith("*") else group == p for p in patterns)


def caller_of(event: Event) -> Caller:
    """The part that the writer of an event plays."""
    if isinstance(event, GroupConfig | GroupDeleted | Drain):
        return Caller.OPERATOR
    if isinstance(event, LagReport):
        return Caller.EXPORTER
    return Caller.CLOCK if isinstance(event, Tick | TopicsFound) else Caller.MEMBER


def refusal(event: Event) -> Refused | None:
    """What a group absorbs instead of a refused event; None = nothing."""
    if not isinstance(event, OF_MEMBERS):
        return None
    return Refused(group=event.group, member=event.member, origin=event.origin)


def refused_heartbeats(tick: Tick, value: bytes | None, verifier: Verifier) -> Verdict | None:
    """Why the heartbeats in an accepted tick do not count; None = they do, or there are none.

    No clock checks signatures of heartbeats, so members with keys write theirs to membership.
    """
    if tick.cover is None or not tick.cover.heard:
        return None
    return verifier.verdict(Caller.MEMBER, value, b"", tick.origin.at_ms)


def sign(keyring: Keyring, group: str, caller: Caller, subject: Subject, now_ms: int) -> bytes:
    """The signature of a record; `now_ms` is the wall clock, in epoch milliseconds.

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
    """Verifies the signatures of one group's records on one topic.

    One instance serves many records, because it hashes what they have in common only once.
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
        """Why an event with the broker's timestamp `at_ms` does not count; None if it counts.

        A value of None is a tombstone; an empty signature = the record has none.
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
        """Broker time after which a valid signature is stale; call `verdict` on it first."""
        end = _FIXED + signature[_FIXED - 1]
        mac = self._macs[signature[_FIXED:end]]
        assert mac is not None
        return int.from_bytes(signature[2:10], "big") + mac.key.window_ms

    def _mac(self, key_id: bytes) -> _Mac | None:
        if key_id not in self._macs:
            name = key_id.decode("ascii", "replace")
            key = next((key for key in self._keyring.keys if key.id == name), None)
            if key is None:
                return None  # not cached: a forger may use any number of ids
            self._macs[key_id] = _Mac(key, self._topic, self._key)
        return self._macs[key_id]

    def _misfit(self, signature: bytes, end: int) -> Verdict:
        """The verdict on a signature that is malformed or does not fit a key of the keyring."""
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
        """The verdict on a valid signature: whether the key may be used here and at this time."""
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

    It keeps and copies the hash states of the padded secret and of the common fields. That takes a
    quarter of the time of `hmac.digest`, which computes them for every record.
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
        """The HMAC over head and value."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(head + _ABSENT if value is None else head + _PRESENT + value)
        outer.update(inner.digest())
        mac: bytes = outer.digest()
        return mac


def _measured(text: bytes) -> bytes:
    """A text after its length, so that adjacent fields cannot be confused."""
    return len(text).to_bytes(4, "big") + text
