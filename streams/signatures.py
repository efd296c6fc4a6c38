"""Who is believed: events and signatures → which count, and letters for those that do not.

The operator asks before the state sees an event, so nothing unsigned or wrongly signed changes a
group. What it is told instead, `Refused`, is no sign of life; it says only that the member may
count on having been heard. Of many in a row in a member's name it is told the first.

A client that may write to the topics may write a million forgeries. Each costs us a hash; letters
are written for the first `LETTERS_MAX` of a group and batch, and the last one says how many there
were.

What is right and has counted before is a repetition (`counted`), and a letter as well; of that the
group is told nothing, because the writer of the first was heard.

The same batch, worked off again, comes to the same: a verdict depends on the broker's time of the
record and on keys that are never changed but to give them an end in the future (`muster.rotation`).
"""

from __future__ import annotations

from dataclasses import replace

from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Event, Heartbeat, Taken
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import Rejected
from muster.protocol.signing import (
    OF_MEMBERS,
    Caller,
    Keyring,
    Verdict,
    Verifier,
    caller_of,
    refusal,
)
from muster.streams.counted import ONCE, Counted

REPEATED = Verdict(DeadLetter.REPEATED_SIGNATURE, "this very record has counted before")
LETTERS_MAX = 20
"""Dead letters about signatures, for one group in one batch."""


class Gate:
    """Lets the events of one group and batch pass that are believed.

    Args:
        keyring: whose signatures count.
        group: whose events they are.
        key: of their records.
        counted: signatures that have counted; those of this batch are added.

    Attributes:
        refusals: events that did not pass.
    """

    def __init__(self, keyring: Keyring, group: GroupId, key: bytes, counted: Counted) -> None:
        self._keyring = keyring
        self._counted = counted
        self._group = group
        self._key = key
        self._verifiers: dict[str, Verifier] = {}
        self._letters: list[Rejected] = []
        self._doubted: set[MemberId] = set()
        self.refusals = 0

    def taken(self, event: Event, value: bytes | None, signature: bytes) -> Taken | None:
        """What the group is told of an event: the event, that it was refused, or nothing.

        Args:
            event: what the record says; records come in order.
            value: of the record; None = a tombstone.
            signature: empty = it has none.
        """
        origin = event.origin
        verifier = self._verifiers.get(origin.topic)
        if verifier is None:
            verifier = Verifier(self._keyring, self._group, origin.topic, self._key)
            self._verifiers[origin.topic] = verifier
        is_beat = isinstance(event, Heartbeat)  # asked first: these come by the million
        caller = Caller.MEMBER if is_beat else caller_of(event)
        verdict = verifier.verdict(caller, value, signature, origin.at_ms)
        if verdict is not None:
            self._write(event, value, verdict)
            refused = refusal(event)
            if refused is None or refused.member in self._doubted:
                return None
            self._doubted.add(refused.member)
            return refused
        if (
            not is_beat
            and signature
            and isinstance(event, ONCE)
            and not self._counted.is_first(signature, verifier.until_ms(signature))
        ):
            self._write(event, value, REPEATED)
            return None
        if self._doubted and isinstance(event, OF_MEMBERS):
            self._doubted.discard(event.member)
        return event

    @property
    def letters(self) -> list[Rejected]:
        """The dead letters; the last one says how many more there could be."""
        more = self.refusals - len(self._letters)
        if not more:
            return self._letters
        *others, last = self._letters
        note = f"{last.message}; {more} more events of this batch were refused"
        return [*others, replace(last, message=note)]

    def _write(self, event: Event, value: bytes | None, verdict: Verdict) -> None:
        self.refusals += 1
        if len(self._letters) < LETTERS_MAX:
            self._letters.append(
                Rejected(
                    origin=event.origin,
                    reason=verdict.reason,
                    message=verdict.message,
                    key=self._key,
                    value=value or b"",
                )
            )
