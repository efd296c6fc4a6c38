"""The schedule of ticks: when each is due, what replaces it, when it is repeated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.streams.agreements import agreeing

from muster.protocol.events import Mark
from muster.protocol.expected_heartbeats import Beat, checksum, needless_until_ms
from muster.protocol.ids import GroupId
from muster.streams.heartbeat_covers import Sleeper
from muster.streams.wake_up_schedule import (
    RETRY_MS,
    RETRY_MS_MAX,
    TURN_RETRY_MS,
    TURNS_MAX,
    Schedule,
)

A, B = Sleeper("muster", GroupId("a")), Sleeper("muster", GroupId("b"))


def test_due_in_order_and_once() -> None:
    """A wake-up is due at its time, not earlier, and not again at once."""
    schedule = Schedule()
    schedule.note(B, 200)
    schedule.note(A, 100)
    assert schedule.next_ms() == 100
    assert [schedule.due(now) for now in (99, 100, 100, 250)] == [[], [(A, None)], [], [(B, None)]]


def test_a_newer_wake_up_replaces_the_older() -> None:
    """The newest wake-up of a group replaces the one before: later, earlier or none."""
    schedule = Schedule()
    schedule.note(A, 100)
    schedule.note(A, 300)
    assert schedule.due(200) == []
    schedule.note(A, 250)
    assert schedule.due(250) == [(A, None)]
    schedule.note(A, 400)
    schedule.note(A, None)
    assert (schedule.due(10**12), len(schedule)) == ([], 0)


def test_a_tick_says_what_the_newest_wake_up_said() -> None:
    """A tick carries the mark of the group's newest wake-up, also when it is repeated."""
    schedule = Schedule()
    schedule.note(A, 100, Mark(1, 7))
    schedule.note(A, 100, Mark(1, 9))
    assert schedule.due(100) == [(A, Mark(1, 9))]
    assert schedule.due(100 + RETRY_MS) == [(A, Mark(1, 9))]


def test_an_unanswered_tick_is_repeated_ever_more_rarely() -> None:
    """Pauses between unanswered ticks double up to a maximum; an answer resets them."""
    schedule = Schedule()
    schedule.note(A, 0)
    now, pauses = 0, []
    assert schedule.due(now) == [(A, None)]
    for _ in range(8):
        wanted = schedule.next_ms()
        assert wanted is not None
        pauses.append(wanted - now)
        now = wanted
        assert schedule.due(now) == [(A, None)]
    assert pauses[:3] == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS]
    assert pauses[-1] == RETRY_MS_MAX
    schedule.note(A, now + 5)
    assert schedule.due(now + 5) == [(A, None)]
    assert schedule.next_ms() == now + 5 + RETRY_MS


def queue(number: int) -> tuple[Schedule, list[Sleeper]]:
    """A schedule with groups whose rows wait, each due 5 ms after the one before."""
    schedule = Schedule()
    sleepers = [Sleeper("muster", GroupId(f"g{each:03}")) for each in range(number)]
    for place, sleeper in enumerate(sleepers):
        schedule.note(sleeper, 100 + 5 * place, takes_turns=True)
    return schedule, sleepers


def test_groups_whose_rows_wait_get_their_ticks_in_turn() -> None:
    """For each that has answered another one gets its tick: the one that has waited longest."""
    schedule, sleepers = queue(100)
    first = [sleeper for sleeper, _ in schedule.due(10_000)]
    assert first == sleepers[:TURNS_MAX]
    assert schedule.due(10_001) == []
    schedule.note(sleepers[3], 60_000, Mark(1, 1))
    schedule.note(sleepers[5], None)
    assert [each for each, _ in schedule.due(10_002)] == sleepers[TURNS_MAX : TURNS_MAX + 2]
    assert schedule.due(10_003) == []


def test_other_groups_do_not_wait_in_the_queue() -> None:
    """A group without waiting rows gets its tick at its time."""
    schedule, _ = queue(100)
    schedule.due(10_000)
    schedule.note(A, 10_050, Mark(1, 1))
    assert schedule.due(10_050) == [(A, Mark(1, 1))]
    assert schedule.overdue_ms(10_150) == 100


def test_groups_that_do_not_answer_make_room() -> None:
    """They get their ticks again, behind those that had none; nothing stands still."""
    schedule, sleepers = queue(2 * TURNS_MAX)
    schedule.due(10_000)
    assert schedule.next_ms() == 10_000 + TURN_RETRY_MS
    now = 10_000 + TURN_RETRY_MS
    assert [each for each, _ in schedule.due(now)] == sleepers[TURNS_MAX:]
    now += TURN_RETRY_MS
    assert [each for each, _ in schedule.due(now)] == sleepers[:TURNS_MAX]


def test_a_queue_survives_that_the_clock_was_ahead() -> None:
    """No group is lost when the clock learns the time."""
    schedule, sleepers = queue(100)
    schedule.due(10_000)
    schedule.set_back(2_000)
    woken = set()
    for now in range(8_000, 60_000, 500):
        for sleeper, _ in schedule.due(now):
            woken.add(sleeper)
            schedule.note(sleeper, None)
    assert woken | set(sleepers[:TURNS_MAX]) == set(sleepers)
    assert len(schedule) == 0


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B]), st.none() | st.integers(0, 50), st.integers(0, 10)),
        max_size=30,
    )
)
def test_every_wake_up_is_due_at_its_time(
    notes: list[tuple[Sleeper, int | None, int]],
) -> None:
    """The schedule agrees with a plain dictionary, and in the end every group is woken."""
    schedule, plain, now = Schedule(), dict[Sleeper, int](), 0
    for sleeper, at_ms, pause in notes:
        schedule.note(sleeper, at_ms)
        plain.pop(sleeper, None)
        if at_ms is not None:
            plain[sleeper] = at_ms
        now += pause
        for woken, _ in schedule.due(now):
            assert plain.pop(woken) <= now
        assert all(at > now for at in plain.values())
        for sleeping in set(schedule._alarms) - plain.keys():
            schedule.note(sleeping, None)  # the coordinator has answered: it wants no more


def test_no_tick_while_all_heartbeats_are_as_agreed() -> None:
    """The clock looks again when a member would be missing, and wakes the group at the limit."""
    heard = {"W1": Beat(15_000, 1, 7), "W2": Beat(18_000, 1, 7)}
    schedule = Schedule(lambda _, agreement, now_ms: needless_until_ms(agreement, heard, now_ms))
    schedule.note(A, 20_000, apart=True, agreement=agreeing(100_000, "W1", "W2"))
    for now_ms, next_ms in ((20_000, 25_000), (25_000, 28_000), (28_000, 35_000)):
        assert schedule.due(now_ms) == []
        assert (schedule.next_ms(), schedule.overdue_ms(now_ms)) == (next_ms, 0)
        for member, beat in heard.items():
            if beat.at_ms + 10_000 == next_ms:
                heard[member] = beat._replace(at_ms=beat.at_ms + 10_000)
    heard = {member: Beat(95_000, 1, 7) for member in heard}
    assert schedule.due(99_999) == []
    assert schedule.due(100_000) == [(A, None)]


@pytest.mark.parametrize(
    ("name", "heard"),
    [
        ("a member is missing", {"W1": 19_000}),
        ("a member has been silent for too long", {"W1": 19_000, "W2": 9_999}),
        ("a member is new", {"W1": 19_000, "W2": 19_000, "W3": 19_000}),
        ("a member has another name", {"W1": 19_000, "W3": 19_000}),
    ],
)
def test_a_tick_where_heartbeats_are_not_as_agreed(name: str, heard: dict[str, int]) -> None:
    """Whatever differs, the group gets its tick at the time of the wake-up."""
    beats = {member: Beat(at_ms, 1, 7) for member, at_ms in heard.items()}
    schedule = Schedule(lambda _, agreement, now_ms: needless_until_ms(agreement, beats, now_ms))
    schedule.note(A, 20_000, apart=True, agreement=agreeing(100_000, "W1", "W2"))
    assert schedule.due(20_000) == [(A, None)], name


def test_a_tick_where_members_exchanged_their_digests() -> None:
    """The sum of the digests is the same, but each member holds what the other should."""
    two = agreeing(100_000, "W1", "W2")
    digests = np.array([7, 8], dtype=np.uint64)
    agreement = two._replace(checksum=checksum(("W1", "W2"), digests))
    right = {"W1": Beat(19_000, 1, 7), "W2": Beat(19_000, 1, 8)}
    wrong = {"W1": Beat(19_000, 1, 8), "W2": Beat(19_000, 1, 7)}
    assert needless_until_ms(agreement, right, 20_000) == 29_000
    assert needless_until_ms(agreement, wrong, 20_000) == 0
