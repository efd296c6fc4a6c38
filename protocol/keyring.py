"""Signing keys: when a key signs, and for whose events in which groups it may be used (KIP-507).

All keys of a keyring verify until their end; the newest one that has begun signs. A key can be
limited to groups, and to the parts that writers of events play (`Caller`): a member's key signs no
order of an operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256, sha384, sha512
from typing import Any, NamedTuple

from muster.protocol.events import (
    Drain,
    Event,
    GroupConfig,
    GroupDeleted,
    LagReport,
    Tick,
    TopicsFound,
)

KEY_ID_CHARS_MAX = 64
SECRET_BYTES_MIN = 16
WINDOW_MS = 300_000
"""Default window: how far clocks may differ, and how long a record may wait for an unavailable
broker; librdkafka gives up a record after the same time."""

KEY_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{KEY_ID_CHARS_MAX}}}")


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
        if not KEY_ID.fullmatch(self.id):
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
