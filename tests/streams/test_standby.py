"""When a standby claims, and what its claim says of the one before; no Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muster.protocol.events import Mark
from muster.protocol.records import CoordinatorClaim, CoordinatorRole, CoordinatorSign, WakeUp
from muster.streams.standby_coordinator import (
    FROZEN_S,
    GAP_S_MAX,
    LOOK_S,
    OLD_SILENCE_S,
    TURN_S,
    Follows,
    Newest,
    Turn,
)

SILENCE_S = 3.0
P = "muster"


def claim(job: str = "a", epoch: int = 5, follows: int | None = 4, *, alone: bool = True) -> Newest:
    """A claim at time 0."""
    record = CoordinatorClaim(job=job, host="h", version="1", follows=follows, alone=alone)
    return Newest(epoch, 0, record)


def sign(role: CoordinatorRole, job: str = "a") -> CoordinatorSign:
    """A sign of life."""
    return CoordinatorSign(job=job, host="h", version="1", role=role)


RUNNING, STANDBY, ENDED = CoordinatorRole.RUNNING, CoordinatorRole.STANDBY, CoordinatorRole.ENDED


def looks(turn: Turn, from_s: float, seconds: float) -> Iterator[float]:
    """Kafka answers a look every `LOOK_S`, and nothing is there to read."""
    for number in range(1, round(seconds / LOOK_S) + 1):
        now_s = from_s + number * LOOK_S
        turn.looked(P, now_s)
        yield now_s


def due_s(turn: Turn, from_s: float = 0.0, seconds: float = 60.0) -> float | None:
    """When it is the standby's turn if nothing more is read; None = not in that time."""
    return next((now_s for now_s in looks(turn, from_s, seconds) if turn.is_due(now_s)), None)


def watching(newest: Newest | None = None, job: str = "m") -> Turn:
    """A standby that has read the newest claim, and looked once."""
    turn = Turn(job, [P], SILENCE_S)
    if newest is not None:
        turn.claimed(P, newest)
    turn.looked(P, 0.0)
    return turn


def test_a_silent_coordinator_is_replaced_after_the_silence() -> None:
    """While signs come it is not the standby's turn; the silence counts from the last one."""
    turn = watching(claim())
    for now_s in looks(turn, 0.0, 30.0):
        assert not turn.is_due(now_s)
        if now_s % 1 == 0:
            turn.read(P, sign(RUNNING), now_s)
    turn.looked(P, 30.25)
    assert due_s(turn, 30.25) == 30.25 + SILENCE_S


@pytest.mark.parametrize("role", [ENDED, CoordinatorRole.STOPPED])
def test_a_coordinator_that_has_ended_is_replaced_at_once(role: CoordinatorRole) -> None:
    """Its last sign says so; a sign of another job says nothing about it."""
    turn = watching(claim())
    turn.read(P, sign(role, "of an earlier one"), 0.0)
    assert not turn.is_due(0.0)
    turn.read(P, sign(role), 0.0)
    assert turn.is_due(0.0)


def test_without_a_claim_a_standby_claims_at_once() -> None:
    """A standby claims as soon as Kafka has answered that there is no claim."""
    turn = Turn("m", [P], SILENCE_S)
    assert not turn.is_due(0.0)
    turn.looked(P, 1.0)
    assert turn.is_due(1.0)


def test_silence_counts_only_while_kafka_answers() -> None:
    """Kafka, or the standby, was away for a minute: that is a second of silence at most."""
    turn = watching(claim())
    turn.looked(P, LOOK_S)
    turn.looked(P, 60.0)
    assert not turn.is_due(60.0)
    assert due_s(turn, 60.0) == 60.0 + SILENCE_S - LOOK_S - GAP_S_MAX


def test_a_later_claim_is_watched_from_then_on() -> None:
    """A claim counts as a sign, and the signs of the job before count no more."""
    turn = watching(claim())
    turn.read(P, sign(ENDED), 0.0)
    turn.claimed(P, claim("b", 6, 5))
    assert not turn.is_due(0.0)
    turn.looked(P, 0.0)
    for now_s in looks(turn, 0.0, SILENCE_S - LOOK_S):
        turn.read(P, sign(RUNNING, "a"), now_s)
        assert not turn.is_due(now_s)
    assert due_s(turn, SILENCE_S - LOOK_S) == SILENCE_S


def test_standbys_go_one_after_the_other() -> None:
    """The one with the lowest id goes first; one that has ended meanwhile is not waited for."""
    turn = watching(claim())
    turn.looked(P, 0.0)
    for now_s in looks(turn, 0.0, SILENCE_S):
        turn.read(P, sign(STANDBY, "k"), now_s)
        turn.read(P, sign(STANDBY, "z"), now_s)
    assert due_s(turn, SILENCE_S) == SILENCE_S + TURN_S
    assert due_s(watching(claim(), "j")) == SILENCE_S


@pytest.mark.parametrize("prefix", ["a", "b"])
def test_every_prefix_must_be_free(prefix: str) -> None:
    """A standby that serves two prefixes waits while one of them has a coordinator."""
    turn = Turn("m", ["a", "b"], SILENCE_S)
    for each in ("a", "b"):
        turn.claimed(each, claim())
        turn.looked(each, 0.0)
    turn.read(prefix, sign(ENDED), 0.0)
    assert not turn.is_due(0.0)


def test_an_old_version_is_heard_by_what_its_query_publishes() -> None:
    """It writes no signs, so it is silent only after several canary events without an answer."""
    turn = watching(claim(follows=None))
    for now_s in looks(turn, 0.0, 3 * OLD_SILENCE_S):
        assert not turn.is_due(now_s)
        if now_s % 10 == 0:
            turn.read(P, WakeUp(group="g", at_ms=1, published=Mark(5, 1)), now_s)
    turn.looked(P, 90.25)
    assert due_s(turn, 90.25) == 90.25 + OLD_SILENCE_S


@pytest.mark.parametrize(
    ("newest", "now_s", "follows"),
    [
        (None, 0.0, Follows(-1, obeys=True)),
        (claim(), 0.0, Follows(5, obeys=True)),
        (claim(follows=None), 2 * FROZEN_S, Follows(5, obeys=False)),
        (claim(follows=3), 0.0, Follows(5, obeys=False)),  # another job claimed between them
        (claim(alone=False), 0.0, Follows(5, obeys=False)),
        (claim(alone=False), FROZEN_S, Follows(5, obeys=True)),
    ],
)
def test_what_a_claim_says_of_the_one_before(
    newest: Newest | None, now_s: float, follows: Follows
) -> None:
    """An old version does not obey ticks, and may run for a while after it was superseded."""
    assert watching(newest).follows(P, int(now_s * 1000)) == follows


def test_a_claim_that_came_between_is_not_fenced() -> None:
    """Nothing is known of a job whose claim was written between the newest known and one's own."""
    assert Follows(5, obeys=True).predecessors_obey(6)
    assert not Follows(5, obeys=True).predecessors_obey(7)
    assert not Follows(5, obeys=False).predecessors_obey(6)
