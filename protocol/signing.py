"""Signatures of events: keyed hashes that prove who may write what in a group (as in KIP-507).

A signature is in the record header `HEADER`. It is an HMAC over the full topic name, the record key
(the group), the time of signing, the key's id, and the value or its absence. So a record is not
valid for another group, prefix or topic.

`keyring` says which key signs, and for whom; `signature_check` says which signatures count. This
file is pure; `muster.signing` reads, follows and rotates keyrings.
"""

from __future__ import annotations

from typing import NamedTuple

from muster.protocol.errors import EncodeError
from muster.protocol.keyring import ALGORITHMS, Caller, Keyring, SigningKey

HEADER = "signature"
VERSION = 1
SIGNATURE_BYTES_MAX = 255

FIXED_BYTES = 11
"""Bytes before the key id: version, algorithm, time, length of the id."""
_MAGIC = b"muster"
_ABSENT, _PRESENT = b"\0", b"\1"


class Subject(NamedTuple):
    """The Kafka record to sign; a value of None is a tombstone."""

    topic: str
    key: bytes
    value: bytes | None


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
    return head + Mac(key, subject.topic, subject.key).of(head, subject.value)


class Mac:
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
