"""Members whose heartbeats come with ticks: who is alive, who has expired, and when.

Each group has two members with a session of 45 seconds, and ticks say what a clock has heard.
"""

from __future__ import annotations

import json

import pytest
from support.state.story import GROUP, Story, beat, config, join, leave

from muster.protocol.events import Mark, Tick
from muster.protocol.records import Fault, GroupSnapshot, MemberAssignment, WakeUp
from muster.protocol.tasks import Subtopology
from muster.protocol.tick_covers import Cover, Heard
from muster.state.group import Group
from muster.state.liveness import REFUSED, Liveness
from muster.state.machine import Step

FOUR = Subtopology("0", 4)
START = 1_000_000
"""Broker time of the first event, as in `Story`."""


def two(**more: object) -> Story:
    """Two members that heartbeat apart have the tasks."""
    story = Story()
    story.take(config(FOUR, **more), join("W1", apart=True), join("W2", apart=True))
    return listened(story)


def listened(story: Story) -> Story:
    """The first tick of a clock that listens and has read nothing yet."""
    story.take(Tick(group=GROUP, cover=Cover(0, 0)))
    return story


def heard(story: Story, *members: str, age_s: int = 0, digest: int | None = None) -> list[Heard]:
    """The newest heartbeats of members that hold what they should."""
    slots = story.group.roster.by_id
    digests = {name: int(story.group.sessions.digest[slots[name]]) for name in slots}
    return [Heard(m, age_s, 1, digests[m] if digest is None else digest) for m in members]


def hear(
    story: Story, from_ms: int, through_ms: int, *members: str, **more: int
) -> tuple[dict[str, str], int]:
    """Take a tick with a cover, times from the start; what members are told, and the next wake."""
    span = (START + from_ms, START + through_ms)
    cover = Cover(*span, tuple(heard(story, *members, **more)))
    story.at(through_ms + 1)
    lines = story.records(Tick(group=GROUP, cover=cover))
    return lines, (story.group.sessions.wake_ms or START) - START


def apart(step: Step) -> dict[str, bool]:
    """What the members that got a record are told."""
    return {r.member: r.apart for r in step.records if isinstance(r, MemberAssignment)}


def test_a_member_that_offers_it_is_told_to_heartbeat_apart() -> None:
    """The first tick of a clock that listens tells W1, which offered it; W3 is told at its join."""
    story = Story()
    step = story.take(config(FOUR), join("W1", apart=True), join("W2"))
    assert apart(step) == {"W1": False, "W2": False}
    assert apart(story.take(Tick(group=GROUP))) == {}
    assert apart(story.take(Tick(group=GROUP, cover=Cover(0, 0)))) == {"W1": True}
    assert apart(story.take(join("W3", apart=True), join("W4")))["W3"]


def test_without_a_clock_that_listens_no_new_member_is_told() -> None:
    """Ticks without a cover for two sessions: no member expires, and a newcomer is not told."""
    story = two()
    hear(story, 0, 5_000, "W1", "W2")
    for ms in range(15_000, 115_000, 10_000):
        assert apart(story.at(ms).take(Tick(group=GROUP))) == {}
    step = story.take(join("W3", apart=True))
    assert apart(step)["W3"] is False
    assert sorted(story.group.roster.by_id) == ["W1", "W2", "W3"]


def test_members_that_are_heard_stay_and_cost_few_ticks() -> None:
    """While all is well, the next tick is almost half of the session later, for an hour."""
    story = two()
    hear(story, 0, 5_000, "W1", "W2")
    at_ms, ticks = 5_000, 0
    while at_ms < 3_600_000:
        lines, next_ms = hear(story, at_ms, at_ms + 20_250, "W1", "W2")
        assert lines == {}
        assert next_ms == at_ms + 20_250 + 20_250
        at_ms, ticks = at_ms + 20_250, ticks + 1
    assert ticks == 178
    assert len(story.group.roster.by_id) == 2


def test_a_silent_member_expires_when_a_session_is_covered() -> None:
    """W2 was last heard at 5 s: it expires at 50 s, as the wake-up asked, and not before."""
    story = two()
    hear(story, 0, 5_000, "W1", "W2")
    for at_ms in (18_500, 32_000, 45_500):
        lines, next_ms = hear(story, at_ms - 13_500, at_ms, "W1")
        assert lines == {}
    assert next_ms == 50_000
    assert hear(story, 45_500, 49_999, "W1")[0] == {}
    lines, _ = hear(story, 49_999, 50_000, "W1")
    assert lines == {"W1": "0_0 0_1 0_2 0_3 | - | - @2", "W2": "gone"}


def test_the_age_of_a_heartbeat_counts() -> None:
    """A cover of 13 s names W2 with an age of 12 s: its session ends 33 s after the cover."""
    story = two()
    hear(story, 0, 5_000, "W1", "W2")
    cover = (*heard(story, "W1"), *heard(story, "W2", age_s=12))
    story.at(18_001).take(Tick(group=GROUP, cover=Cover(START + 5_000, START + 18_000, cover)))
    hear(story, 18_000, 30_000, "W1")
    hear(story, 30_000, 42_000, "W1")
    assert hear(story, 42_000, 50_999, "W1")[0] == {}
    assert hear(story, 50_999, 51_000, "W1")[0]["W2"] == "gone"


def test_time_without_a_cover_expires_no_member() -> None:
    """Ticks of a clock that has read nothing, and other members' events, move no session."""
    story = two()
    hear(story, 0, 5_000, "W1", "W2")
    for ms in range(10_000, 600_000, 10_000):
        lines = story.at(ms).records(
            Tick(group=GROUP, cover=Cover(0, 0)), join("W3", incarnation=ms)
        )
        assert "gone" not in lines.values()
    assert story.group.sessions.session_ms == START + 5_000


def test_a_gap_between_covers_does_not_count() -> None:
    """No clock heard from 5 s to 300 s: a member that is silent since has 45 s from then on."""
    story = two()
    hear(story, 0, 5_000, "W1", "W2")
    hear(story, 300_000, 310_000, "W1")
    hear(story, 310_000, 324_000, "W1")
    hear(story, 324_000, 338_000, "W1")
    hear(story, 338_000, 344_999, "W1")
    assert "W2" in story.group.roster.by_id
    hear(story, 344_999, 345_000, "W1")
    assert "W2" not in story.group.roster.by_id


def test_brokers_whose_times_differ_keep_no_member_for_ever() -> None:
    """The broker of the heartbeats is 900 ms ahead: covers end later than their ticks, no gap."""
    story = two()
    hear(story, 0, 900, "W1", "W2")
    for from_ms in range(0, 60_000, 10_000):
        begin = START + from_ms + 900
        cover = Cover(begin, begin + 10_000, tuple(heard(story, "W1")))
        story.at(from_ms + 10_000)
        story.records(Tick(group=GROUP, cover=cover))
    assert list(story.group.roster.by_id) == ["W1"]


def test_a_long_cover_counts_for_half_of_a_session() -> None:
    """The broker was away for an hour and no member could write: none expires at its return."""
    story = two()
    hear(story, 0, 5_000, "W1", "W2")
    lines, _ = hear(story, 5_000, 3_605_000)
    assert lines == {}
    assert story.group.sessions.session_ms == START + 5_000 + 22_500


def test_covers_of_two_clocks_count_once() -> None:
    """A second clock, an instance of the job elsewhere, repeats the span: time passes once."""
    story = two()
    hear(story, 0, 5_000, "W1", "W2")
    hear(story, 5_000, 15_000, "W1", "W2")
    hear(story, 8_000, 16_000, "W1", "W2")
    hear(story, 2_000, 9_000)
    assert story.group.sessions.session_ms == START + 16_000
    assert story.group.sessions.covered_ms == START + 16_000


def test_a_cover_vouches_for_no_time_after_its_tick() -> None:
    """A forged cover reaches far into the future: no member expires, now or with the next one."""
    story = two()
    hear(story, 0, 5_000, "W1", "W2")
    forged = Cover(START, START + 10**12)
    for ms in range(6_000, 18_000, 500):
        assert story.at(ms).records(Tick(group=GROUP, cover=forged)) == {}
    lines, _ = hear(story, 5_000, 18_500, "W1", "W2")
    assert lines == {}
    assert sorted(story.group.roster.by_id) == ["W1", "W2"]


def test_a_join_counts_from_its_own_time() -> None:
    """W3 joins 10 s after the newest cover: its session lasts from then, and a second more."""
    story = two()
    hear(story, 0, 5_000, "W1", "W2")
    story.at(15_000).take(join("W3", apart=True))
    at_ms = 5_000
    for end_ms in (18_000, 32_000, 46_000, 60_999):
        hear(story, at_ms, end_ms, "W1", "W2")
        at_ms = end_ms
    assert "W3" in story.group.roster.by_id
    hear(story, at_ms, 61_000, "W1", "W2")
    assert "W3" not in story.group.roster.by_id


def test_a_silent_member_expires_beside_others_when_the_last_apart_has_left() -> None:
    """Only W4's heartbeats move the clock: W3 is silent after its join and expires in its time."""
    story = two()
    hear(story, 0, 1_000, "W1", "W2")
    story.at(100_000).take(leave("W1"), join("W3"), join("W4"), leave("W2"), join("W3"))
    for ms in range(101_000, 145_000, 1_000):
        story.at(ms).take(beat("W4", 0))
    assert sorted(story.group.roster.by_id) == ["W3", "W4"]
    for ms in range(145_000, 148_000, 1_000):
        story.at(ms).take(beat("W4", 0))
    assert sorted(story.group.roster.by_id) == ["W4"]


def test_a_silent_member_expires_also_when_the_last_apart_has_left() -> None:
    """W3 reads nothing and writes nothing after its join: its session is not longer than others."""
    story = two()
    hear(story, 0, 1_000, "W1", "W2")
    w3 = join("W3")
    story.at(100_000).take(leave("W1"), w3, leave("W2"), w3)
    expired_ms = next(
        ms
        for ms in range(101_000, 200_000, 1_000)
        if story.at(ms).take(Tick(group=GROUP)) and not story.group.roster.by_id
    )
    assert 145_000 <= expired_ms <= 147_000


def test_a_lost_record_is_repaired() -> None:
    """W2 shows another digest in two ticks in a row: its record is published again."""
    story = two()
    hear(story, 0, 5_000, "W1", "W2")
    lines, next_ms = hear(story, 5_000, 18_500, "W2", digest=1)
    assert (lines, next_ms) == ({}, 18_501 + 5_000)
    lines, next_ms = hear(story, 18_500, 23_500, "W2", digest=1)
    assert lines == {"W2": "0_1 0_3 | - | - @1 report"}
    assert next_ms == 23_500 + 10_000


def test_after_a_change_the_digests_are_looked_at_soon() -> None:
    """A new member changes what others hold: the next tick comes after a heartbeat interval."""
    story = two()
    hear(story, 0, 5_000, "W1", "W2")
    story.at(10_000).take(join("W3", apart=True))
    assert story.group.sessions.wake_ms == START + 15_000


def test_strangers_are_told_to_join() -> None:
    """A tick names a process that is no member: it is told so; one that left is not."""
    story = two()
    fresh, old = Heard("X", 1, 1, 5), Heard("Y", 9, 1, 5)
    story.at(10_000)
    cover = Cover(START, START + 10_000, (fresh, old))
    assert story.records(Tick(group=GROUP, cover=cover)) == {"X": "UNKNOWN_MEMBER_ID"}


@pytest.mark.parametrize("instance_id", [None, "I2"], ids=["dynamic", "static"])
def test_a_process_that_restarts_is_not_blamed_for_its_old_heartbeat(
    instance_id: str | None,
) -> None:
    """W2 leaves and joins again at once; a tick of the same batch carries its last heartbeat.

    The heartbeat has the epoch of the session before, which the new one has not been given.
    """
    story = Story()
    story.take(
        config(FOUR), join("W1", apart=True), join("W2", apart=True, instance_id=instance_id)
    )
    listened(story)
    hear(story, 0, 5_000, "W1", "W2")
    old = heard(story, "W1", "W2", age_s=1)
    story.at(5_500).take(leave("W2"))
    story.at(6_000)
    tick = Tick(group=GROUP, cover=Cover(START + 5_000, START + 5_999, tuple(old)))
    again = join("W2", incarnation=2, apart=True, instance_id=instance_id)
    lines = story.records(again, tick)
    assert "W2" in lines
    assert "FENCED" not in lines["W2"]
    later, _ = hear(story, 5_999, 7_000, "W1")
    assert "W2" not in later
    assert sorted(story.group.roster.by_id) == ["W1", "W2"]


def test_members_in_both_topics_are_heard() -> None:
    """W2 writes to membership, W1 apart; when W2 falls silent, it expires a session later."""
    story = Story()
    story.take(config(FOUR), join("W1", apart=True), join("W2"))
    listened(story)
    digest = int(story.group.sessions.digest[story.group.roster.by_id["W2"]])
    story.at(4_000).take(beat("W2", digest))
    for at_ms in range(5_000, 50_000, 5_000):
        hear(story, at_ms - 5_000, at_ms, "W1")
    assert "W2" in story.group.roster.by_id
    hear(story, 45_000, 50_000, "W1")
    assert "W2" not in story.group.roster.by_id


def test_without_members_apart_the_group_keeps_its_time() -> None:
    """When the last member that heartbeats apart has left, the log moves the sessions again."""
    story = Story()
    story.take(config(FOUR), join("W1", apart=True), join("W2"))
    listened(story)
    hear(story, 0, 5_000, "W1")
    story.at(8_000).take(leave("W1"))
    for ms in range(18_000, 40_000, 10_000):
        story.at(ms).take(Tick(group=GROUP))
    assert "W2" in story.group.roster.by_id
    story.at(48_000).take(Tick(group=GROUP))
    assert "W2" not in story.group.roster.by_id


def test_a_lost_checkpoint_keeps_members_apart() -> None:
    """The snapshot says which members heartbeat apart, so the question to them says so, too."""
    story = two()
    step = story.at(1_000).take(join("W3"))
    (snapshot,) = [r for r in step.records if isinstance(r, GroupSnapshot)]
    story.group, story.epoch = Group.recover(snapshot), 2
    asked = story.at(2_000).take(Tick(group=GROUP, published=Mark(2, 0))).records
    records = [r for r in asked if isinstance(r, MemberAssignment)]
    assert {r.member: (r.report, r.apart) for r in records} == {
        "W1": (True, True),
        "W2": (True, True),
        "W3": (True, False),
    }


@pytest.mark.parametrize("members", [100, 5_000])
def test_quiet_liveness_is_small(members: int) -> None:
    """A tick of a quiet group stores two kilobytes at most, however many members it has."""
    story = Story()
    names = [f"W{number}" for number in range(members)]
    joins = [join(name, apart=True) for name in names]
    story.take(config(Subtopology("0", members)), *joins)
    listened(story)
    hear(story, 0, 5_000, *names)
    data = story.group.liveness()
    sessions, end = Liveness.from_bytes(data)
    assert json.loads(data[end:]) == json.loads(story.group.liveness()[end:])
    assert end < 2_000
    assert (sessions.last_ms == story.group.sessions.last_ms).all()
    assert [r for r in story.take(Tick(group=GROUP)).records if not isinstance(r, WakeUp)] == []


def test_members_whose_heartbeats_are_refused_are_fenced() -> None:
    """Their time goes on, but no heartbeat counts; one that is heard on membership stays."""
    story, before_ms = two(), 0
    faults = {}
    for ms in range(1_000, 50_000, 1_000):
        cover = Cover(START + before_ms, START + ms, tuple(heard(story, "W1", "W2")))
        tick = Tick(group=GROUP, cover=cover, refused=True)
        [mine] = heard(story, "W1")
        step, before_ms = story.at(ms + 1).take(beat("W1", mine.digest), tick), ms
        records = [r for r in step.records if isinstance(r, MemberAssignment)]
        faults |= {r.member: r.fault for r in records if r.fault is not None}
    assert faults == {"W2": Fault.FENCED_MEMBER_EPOCH}


def test_a_refused_heartbeat_from_before_the_join_says_nothing_of_the_member() -> None:
    """A process without a key wrote it. W1, which has one, does not count as refused for that.

    A member that counts as refused is fenced when its session ends, and its tasks wait longer.
    """
    refused = []
    for age_s in (5, 0):
        story = Story()
        story.take(config(FOUR), join("W1"), join("W2"))
        cover = Cover(START, START + 1_000, tuple(heard(story, "W1", age_s=age_s)))
        story.at(1_001).take(Tick(group=GROUP, cover=cover, refused=True))
        flags = story.group.sessions.flags[story.group.roster.by_id["W1"]]
        refused.append(bool(flags & REFUSED))
    assert refused == [False, True]


def test_a_tick_that_comes_early_uses_up_its_wake_up() -> None:
    """The group wants the next one a whole wait later; an older mark's tick changes nothing."""
    story = two()
    for ms in (5_000, 10_000):
        _, wake_ms = hear(story, ms - 5_000, ms, "W1", "W2")
    mark, early_ms = story.group.sessions.published_mark, wake_ms - 2_000
    assert early_ms > 10_000

    def wanted(published: Mark) -> list[int]:
        heard_of = tuple(heard(story, "W1", "W2"))
        cover = Cover(START + 10_000, START + early_ms, heard_of)
        tick = Tick(group=GROUP, published=published, cover=cover)
        records = story.at(early_ms + 1).take(tick).records
        return [r.at_ms - START for r in records if isinstance(r, WakeUp) and r.at_ms is not None]

    assert wanted(mark._replace(taken=mark.taken - 1)) == []
    [again_ms] = wanted(mark)
    assert again_ms - early_ms == wake_ms - 10_000


@pytest.mark.parametrize("age_s", [None, 9, 2], ids=["silent", "before the join", "after it"])
def test_connect_workers_that_had_all_crashed_are_known_by_their_last_heartbeat(
    age_s: int | None,
) -> None:
    """W3 joins at 8 s. Work waits if W1 was heard at 14 s, not if its last heartbeat is of 7 s."""
    story = two(assignor="cooperative", session_timeout_ms=45_000)
    hear(story, 0, 5_000, "W1", "W2")
    story.at(8_000).take(join("W3", apart=True))
    if age_s is not None:
        cover = Cover(START + 5_000, START + 16_000, tuple(heard(story, "W1", age_s=age_s)))
        story.at(16_001).take(Tick(group=GROUP, cover=cover))
    hear(story, 16_000 if age_s is not None else 5_000, 24_000, "W3")
    for at_ms in (37_500, 51_000, 58_000, 64_500):
        hear(story, at_ms - 13_500, at_ms, "W3")
    assert sorted(story.group.roster.by_id) == ["W3"]
    assert bool((story.group.owned.holder < 0).any()) == (age_s == 2)
