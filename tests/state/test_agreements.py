"""Quiet groups get no ticks: which wake-ups let the clock wait, and what ends the waiting.

Members heartbeat apart, with a session of 45 seconds and a heartbeat every five.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from support.state.story import GROUP, Story, config, join, leave, report

from muster.protocol.events import Event, Tick
from muster.protocol.expected_heartbeats import Agreement, Beat, needless_until_ms
from muster.protocol.records import MemberAssignment, WakeUp
from muster.protocol.tasks import Subtopology
from muster.protocol.tick_covers import Cover, Heard
from muster.state.liveness import Liveness
from muster.state.machine import Step
from muster.state.wake_ups import QUIET_MS

START = 1_000_000
SECOND = 1_000
TASKS = Subtopology("0", 6)


@dataclass
class Quiet:
    """A group whose members write heartbeats, and a clock that reads them, second by second.

    Attributes:
        story: the group.
        members: those that write a heartbeat every five seconds, with the right digest.
        ticks: times of the ticks, in seconds.
        left: member → second at which the group had it no more.
    """

    story: Story
    members: set[str]
    second: int = 0
    ticks: list[int] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)
    _wake: WakeUp | None = None
    _heard: dict[str, Beat] = field(default_factory=dict)
    _through_ms: int = START

    def take(self, *events: Event) -> Step:
        """Take events now."""
        step = self.story.at(self.second * SECOND).take(*events)
        for record in step.records:
            if isinstance(record, WakeUp):
                self._wake = record
        for member in {"W1", "W2", "W3"} - set(self.story.group.roster.by_id) - set(self.left):
            self.left[member] = self.second
        return step

    @property
    def agreement(self) -> Agreement | None:
        """What the newest wake-up says."""
        return None if self._wake is None else self._wake.agreement

    def run(self, seconds: int) -> Quiet:
        """Let time pass."""
        for _ in range(seconds):
            self.second += 1
            now_ms = START + self.second * SECOND
            if self.second % 5 == 0:
                self._beat(now_ms)
            if self._is_due(now_ms):
                self._tick(now_ms)
        return self

    def _beat(self, now_ms: int) -> None:
        sessions, by_id = self.story.group.sessions, self.story.group.roster.by_id
        for member in self.members & by_id.keys():
            digest = int(sessions.digest[by_id[member]])
            self._heard[member] = Beat(now_ms, 1, digest)

    def _is_due(self, now_ms: int) -> bool:
        if self._wake is None or self._wake.at_ms is None or self._wake.at_ms > now_ms:
            return False
        agreement = self._wake.agreement
        return agreement is None or not needless_until_ms(agreement, self._heard, now_ms)

    def _tick(self, now_ms: int) -> None:
        self.ticks.append(self.second)
        heard = tuple(
            Heard(member, (now_ms - beat.at_ms) // 1_000, beat.epoch, beat.digest)
            for member, beat in self._heard.items()
        )
        cover = Cover(self._through_ms, now_ms, heard)
        self._heard, self._through_ms = {}, now_ms
        self.take(Tick(group=GROUP, cover=cover))


def quiet() -> Quiet:
    """Three members that have run for a minute, with a clock that waits since."""
    story, names = Story(), ("W1", "W2", "W3")
    story.take(config(TASKS), *(join(name, apart=True) for name in names))
    fleet = Quiet(story, {*names})
    fleet.take(Tick(group=GROUP, cover=Cover(0, 0)))
    fleet.run(60)
    assert fleet.agreement is not None
    return fleet


def test_a_quiet_group_gets_a_tick_every_ten_minutes() -> None:
    """In an hour; three a minute without the agreement."""
    fleet = quiet()
    fleet.ticks.clear()
    fleet.run(3_600)
    assert len(fleet.ticks) == 3_600 * SECOND // QUIET_MS
    assert fleet.left == {}


@pytest.mark.parametrize("silent_since", [0, 3, 14, 299, 540])
def test_a_silent_member_expires_when_its_session_ends(silent_since: int) -> None:
    """However long the clock has waited: within the second behind the session of 45 seconds."""
    fleet = quiet().run(silent_since)
    last = fleet.second // 5 * 5
    fleet.members.remove("W2")
    fleet.run(60)
    assert set(fleet.left) == {"W2"}
    assert 45 <= fleet.left["W2"] - last <= 47


def test_what_changes_nothing_brings_no_wake_up() -> None:
    """A member's report, minutes after the tick, leaves the clock waiting."""
    fleet = quiet().run(200)
    step = fleet.take(report("W1", 2, "0_0", "0_3"))
    assert [r for r in step.records if isinstance(r, WakeUp)] == []


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("a member joins", join("W4", apart=True)),
        ("a member leaves", leave("W3")),
        ("a member leaves for a while", leave("W3", temporary=True)),
        ("more tasks", config(Subtopology("0", 9))),
        ("a clock that hears nothing", Tick(group=GROUP)),
    ],
)
def test_whatever_happens_ends_the_waiting(name: str, event: Event) -> None:
    """The clock is told with the records of the change, also if members never read theirs."""
    fleet = quiet().run(200)
    before = fleet.agreement
    step = fleet.take(event)
    assert any(isinstance(record, WakeUp) for record in step.records), name
    assert fleet.agreement != before
    fleet.ticks.clear()
    fleet.run(60)
    assert fleet.ticks, name


def test_a_member_that_joins_while_the_clock_waits_heartbeats_apart_at_once() -> None:
    """The newest tick is minutes old, but the clock listens: it may wait."""
    fleet = quiet().run(200)
    step = fleet.take(join("W4", apart=True))
    told = {r.member: r.apart for r in step.records if isinstance(r, MemberAssignment)}
    assert told["W4"] is True


def test_the_agreement_is_stored() -> None:
    """A coordinator that starts on the checkpoint goes on as the one before."""
    sessions = quiet().story.group.sessions
    again, _ = Liveness.from_bytes(sessions.to_bytes())
    assert again.agreement == sessions.agreement is not None
