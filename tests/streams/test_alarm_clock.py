"""The schedule of wake-ups: when each is due, what replaces it, when it is repeated."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.kafka.settings import ClientSettings
from muster.protocol import codec
from muster.protocol.events import Mark
from muster.protocol.ids import GroupId
from muster.protocol.records import WakeUp
from muster.streams.clock import RETRY_MS, RETRY_MS_MAX, Clock, Schedule, Sleeper

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


class Published:
    """A wake-up as the consumer returns it."""

    def __init__(self, group: str) -> None:
        self._encoded = codec.encode(WakeUp(group=GroupId(group), at_ms=1, published=None))

    def error(self) -> None:
        """No error."""

    def topic(self) -> str:
        """The topic of wake-ups."""
        return "muster.clock"

    def key(self) -> bytes:
        """The key of its group."""
        return self._encoded.key

    def value(self) -> bytes | None:
        """The encoded wake-up."""
        return self._encoded.value


class PatientConsumer:
    """Like librdkafka: `poll` waits for one record, `consume` for as many as it may return."""

    def __init__(self, *waiting: Published) -> None:
        self._waiting = list(waiting)

    def poll(self, timeout_s: float) -> Published | None:
        """Return the next record."""
        return self._waiting.pop(0) if self._waiting else None

    def consume(self, count: int, timeout_s: float) -> list[Published]:
        """Return the waiting records; with a timeout librdkafka would wait for it to end."""
        assert timeout_s == 0, "waits although there is something to take in"
        found, self._waiting = self._waiting[:count], self._waiting[count:]
        return found


def test_a_wake_up_is_taken_in_when_it_is_published() -> None:
    """The clock waits for one record, not for many, because the first may be due at once."""
    clock = Clock(ClientSettings(), ["muster"])
    consumer = PatientConsumer(Published("a"), Published("b"))
    clock._read(consumer)  # type: ignore[arg-type]  # as far as reading needs one
    assert clock.asleep == 2
