"""The schedule of wake-ups: what is due, what is put off, what is forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.protocol.events import Mark
from muster.protocol.ids import GroupId
from muster.streams.clock import RETRY_MS, RETRY_MS_MAX, Schedule, Sleeper

A, B = Sleeper("muster", GroupId("a")), Sleeper("muster", GroupId("b"))


def test_due_in_order_and_once() -> None:
    """Each wake-up is due at its time, not before, and not again at once."""
    schedule = Schedule()
    schedule.note(B, 200)
    schedule.note(A, 100)
    assert schedule.next_ms() == 100
    assert [schedule.due(now) for now in (99, 100, 100, 250)] == [[], [(A, None)], [], [(B, None)]]


def test_a_newer_wake_up_replaces_the_older() -> None:
    """Later, earlier or never: what was noted last holds."""
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
    """What a group has published is repeated, also when nobody answers."""
    schedule = Schedule()
    schedule.note(A, 100, Mark(1, 7))
    schedule.note(A, 100, Mark(1, 9))
    assert schedule.due(100) == [(A, Mark(1, 9))]
    assert schedule.due(100 + RETRY_MS) == [(A, Mark(1, 9))]


def test_an_unanswered_tick_is_repeated_ever_more_rarely() -> None:
    """While the coordinator is away a group is ticked again, with a bound on the pause."""
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


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B]), st.none() | st.integers(0, 50), st.integers(0, 10)),
        max_size=30,
    )
)
def test_never_early_never_forgotten(
    notes: list[tuple[Sleeper, int | None, int]],
) -> None:
    """Against a plain dictionary: what is due is due there too, and in the end all are woken."""
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
