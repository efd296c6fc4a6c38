"""Which signatures count: whether a key may sign a record, and how long after signing it counts.

A signature counts only while the broker's timestamp of the record is within the key's window around
the time of signing. (The replay guard in `muster.streams` counts it once.)

All times are compared with the *broker's* timestamp of the record, and a key changes only when it
gets an end. So a verdict depends on the record and on the keyring of its time, and a batch that is
processed again after a rotation, or a log that is replayed later, gives the same events.
"""

from __future__ import annotations

import hmac
from typing import NamedTuple

from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Event, Heartbeat, Join, Leave, Refused, Report, Tick
from muster.protocol.keyring import KEY_ID, Caller, Keyring, SigningKey
from muster.protocol.signing import FIXED_BYTES, SIGNATURE_BYTES_MAX, VERSION, Mac
from muster.protocol.tick_covers import Cover

OF_MEMBERS = Heartbeat | Join | Report | Leave
"""Events in a member's name, which count as signs of life."""


class Verdict(NamedTuple):
    """Why an event does not count."""

    reason: DeadLetter
    message: str


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


def are_owed_signatures(cover: Cover, verifier: Verifier) -> bool:
    """Whether a heartbeat in a cover may have been written when signatures were required.

    The first tick after the requirement began may carry older ones; none of these is a fault.
    """
    youngest_s = min((heard.age_s for heard in cover.heard), default=0)
    newest_ms = cover.through_ms - 1_000 * youngest_s
    return verifier.verdict(Caller.MEMBER, b"", b"", newest_ms) is not None


class Verifier:
    """Verifies the signatures of one group's records on one topic.

    One instance serves many records, because it hashes what they have in common only once.
    """

    def __init__(self, keyring: Keyring, group: str, topic: str, key: bytes) -> None:
        self._keyring = keyring
        self._group = group
        self._topic = topic
        self._key = key
        self._macs: dict[bytes, Mac | None] = {}

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
        end = FIXED_BYTES + signature[FIXED_BYTES - 1] if len(signature) >= FIXED_BYTES else 0
        mac = self._mac(signature[FIXED_BYTES:end])
        if mac is None or signature[:2] != mac.start:
            return self._misfit(signature, end)
        head = signature[:end]
        if not hmac.compare_digest(mac.of(head, value), signature[end:]):
            message = f"not the signature of key {mac.key.id!r} over this record"
            return Verdict(DeadLetter.WRONG_SIGNATURE, message)
        return self._judged(mac.key, caller, int.from_bytes(head[2:10], "big"), at_ms)

    def until_ms(self, signature: bytes) -> int:
        """Broker time after which a valid signature is stale; call `verdict` on it first."""
        end = FIXED_BYTES + signature[FIXED_BYTES - 1]
        mac = self._macs[signature[FIXED_BYTES:end]]
        assert mac is not None
        return int.from_bytes(signature[2:10], "big") + mac.key.window_ms

    def _mac(self, key_id: bytes) -> Mac | None:
        if key_id not in self._macs:
            name = key_id.decode("ascii", "replace")
            key = next((key for key in self._keyring.keys if key.id == name), None)
            if key is None:
                return None  # not cached: a forger may use any number of ids
            self._macs[key_id] = Mac(key, self._topic, self._key)
        return self._macs[key_id]

    def _misfit(self, signature: bytes, end: int) -> Verdict:
        """The verdict on a signature that is malformed or does not fit a key of the keyring."""
        key_id = signature[FIXED_BYTES:end].decode("ascii", "backslashreplace")
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
