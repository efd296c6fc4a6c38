"""Signatures of events: keyed hashes that prove who may write what in a group (as in KIP-507).

A signature is in the record header `HEADER`. It is an HMAC over the full topic name, the record key
(the group), the time of signing, the key's id, and the value or its absence. So a record is not
valid for another group, prefix or topic. It counts only while the broker's timestamp is within the
key's window around the time of signing. (The replay guard in `muster.streams` counts it once.)

All times are compared with the *broker's* timestamp of the record, and a key changes only when it
gets an end. So a verdict depends on the record and on the keyring of its time, and a batch that is
processed again after a rotation, or a log that is replayed later, gives the same events.

`keyring` says which key signs, and for whom. This file is pure; `muster.signing` reads, follows and
rotates keyrings.
"""

from __future__ import annotations

import hmac
from typing import NamedTuple

from muster.protocol.dead_letters import DeadLetter
from muster.protocol.errors import EncodeError
from muster.protocol.events import Event, Heartbeat, Join, Leave, Refused, Report, Tick
from muster.protocol.keyring import ALGORITHMS, KEY_ID, Caller, Keyring, SigningKey

HEADER = "signature"
VERSION = 1
SIGNATURE_BYTES_MAX = 255

_FIXED = 11
"""Bytes before the key id: version, algorithm, time, length of the id."""
_MAGIC = b"muster"
_ABSENT, _PRESENT = b"\0", b"\1"

OF_MEMBERS = Heartbeat | Join | Report | Leave
"""Events in a member's name, which count as signs of life."""


class Verdict(NamedTuple):
    """Why an event does not count."""

    reason: DeadLetter
    message: str


class Subject(NamedTuple):
    """The Kafka record to sign; a value of None is a tombstone."""

    topic: str
    key: bytes
    value: bytes | None


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
        if not whole or signature[0] != VERSION or not KEY_ID.fullmatch(key_id):
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
