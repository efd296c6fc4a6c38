"""The canary group: its ticks are answered and timed, and other events are rejected."""

from __future__ import annotations

import pytest
from support.streams.consumed import Consumed
from support.streams.operator import INPUT, PARTITIONS, PREFIXES, of_kind, record_of
from support.streams.packed_rows import pack

from muster.kafka.client_settings import ClientSettings
from muster.protocol import codec
from muster.protocol.errors import ConfigError
from muster.protocol.events import Event, Join, Mark, Origin, Tick
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import Record, Rejected, WakeUp
from muster.protocol.signing import HEADER as SIGNATURE
from muster.streams import processor
from muster.streams.batch import canary_answer
from muster.streams.batch.group_batch import Publisher
from muster.streams.canary import GROUP, Canary
from muster.streams.clock import Clock
from muster.streams.job_settings import job_config
from muster.streams.processor import GroupProcessor
from muster.streams.source import lane_of

pytestmark = pytest.mark.usefixtures("nothing_in_memory")

EPOCH, INTERVAL_MS = 7, 10_000
LANE = lane_of("muster", GROUP.encode())


def packed(event: Event, at_ms: int, offset: int = 0, signature: bytes | None = None) -> bytes:
    """An event as the query packs it."""
    origin = Origin("muster.membership", 0, offset, at_ms)
    return pack(origin, codec.encode(event).value, INPUT, signature)


def answered(*entries: bytes, interval_ms: int = INTERVAL_MS) -> list[Record]:
    """What the operator publishes; it does not use the store."""
    publishers = dict.fromkeys(PREFIXES, Publisher(EPOCH, PARTITIONS, 1))
    operator = GroupProcessor(publishers, INPUT, canary_ms=interval_ms)
    operator._begin_batch(None, None, is_suspect=False)
    rows = [(LANE, entry) for entry in entries]
    return [record_of(row) for row in operator.handleInputRows((LANE,), iter(rows), None)]  # type: ignore[arg-type]


def test_one_answer_for_all_ticks_of_a_batch() -> None:
    """One answer gives the epoch, the oldest tick's time and the time of the next tick."""
    ticks = [packed(Tick(group=GROUP), at_ms, n) for n, at_ms in enumerate((3_000, 1_000, 2_000))]
    (wake_up,) = answered(*ticks)
    assert wake_up == WakeUp(group=GROUP, at_ms=13_000, published=Mark(EPOCH, 1_000))
    assert not processor._cache


def test_a_job_without_a_canary_takes_it_back() -> None:
    """A job without a canary answers a tick with a tombstone, so that no tick follows."""
    (wake_up,) = answered(packed(Tick(group=GROUP), 1_000), interval_ms=0)
    assert wake_up == WakeUp(group=GROUP, at_ms=None)


def test_no_member_joins_the_canary() -> None:
    """Any other event of the canary group becomes a dead letter, also beside a tick."""
    join = Join(group=GROUP, member=MemberId("m"), incarnation=1)
    records = answered(packed(join, 1_000), packed(Tick(group=GROUP), 2_000, 1))
    (letter,) = of_kind(records, Rejected)
    assert "choose another name" in letter.message
    assert len(of_kind(records, WakeUp)) == 1


def test_a_tick_needs_no_signature() -> None:
    """Rows may have room for a signature; the canary's tick needs none."""
    entries = [packed(Tick(group=GROUP), 5, signature=sign) for sign in (b"", SIGNATURE.encode())]
    wake, letters = canary_answer.answer(entries, INPUT, EPOCH, INTERVAL_MS, signed=True)
    assert (wake is not None, letters) == (True, [])


def wake_up(epoch: int, since_ms: int) -> WakeUp:
    """A coordinator's answer."""
    return WakeUp(group=GROUP, at_ms=since_ms + 1, published=Mark(epoch, since_ms))


def test_answers_of_this_coordinator_count() -> None:
    """Only this coordinator's answers to its own ticks are timed, for each prefix apart."""
    took: list[tuple[str, float]] = []
    bird = Canary({"a": 3, "b": 4}, lambda prefix, seconds: took.append((prefix, seconds)))
    assert bird.begins() == [("a", Mark(3, 0)), ("b", Mark(4, 0))]
    assert bird.answered("a", wake_up(3, 1_000), 60_000)  # no tick of this canary is under way yet
    bird.sent("a", 50_000)
    bird.sent("a", 70_000)
    assert bird.answered("a", wake_up(3, 49_999), 60_000)
    assert bird.answered("a", wake_up(3, 50_000), 50_250)
    assert not bird.answered("a", wake_up(2, 50_000), 90_000)
    assert not bird.answered("b", wake_up(3, 50_000), 90_000)
    assert not bird.answered("a", WakeUp(group=GROUP, at_ms=None), 90_000)
    assert took == [("a", 0.25)]


def test_the_clock_ticks_for_its_own_canary_only() -> None:
    """Only the clock with the canary ticks for it, and `asleep` does not count it.

    Both clocks schedule the wake-ups of other groups.
    """
    ours = Clock(ClientSettings(), ["muster"], canary=Canary({"muster": 3}, lambda *_: None))
    further = Clock(ClientSettings(), ["muster"])
    ours.begin_canary()
    further.begin_canary()
    for clock in (ours, further):
        for record in (wake_up(2, 500), wake_up(3, 1_000), WakeUp(group=GroupId("g"), at_ms=7_000)):
            message = Consumed("muster.clock", record, 1_100)
            clock._note(message)  # type: ignore[arg-type]  # as far as it is read
        assert clock.asleep == 1
    assert [str(s.group) for s, _ in ours._schedule.due(10_000)] == [str(GROUP), "g"]
    assert [str(s.group) for s, _ in further._schedule.due(10_000)] == ["g"]


def test_the_interval_is_a_setting() -> None:
    """The interval is 10 s by default, 0 for never, or at least 500 ms."""
    assert job_config(checkpoint="/c").canary_ms == 10_000
    for text, expected in (("0", 0), ("500", 500)):
        job = job_config(checkpoint="/c", conf=[f"muster.canary.interval.ms={text}"])
        assert job.canary_ms == expected
    with pytest.raises(ConfigError, match="0 \\(never\\)"):
        job_config(checkpoint="/c", conf=["muster.canary.interval.ms=499"])
