"""A governor whose JoinGroup is not answered: a slow consumer, a dead connection, a lost broker."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from support.adopt.classic_group import Follower
from support.adopt.governed import GROUP, GovernedWorld, GovernorProcess

from muster.adopt.join_metadata import Kind
from muster.adopt.join_watch import why_unanswered
from muster.adopt.model import Options, State
from muster.kafka.writer import Place
from muster.protocol.events import GroupConfig
from muster.protocol.settings import Settings

OWN, OTHER = (f"{name}-{'0' * 8}-0000-0000-0000-{'0' * 12}" for name in ("muster-governor-1", "W1"))
OPTIONS = Options(
    group=GROUP,
    kind=Kind.CONSUMER,
    config=GroupConfig(group=GROUP, assignor="sticky", settings=Settings(), tasks=()),
    configured=Place("muster.config", 0, 0),
)


def joining(
    *, is_silent: bool = False
) -> tuple[GovernedWorld, GovernorProcess, dict[str, Follower]]:
    """A governed group in the moment in which the governor sends JoinGroup, for a new consumer.

    `is_silent`: the connection is dead then, and the request does not arrive.
    """
    world = GovernedWorld({"orders": 12})
    governor = world.adopt()
    followers = {name: world.follower(name) for name in "AB"}
    world.time.run(30_000)
    assert governor.governor.state is State.LEADING
    send = governor.ask

    def ask(request, done, timeout_ms: int) -> None:
        if "JoinGroup" in type(request).__name__:
            governor.line.silent, governor.ask = True, send
        send(request, done, timeout_ms)

    if is_silent:
        governor.ask = ask
    followers["C"] = world.follower("C")
    while governor.governor.state is not State.JOINING:
        world.time.run(1)
    return world, governor, followers


def leads_again(world: GovernedWorld, governor: GovernorProcess, within_ms: int) -> None:
    """Let time pass; then the governor leads, and the shares are what the coordinator decided."""
    world.time.run(within_ms)
    assert governor.governor.state is State.LEADING
    assert "muster-governor-1" in world.group.leader
    assert sorted(world.shares().values()) == [4, 4, 4]
    assert world.books_agree()


@pytest.mark.parametrize("arrives", [True, False], ids=["the request arrives", "nothing arrives"])
def test_the_connection_dies_without_a_word(arrives, caplog):
    """Kafka ends the governor's session; it notices, and takes the seat again."""
    caplog.set_level(logging.INFO)
    world, governor, _ = joining(is_silent=not arrives)
    governor.line.silent = True
    leads_again(world, governor, 30_000)
    assert "joins again, as its JoinGroup will not be answered" in caplog.text
    assert "does not count the governor among the members" in caplog.text


@pytest.mark.parametrize("away_ms", [300, 3_000, 9_000])
def test_the_broker_restarts_and_the_request_has_not_arrived(away_ms, caplog):
    """The group waits for the governor for one more session; then the governor takes it again.

    It was counted out, and took itself for removed by an operator: it ended.
    """
    caplog.set_level(logging.INFO)
    world, governor, _ = joining(is_silent=True)
    world.group.restart(away_ms)
    leads_again(world, governor, away_ms + 40_000)
    assert "does not count the governor among the members" in caplog.text


@pytest.mark.parametrize("away_ms", [7_000, 9_000, 20_000, 60_000])
def test_another_broker_becomes_the_coordinator(away_ms, caplog):
    """The old one is frozen, or its machine has gone: the governor leads and removes no member."""
    caplog.set_level(logging.INFO)
    world, governor, followers = joining()
    governor.line.silent = True
    world.coordinator = 2
    world.group.restart(away_ms)
    caplog.clear()
    ids = {each._id for each in followers.values()}
    leads_again(world, governor, away_ms + 10_000)
    assert "Kafka has another coordinator for the group now" in caplog.text
    assert "removes all members" not in caplog.text
    assert {"A", "B", "C"} == {each.name for each in followers.values() if each.is_member}
    assert {followers[name]._id for name in "AB"} <= ids, "no member was let go"


def test_a_consumer_is_slow():
    """Kafka holds the answer back for it; the governor sees that it is a member, and waits."""
    world, governor, followers = joining()
    slow = followers["A"]
    beaten, slow._beaten = slow._beaten, lambda answer: None  # it processes, and sends heartbeats
    world.time.run(40_000)
    assert governor.governor.state is State.JOINING
    assert governor.looks > 10
    slow._beaten = beaten
    leads_again(world, governor, 10_000)
    assert governor.dropped == 0
    looks = governor.looks
    world.time.run(30_000)
    assert governor.looks == looks, "it looks only while it waits"


def test_handed_back_while_a_consumer_is_slow():
    """An operator who cannot wait for it removes the governor, which ends, as at any time."""
    world, governor, followers = joining()
    followers["A"]._beaten = lambda answer: None
    world.time.run(40_000)
    assert governor.governor.state is State.JOINING
    [own_id] = [m.id for m in world.group.members.values() if m.instance_id == governor.name]
    world.group.remove(own_id)
    world.time.run(1_000)
    assert (governor.governor.state, governor.governor.failure) == (State.ENDED, None)
    assert world.log.snapshot.members == ()


def described(*ids: str, error: int = 0) -> object:
    """An answer to DescribeGroups."""
    members = [SimpleNamespace(member_id=each) for each in ids]
    state = "PreparingRebalance"
    return SimpleNamespace(
        groups=[SimpleNamespace(error_code=error, members=members, group_state=state)]
    )


def test_what_a_look_says():
    """An answer will come if Kafka counts the governor; nothing is known if Kafka does not say."""
    for member_id in (OWN, ""):
        assert why_unanswered(described(OTHER, OWN), OPTIONS, member_id, has_moved=False) == ""
        gone = why_unanswered(described(OTHER), OPTIONS, member_id, has_moved=False)
        assert "among the members" in gone
    newer = OWN.replace("0", "1")
    assert why_unanswered(described(newer), OPTIONS, OWN, has_moved=False), "another's of its name"
    assert why_unanswered(described(OWN), OPTIONS, OWN, has_moved=True)
    loading, not_coordinator, no_such_group = 14, 16, 69
    for error in (loading, not_coordinator):
        answer = described(error=error)
        assert why_unanswered(answer, OPTIONS, OWN, has_moved=True) == ""
    assert why_unanswered(OSError("no broker"), OPTIONS, OWN, has_moved=True) == ""
    assert why_unanswered(described(error=no_such_group), OPTIONS, OWN, has_moved=False)
