"""What a clock has heard: which covers its ticks carry."""

from __future__ import annotations

from muster.protocol import codec
from muster.protocol.events import Heartbeat, Mark, Tick
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.tick_covers import Cover, Heard
from muster.streams import heartbeat_covers
from muster.streams.heartbeat_covers import STRANGE_MS, STRANGERS_MAX, Heartbeats, Row, Sleeper
from muster.streams.wake_up_schedule import EARLY_SHARE, Schedule

A, B = Sleeper("muster", GroupId("a")), Sleeper("muster", GroupId("b"))
KNOWN = {A, B}


def beat(at_ms: int, member: str = "W1", group: str = "a", digest: int = 7) -> Row:
    """A heartbeat."""
    event = Heartbeat(group=GroupId(group), member=MemberId(member), epoch=3, digest=digest)
    encoded = codec.encode(event)
    return Row(0, encoded.key, encoded.value, at_ms)


def marker(at_ms: int) -> Row:
    """A marker of a clock."""
    encoded = codec.encode(Tick(group=GroupId("m")))
    return Row(0, encoded.key, encoded.value, at_ms)


def listening(*rows: Row) -> Heartbeats:
    """A topic of one partition, read from a record at 1 s on."""
    heard = Heartbeats()
    heard.listen("muster", 1)
    heard.read("muster", [marker(1_000), *rows], KNOWN)
    return heard


def test_a_cover_begins_where_the_one_before_ended() -> None:
    """The first vouches for no time; the next for the time since, with each newest heartbeat."""
    heard = listening()
    assert heard.cover(A) == Cover(999, 999)
    heard.done(A, written=True)
    heard.read("muster", [beat(2_000), beat(3_000, "W2"), beat(9_500, digest=8)], KNOWN)
    members = (Heard("W1", 0, 3, 8), Heard("W2", 6, 3, 7))
    assert heard.cover(A) == Cover(1_000, 9_499, members)
    heard.done(A, written=True)
    heard.read("muster", [marker(20_000)], KNOWN)
    assert heard.cover(A) == Cover(9_499, 19_999)


def test_no_cover_vouches_for_the_millisecond_of_the_newest_record() -> None:
    """Another heartbeat of that millisecond may not be read yet, and this clock may end now."""
    heard = listening(beat(2_000), beat(2_000, "W2"))
    cover = heard.cover(A)
    assert cover is not None
    assert cover.through_ms == 1_999


def test_a_tick_that_was_not_written_is_repeated() -> None:
    """Its span and its members come again, with what was read meanwhile."""
    heard = listening()
    heard.cover(A)
    heard.done(A, written=True)
    heard.read("muster", [beat(2_000), beat(2_000, "W2")], KNOWN)
    assert heard.cover(A) is not None
    assert heard.cover(A) is None  # not while one is on its way
    heard.read("muster", [beat(5_000, digest=9)], KNOWN)
    heard.done(A, written=False)
    assert heard.cover(A) == Cover(1_000, 4_999, (Heard("W1", 0, 3, 9), Heard("W2", 2, 3, 7)))


def test_a_clock_that_has_read_nothing_sends_no_cover() -> None:
    """Without the topic, or before its first record, a tick has no cover."""
    heard = Heartbeats()
    assert (heard.place(A), heard.cover(A)) == (None, None)
    heard.listen("muster", 1)
    assert (heard.place(A), heard.cover(A), heard.through_ms(A)) == (0, None, 0)


def test_a_group_that_is_heard_first_was_not_listened_to_before() -> None:
    """What a forgotten group wrote before is gone: its next cover begins with what is heard."""
    heard = listening(beat(1_000))
    heard.forget(A)
    heard.read("muster", [marker(5_000), beat(10_000)], KNOWN)
    assert heard.cover(A) == Cover(5_000, 9_999, (Heard("W1", 0, 3, 7),))


def test_lost_records_are_not_vouched_for() -> None:
    """Retention removed records before they were read: the next cover begins behind the gap."""
    heard = listening()
    heard.cover(A)
    heard.done(A, written=True)
    heard.skip("muster", 0)
    heard.read("muster", [beat(50_000), beat(60_000)], KNOWN)
    assert heard.cover(A) == Cover(50_000, 59_999, (Heard("W1", 0, 3, 7),))


def test_a_group_beyond_its_bound_is_not_vouched_for(monkeypatch) -> None:
    """Too many names in one group: that group's time stands still, another one's goes on."""
    monkeypatch.setattr(heartbeat_covers, "MEMBERS_MAX", 2)
    heard = listening()
    for sleeper in (A, B):
        heard.cover(sleeper)
        heard.done(sleeper, written=True)
    names = [beat(2_000 + n, f"X{n}") for n in range(5)]
    heard.read("muster", [*names, beat(3_000, group="b")], KNOWN)
    flooded, other = heard.cover(A), heard.cover(B)
    assert flooded == Cover(2_999, 2_999, (Heard("X0", 0, 3, 7), Heard("X1", 0, 3, 7)))
    assert other == Cover(1_000, 2_999, (Heard("W1", 0, 3, 7),))
    heard.done(A, written=False)  # the time that was lost is not vouched for later, either
    heard.read("muster", [marker(4_000)], KNOWN)
    later = heard.cover(A)
    assert later is not None
    assert later[:2] == (3_000, 3_999)


def test_groups_without_a_wake_up_are_bounded() -> None:
    """A client invents groups: some of them get a tick after a while, and are forgotten then."""
    heard = listening(*(beat(2_000, group=f"g{n}") for n in range(STRANGERS_MAX + 50)))
    assert heard.strangers(2_000 + STRANGE_MS - 1) == []
    strangers = heard.strangers(2_000 + STRANGE_MS)
    assert len(strangers) == STRANGERS_MAX
    first = heard.cover(strangers[0])
    assert first is not None
    assert first.heard == (Heard("W1", 0, 3, 7),)
    for sleeper in strangers:
        heard.forget(sleeper)
    heard.done(strangers[0], written=True)
    assert (heard.strangers(10**9), len(heard._groups)) == ([], 0)


def test_other_records_only_move_the_time() -> None:
    """Other bytes, and keys that name no group, change nothing but the time that was read."""
    rows = [Row(0, b"a", b"{}", 2_000), Row(0, None, None, 3_000), beat(4_000)._replace(key=b"a|b")]
    heard = listening(*rows)
    assert (heard.through_ms(A), heard.cover(A)) == (3_999, Cover(3_999, 3_999))


def test_ticks_of_quiet_groups_go_together() -> None:
    """When one is due, others that may be early go with it; those that may not, do not."""
    schedule, wait_ms = Schedule(), 12_000
    slack = wait_ms // EARLY_SHARE
    groups = [Sleeper("muster", GroupId(f"g{n}")) for n in range(4)]
    for number, sleeper in enumerate(groups):
        at_ms = wait_ms + number * slack // 2
        schedule.note(sleeper, at_ms, Mark(1, 1), apart=True, now_ms=at_ms - wait_ms)
    schedule.note(B, wait_ms + slack * 3 // 4, Mark(1, 2))
    due = schedule.due(wait_ms)
    assert due == [(sleeper, Mark(1, 1)) for sleeper in groups[:3]]
    for sleeper in groups[:3]:
        schedule.note(sleeper, None)
    assert schedule.due(wait_ms + slack * 3 // 4) == [(B, Mark(1, 2)), (groups[3], Mark(1, 1))]


def test_an_early_tick_without_an_answer_is_repeated_at_its_time() -> None:
    """Not a second later: until then the group wants none."""
    schedule, wait_ms = Schedule(), 12_000
    for sleeper, at_ms in ((A, wait_ms), (B, wait_ms + 1_500)):
        schedule.note(sleeper, at_ms, Mark(1, 1), apart=True, now_ms=at_ms - wait_ms)
    assert {sleeper for sleeper, _ in schedule.due(wait_ms)} == {A, B}
    assert [sleeper for sleeper, _ in schedule.due(wait_ms + 1_499)] == [A]
    assert [sleeper for sleeper, _ in schedule.due(wait_ms + 1_500)] == [B]
