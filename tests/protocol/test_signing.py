"""Signatures: what they cover, which key may be used when, and the reason of each refusal."""

from __future__ import annotations

import hmac
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.protocol.dead_letters import DeadLetter
from muster.protocol.errors import EncodeError
from muster.protocol.events import (
    Drain,
    Event,
    GroupConfig,
    GroupDeleted,
    Heartbeat,
    LagReport,
    Leave,
    Tick,
)
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keyring import (
    ALGORITHMS,
    WINDOW_MS,
    Caller,
    Keyring,
    Requirement,
    SigningKey,
    caller_of,
)
from muster.protocol.settings import Settings
from muster.protocol.signature_check import Verifier
from muster.protocol.signing import SIGNATURE_BYTES_MAX, Subject, sign

NOW_MS = 1_795_240_800_000
GROUP, TOPIC = "orders", "muster.membership"
SUBJECT = Subject(TOPIC, b"orders", b"a value")
KEY = SigningKey(id="k1", secret=b"secret of 16 byt")
RING = Keyring(keys=(KEY,))


def judged(
    ring: Keyring,
    signature: bytes,
    subject: Subject = SUBJECT,
    *,
    group: str = GROUP,
    caller: Caller = Caller.MEMBER,
    at_ms: int = NOW_MS,
) -> DeadLetter | None:
    """The reason for which a record is refused; None = it is accepted."""
    verifier = Verifier(ring, group, subject.topic, subject.key)
    verdict = verifier.verdict(caller, subject.value, signature, at_ms)
    return None if verdict is None else verdict.reason


def signed(ring: Keyring = RING, subject: Subject = SUBJECT, at_ms: int = NOW_MS) -> bytes:
    """A member's signature."""
    return sign(ring, GROUP, Caller.MEMBER, subject, at_ms)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("secret", [b"s" * 16, b"s" * 300])
@pytest.mark.parametrize("value", [None, b"", b"v" * 1_000])
def test_the_hash_is_hmac_over_the_bytes_of_the_page(
    algorithm: str, secret: bytes, value: bytes | None
) -> None:
    """Equal to Python's hmac over bytes laid out by hand, also for secrets above the block."""
    ring = Keyring(keys=(replace(KEY, secret=secret, algorithm=algorithm),))
    subject = SUBJECT._replace(value=value)
    number = list(ALGORITHMS).index(algorithm) + 1
    head = bytes((1, number)) + NOW_MS.to_bytes(8, "big") + b"\x02k1"
    lengths = b"\0\0\0\x11" + TOPIC.encode() + b"\0\0\0\x06" + b"orders"
    message = b"muster" + lengths + head + (b"\0" if value is None else b"\1" + value)
    name = algorithm.removeprefix("Hmac").lower()
    assert signed(ring, subject) == head + hmac.digest(secret, message, name)
    assert judged(ring, signed(ring, subject), subject) is None


@given(
    st.sampled_from(["topic", "key", "value", "signature", "none"]),
    st.integers(0, 200),
    st.integers(1, 255),
)
def test_nothing_of_a_record_can_be_changed(what: str, place: int, by: int) -> None:
    """One changed byte of topic, key, value or signature, or a missing value, is refused."""
    signature = signed()

    def changed(data: bytes) -> bytes:
        at = place % len(data)
        return data[:at] + bytes((data[at] ^ by,)) + data[at + 1 :]

    subject = SUBJECT
    if what == "topic":
        subject = subject._replace(topic=changed(TOPIC.encode()).decode("latin-1"))
    elif what == "key":
        subject = subject._replace(key=changed(SUBJECT.key))
    elif what == "value":
        subject = subject._replace(value=changed(b"a value"))
    elif what == "none":
        subject = subject._replace(value=None)
    else:
        signature = changed(signature)
    assert judged(RING, signature, subject) is not None


@given(st.binary(max_size=SIGNATURE_BYTES_MAX))
def test_any_bytes_as_a_signature_have_a_reason(rubbish: bytes) -> None:
    """Any bytes as a signature give a reason and no exception; no bytes mean unsigned."""
    expected = {DeadLetter.MALFORMED_SIGNATURE, DeadLetter.UNKNOWN_KEY, DeadLetter.WRONG_SIGNATURE}
    expected |= {DeadLetter.KEY_NOT_ALLOWED}
    assert judged(RING, rubbish) in (expected if rubbish else {None})


def test_a_cut_off_signature_is_refused() -> None:
    """Every beginning of a valid signature, and a valid one with bytes behind it."""
    whole = signed()
    verdicts = {judged(RING, whole[:length]) for length in range(1, len(whole))}
    assert verdicts == {DeadLetter.MALFORMED_SIGNATURE, DeadLetter.WRONG_SIGNATURE}
    assert judged(RING, whole + b"\0") is DeadLetter.WRONG_SIGNATURE


def test_each_wrong_use_has_its_reason() -> None:
    """Another secret, key, algorithm, group, caller or time has its own reason."""
    other_secret = Keyring(keys=(replace(KEY, secret=b"another secret..."),))
    other_key = Keyring(keys=(replace(KEY, id="k2"),))
    other_way = Keyring(keys=(replace(KEY, algorithm="HmacSHA512"),))
    elsewhere = Keyring(keys=(replace(KEY, groups=("payments*",)),))
    operators = Keyring(keys=(replace(KEY, callers=frozenset({Caller.OPERATOR})),))
    ended = Keyring(keys=(replace(KEY, until_ms=NOW_MS - 1),))
    verdicts = {
        judged(ring, signed())
        for ring in (other_secret, other_key, other_way, elsewhere, operators, ended)
    }
    assert [judged(ring, signed()) for ring in (other_secret, other_key, other_way)] == [
        DeadLetter.WRONG_SIGNATURE,
        DeadLetter.UNKNOWN_KEY,
        DeadLetter.KEY_NOT_ALLOWED,
    ]
    assert [judged(ring, signed()) for ring in (elsewhere, operators, ended)] == [
        DeadLetter.KEY_NOT_ALLOWED,
        DeadLetter.KEY_NOT_ALLOWED,
        DeadLetter.KEY_RETIRED,
    ]
    assert None not in verdicts
    malformed = b"\x02" + signed()[1:]
    assert judged(RING, malformed) is DeadLetter.MALFORMED_SIGNATURE


@pytest.mark.parametrize(
    ("late_ms", "reason"),
    [
        (-WINDOW_MS, None),
        (WINDOW_MS, None),
        (-WINDOW_MS - 1, DeadLetter.STALE_SIGNATURE),
        (WINDOW_MS + 1, DeadLetter.STALE_SIGNATURE),
    ],
)
def test_signature_gate_expire(late_ms: int, reason: DeadLetter | None) -> None:
    """Signed too long before or after the broker's time: refused, exact to the millisecond."""
    assert judged(RING, signed(), at_ms=NOW_MS + late_ms) is reason


def test_unsigned_events_count_unless_they_must_be_signed() -> None:
    """By group, and from the first to the last millisecond of the requirement."""
    demand = Requirement(("orders", "pay*"), NOW_MS, NOW_MS + 10)
    ring = replace(RING, required=(demand,))
    times = (-1, 0, 10, 11)
    assert [judged(ring, b"", at_ms=NOW_MS + ms) for ms in times] == [
        None,
        DeadLetter.UNSIGNED,
        DeadLetter.UNSIGNED,
        None,
    ]
    groups = ("orders", "orders2", "pay", "payments", "other")
    assert [judged(ring, b"", group=each) for each in groups] == [
        DeadLetter.UNSIGNED,
        None,
        DeadLetter.UNSIGNED,
        DeadLetter.UNSIGNED,
        None,
    ]


def test_the_key_that_signs() -> None:
    """The newest of the keys that have begun, have not ended and may sign; none is an error."""
    old = replace(KEY, id="old", from_ms=100, until_ms=400)
    new = replace(KEY, id="new", from_ms=300)
    narrow = replace(KEY, id="narrow", from_ms=350, groups=("other",))
    ring = Keyring(keys=(new, old, narrow))
    verdicts = [ring.signer(GROUP, Caller.MEMBER, at) for at in (99, 100, 299, 300, 350, 401)]
    assert [key and key.id for key in verdicts] == [None, "old", "old", "new", "new", "new"]
    with pytest.raises(EncodeError, match="no signing key for the member part of group 'orders'"):
        signed(ring, at_ms=99)


def test_who_writes_what() -> None:
    """Every kind of event has its caller; a member's key may sign lag reports."""
    group, member = GroupId(GROUP), MemberId("m")
    events: list[tuple[Event, Caller]] = [
        (Leave(group=group, member=member, incarnation=1), Caller.MEMBER),
        (Heartbeat(group=group, member=member, epoch=1, digest=1), Caller.MEMBER),
        (LagReport(group=group, member=member, lags=()), Caller.EXPORTER),
        (Drain(group=group, member=member), Caller.OPERATOR),
        (
            GroupConfig(group=group, assignor="sticky", settings=Settings(), tasks=()),
            Caller.OPERATOR,
        ),
        (GroupDeleted(group=group), Caller.OPERATOR),
        (Tick(group=group), Caller.CLOCK),
    ]
    assert [caller_of(event) for event, _ in events] == [caller for _, caller in events]
    members = replace(KEY, callers=frozenset({Caller.MEMBER}))
    assert [members.covers(GROUP, caller) for caller in Caller] == [True, True, False, False]


def test_a_key_does_not_print_its_secret() -> None:
    """The repr of a key and of a keyring has no secret."""
    assert "secret of" not in repr(RING)
