"""Checks signatures: which events count, and dead letters for those that do not.

The operator checks an event before the core sees it, so an event that lacks a required valid
signature changes no group. Instead of a member's event the group gets a `Refused` (one for several
in a row). It is not a sign of life; it tells the group that the member may believe it was heard.

A client that may write to the topics may write a million forgeries. Each costs the job a hash.
Dead letters are written for the first `LETTERS_MAX` of a group in a batch, and the last letter
counts the rest. An event whose signature has counted before (`replay_guard`) is a dead letter, too,
but the group gets no `Refused`, because it took in the first of the two.

A replayed batch gives the same verdicts: a verdict depends on the broker's time of the record and
on keys whose only change is an end in the future (`muster.signing.rotation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Event, Heartbeat, Origin, Taken, Tick
from muster.protocol.framing import PREFIX
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keyring import Caller, Keyring, caller_of
from muster.protocol.records import Rejected
from muster.protocol.signature_check import (
    OF_MEMBERS,
    Verdict,
    Verifier,
    are_owed_signatures,
    refusal,
    refused_heartbeats,
)
from muster.protocol.topics import TopicKind
from muster.streams.batch.replay_guard import ONCE, ReplayGuard

REPEATED = Verdict(DeadLetter.REPEATED_SIGNATURE, "this very record has counted before")
NAMES_MAX = 5
"""Members that one dead letter names."""
LETTERS_MAX = 20
"""Most dead letters about signatures for one group in one batch."""


class Gate:
    """Passes the events of one group in one batch whose signatures are accepted.

    Args:
        keyring: the signing keys.
        group: the group of the events.
        key: the key of their records.
        replay_guard: the group's replay guard; the signatures of this batch are added.

    Attributes:
        refusals: number of events that did not pass.
    """

    def __init__(
        self, keyring: Keyring, group: GroupId, key: bytes, replay_guard: ReplayGuard
    ) -> None:
        self._keyring = keyring
        self._replay_guard = replay_guard
        self._group = group
        self._key = key
        self._verifiers: dict[str, Verifier] = {}
        self._letters: list[Rejected] = []
        self._doubted: set[MemberId] = set()
        self.refusals = 0

    def taken(self, event: Event, value: bytes | None, signature: bytes) -> Taken | None:
        """What the group gets for an event: the event itself, a `Refused`, or None = nothing.

        Args:
            event: the decoded event; events must come in order.
            value: the record's value; None = a tombstone.
            signature: the record's signature; empty = it has none.
        """
        origin = event.origin
        verifier = self._verifier(origin.topic)
        is_beat = isinstance(event, Heartbeat)  # checked first: heartbeats come by the million
        caller = Caller.MEMBER if is_beat else caller_of(event)
        verdict = verifier.verdict(caller, value, signature, origin.at_ms)
        if verdict is not None:
            self.refuse(origin, value, verdict)
            refused = refusal(event)
            if refused is None or refused.member in self._doubted:
                return None
            self._doubted.add(refused.member)
            return refused
        if (
            not is_beat
            and signature
            and isinstance(event, ONCE)
            and not self._replay_guard.is_first(signature, verifier.until_ms(signature))
        ):
            self.refuse(origin, value, REPEATED)
            return None
        if self._doubted and isinstance(event, OF_MEMBERS):
            self._doubted.discard(event.member)
        if isinstance(event, Tick):
            verdict = refused_heartbeats(event, value, verifier)
            if verdict is not None:
                if event.cover is not None and are_owed_signatures(event.cover, verifier):
                    message = _of_whom(event, verdict.message)
                    self.refuse(origin, value, verdict._replace(message=message))
                return replace(event, refused=True)
        return event

    @property
    def letters(self) -> list[Rejected]:
        """The dead letters; the last one says how many more events were refused."""
        more = self.refusals - len(self._letters)
        if not more:
            return self._letters
        *others, last = self._letters
        note = f"{last.message}; {more} more events of this batch were refused"
        return [*others, replace(last, message=note)]

    def verdict_on_row(
        self, origin: Origin, value: bytes | None, signature: bytes
    ) -> Verdict | None:
        """Why a row does not count, whatever it holds; None = it may count.

        This call costs a hash, or a few, and decodes nothing. `taken` decides about the decoded
        event.
        """
        verifier = self._verifier(origin.topic)
        verdicts: list[Verdict] = []
        for caller in _possible_callers(origin.topic, value):
            verdict = verifier.verdict(caller, value, signature, origin.at_ms)
            if verdict is None:
                return REPEATED if self._has_counted(origin.topic, value, signature) else None
            verdicts.append(verdict)
            if verdict.reason is not DeadLetter.KEY_NOT_ALLOWED:
                break  # the other callers get the same verdict
        return verdicts[0]

    def _has_counted(self, topic: str, value: bytes | None, signature: bytes) -> bool:
        """Whether a row that counts once has counted; the guard is not read for any other row."""
        may_repeat = topic.endswith(TopicKind.LAG) or (value or b"").startswith(PREFIX["Tick"])
        return bool(signature) and not may_repeat and self._replay_guard.has_counted(signature)

    def refuse(self, origin: Origin, value: bytes | None, verdict: Verdict) -> None:
        """Count a refused row, and write its dead letter if it is one of the first."""
        self.refusals += 1
        if len(self._letters) < LETTERS_MAX:
            self._letters.append(
                Rejected(
                    origin=origin,
                    reason=verdict.reason,
                    message=verdict.message,
                    key=self._key,
                    value=value or b"",
                )
            )

    def _verifier(self, topic: str) -> Verifier:
        verifier = self._verifiers.get(topic)
        if verifier is None:
            verifier = Verifier(self._keyring, self._group, topic, self._key)
            self._verifiers[topic] = verifier
        return verifier


def _possible_callers(topic: str, value: bytes | None) -> Sequence[Caller]:
    """The parts that may write such a value to a topic, by how it begins."""
    kind = topic.rpartition(".")[2]
    if kind == TopicKind.LAG:
        return (Caller.EXPORTER,)
    if kind == TopicKind.MEMBERSHIP:
        return (Caller.MEMBER, Caller.CLOCK, Caller.OPERATOR)
    if value is None or value.startswith(PREFIX["GroupConfig"]):
        return (Caller.OPERATOR,)
    if value.startswith(PREFIX["TopicsFound"]):
        return (Caller.CLOCK,)
    return (Caller.OPERATOR, Caller.CLOCK)  # of another writer's schema


def _of_whom(tick: Tick, why: str) -> str:
    """The message of the dead letter of a tick whose heartbeats are refused."""
    members = [] if tick.cover is None else [heard.member for heard in tick.cover.heard]
    more = f" and {len(members) - NAMES_MAX} more" if len(members) > NAMES_MAX else ""
    return f"heartbeats of {', '.join(members[:NAMES_MAX])}{more} in this tick: {why}"
