"""Moves from members that are gone: their source, and the reason."""

from __future__ import annotations

import pytest
from support.state.story import GROUP, Story, beat, config, join, leave, report, snapshot, tick

from muster.protocol.digest import Holding
from muster.protocol.events import Drain, Event, Refused
from muster.protocol.ids import MemberId, Role
from muster.protocol.records import Move
from muster.protocol.tasks import Connector, Subtopology, TaskSet, Unit
from muster.state.liveness import FENCED

FOUR = Subtopology("0", 4)
RESTORED = Subtopology("0", 4, stateful=True)
ALONE = "support.plugin_assignors:FirstTakesAll"


def fleet(assignor: str, unit: Unit, held: dict[str, list[str]], **values: object) -> Story:
    """Members that joined with the tasks they hold."""
    story = Story()
    joins = [join(name, holding=Holding(active=TaskSet.of(has))) for name, has in held.items()]
    story.take(config(unit, assignor=assignor, **values), *joins)
    return story


def moved(story: Story, *events: Event) -> list[Move]:
    """The moves of a batch; a plug-in's answer is applied by the next batch."""
    record = snapshot(story.take(*events))
    if record.generation > record.target_generation:
        record = snapshot(story.take(tick()))
    assert all(len(move.reason) < 80 for move in record.moves)
    return list(record.moves)


def actives(moves: list[Move]) -> set[tuple[str, str | None, str | None, str]]:
    """Task, source, destination and reason."""
    return {(m.task, m.from_member, m.to_member, m.reason) for m in moves if m.role is Role.ACTIVE}


HALVES = {"W1": ["0_0", "0_1"], "W2": ["0_2", "0_3"]}
JOBS = {"W1": ["a", "a-1"], "W2": ["a-0"]}


@pytest.mark.parametrize(
    ("assignor", "unit", "held", "reason"),
    [
        ("sticky", FOUR, HALVES, "W2 left"),
        ("high-availability", RESTORED, HALVES, "W2 left"),
        ("learner", RESTORED, HALVES, "W2 left"),
        ("eager", Connector("a", 2), JOBS, "W2 left; round robin"),
        ("cooperative", Connector("a", 2), JOBS, "W2 left; W1 has room"),
    ],
)
def test_a_member_that_left(
    assignor: str, unit: Unit, held: dict[str, list[str]], reason: str
) -> None:
    """Every assignor's reasons name what happened to the owner, and do not say "had no owner"."""
    values = {"scheduled_rebalance_max_delay_ms": 0} if isinstance(unit, Connector) else {}
    story = fleet(assignor, unit, held, **values)
    assert actives(moved(story.at(100), leave("W2"))) == {
        (task, "W2", "W1", reason) for task in held["W2"]
    }


def test_a_member_that_left_a_plug_in() -> None:
    """The answer is applied a batch later, and still names the member that left."""
    story = fleet(ALONE, Subtopology("0", 1), {"W1": ["0_0"], "W2": []})
    story.take(tick())
    moves = moved(story.at(100), leave("W1"))
    assert actives(moves) == {("0_0", "W1", "W2", "W1 left; decided by the plug-in")}


def test_a_move_after_a_delay_has_no_source() -> None:
    """Sources live for one batch: when Connect's delay ends, the move has no source."""
    story = fleet("cooperative", Connector("a", 2), JOBS, scheduled_rebalance_max_delay_ms=1_000)
    assert actives(moved(story.at(100), leave("W2"))) == set()
    assert actives(moved(story.at(1_100), tick())) == {
        ("a-0", None, "W1", "its worker is gone, W1 has room")
    }


def alive(story: Story, first_ms: int, end_ms: int) -> None:
    """W1 sends heartbeats, each with a tick."""
    for ms in range(first_ms, end_ms, 5_000):
        story.at(ms).take(beat("W1", int(story.group.sessions.digest[0])), tick())


def test_a_member_that_expired() -> None:
    """Its session has ended."""
    story = fleet("sticky", FOUR, HALVES)
    alive(story, 5_000, 45_000)
    assert actives(moved(story.at(45_000), tick())) == {
        ("0_2", "W2", "W1", "W2 expired"),
        ("0_3", "W2", "W1", "W2 expired"),
    }


@pytest.mark.parametrize("why", ["claimed too much", "was too slow", "fell silent, refused"])
def test_a_member_that_was_fenced(why: str) -> None:
    """Its tasks are placed on others at once, whatever rule it broke."""
    story = fleet("sticky", FOUR, HALVES, rebalance_timeout_ms=10_000)
    event: Event = tick()
    if why == "claimed too much":
        story.at(100)
        event = report("W2", 1, "0_0", "0_2", "0_3")
    elif why == "was too slow":
        story.at(100).take(config(Subtopology("0", 3), rebalance_timeout_ms=10_000))
        story.at(200).take(tick())
        story.at(300).take(tick())
        story.at(9_000).take(beat("W1", 0), beat("W2", 0))
        story.at(10_300)
    else:
        story.at(100).take(Refused(group=GROUP, member=MemberId("W2")))
        alive(story, 5_000, 45_000)
        story.at(45_000)
    moves = actives(moved(story, event))
    assert story.group.sessions.flags[1] & FENCED
    assert {(m[1], m[2], m[3]) for m in moves} == {("W2", "W1", "W2 fenced")}


def test_a_member_that_drained_for_long_enough() -> None:
    """It keeps its task while a copy restores, until the scale-down timeout."""
    story = fleet("learner", RESTORED, HALVES, scale_down_timeout_ms=10_000)
    asked = moved(story.at(1_000), Drain(group=GROUP, member=MemberId("W2"), on=True))
    assert actives(asked) == set()
    assert {m.reason.partition(";")[0] for m in asked} == {"W2 is draining"}
    for ms in (4_000, 8_000):
        story.at(ms).take(*(beat(f"W{n + 1}", int(story.group.sessions.digest[n])) for n in (0, 1)))
    assert {m[1:3] for m in actives(moved(story.at(11_000), tick()))} == {("W2", "W1")}
    reasons = {m[3] for m in actives(list(story.group.target.moves))}
    assert reasons == {"W2 drained for scale.down.timeout.ms"}
