"""Rules of Kafka's broker (KIP-848, KIP-1071) that muster's groups follow too."""

from __future__ import annotations

import pytest
from support.state.story import Story, beat, config, join, leave, short, tick

from muster.protocol.digest import Holding
from muster.protocol.records import GroupState, MemberAssignment, no_tasks
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology

FOUR = Subtopology("0", 4)


def test_b_01_defaults() -> None:
    """Kafka's defaults for session and heartbeat, and no limit of members."""
    defaults = parse_settings({})
    assert (defaults.session_timeout_ms, defaults.heartbeat_interval_ms) == (45_000, 5_000)
    assert defaults.group_max_size == 2**31 - 1
    assert (defaults.num_standby_replicas, defaults.max_warmup_replicas) == (0, 2)


def test_b_01_a_full_group() -> None:
    """A join to a full group is refused; it succeeds after another member has left."""
    story = Story()
    story.take(config(FOUR, group_max_size=2), join("W1"), join("W2"))
    assert story.at(100).records(join("W3")) == {"W3": "GROUP_MAX_SIZE_REACHED"}
    assert story.at(200).records(join("W2")) == {"W2": "0_1 0_3 | - | - @1"}  # is a member
    story.at(300).take(leave("W1"))
    assert story.at(400).records(join("W3"))["W3"] == "- | - | - @3"
    assert [member.id for member in story.group.roster] == ["W2", "W3"]


def test_b_04_not_ready_without_tasks() -> None:
    """Members join a group without tasks, get a message and stay; tasks may come later."""
    story = Story()
    (record,) = (r for r in story.take(join("W1")).records if isinstance(r, MemberAssignment))
    assert (short(record), record.message) == ("- | - | - @0", no_tasks("g"))
    assert story.group.state is GroupState.NOT_READY
    waits = no_tasks("g")
    assert story.group.cause == f"W1 joined; {waits}"  # the worker logs the same
    story.at(10).take(join("W2"))
    assert story.group.cause == f"W2 joined; {waits}"  # not longer with every join
    story.at(20).take(leave("W2"))
    nothing = Holding().digest()
    for ms in range(5_000, 120_000, 5_000):
        assert story.at(ms).records(beat("W1", nothing, epoch=0), tick()) == {}
    assert story.at(120_000).records(config(FOUR)) == {"W1": "0_0 0_1 0_2 0_3 | - | - @1"}
    assert story.group.state is GroupState.STABLE
    assert story.group.cause.startswith("W2 left; assignor high-availability → sticky; ")
    assert story.group.cause.endswith("; 4 tasks added")


def test_b_06_one_placement_an_interval() -> None:
    """`assignment.interval.ms`: changes within an interval are placed together at its end."""
    story = Story()
    story.take(config(FOUR, assignment_interval_ms=1_000), join("W1"))
    assert story.at(300).records(join("W2")) == {"W2": "- | - | - @1"}
    step = story.at(600).take(join("W3"))
    assert (story.group.state, step.wake_at_ms) == (GroupState.ASSIGNING, 1_001_000)
    assert story.at(999).records(tick()) == {}
    records = story.at(1_000).records(tick())
    assert {name: len(said.partition(" |")[0].split()) for name, said in records.items()}["W1"] == 2
    assert story.group.target.generation == story.group.generation == 2
    assert story.group.cause == "W2 joined; W3 joined"


@pytest.mark.parametrize("delay_ms", [0, 3_000])
def test_b_04_an_empty_group_fills_up(delay_ms: int) -> None:
    """`initial.rebalance.delay.ms`: the first placement is for all members that joined together."""
    story = Story()
    story.take(config(FOUR, initial_rebalance_delay_ms=delay_ms))
    first = story.records(join("W1"))
    second = story.at(200).records(join("W2"))
    if not delay_ms:
        assert first == {"W1": "0_0 0_1 0_2 0_3 | - | - @1"}
        return
    assert (first, second) == ({"W1": "- | - | - @0"}, {"W2": "- | - | - @0"})
    assert story.at(449).records(tick()) == {}
    assert story.at(450).records(tick()) == {
        "W1": "0_0 0_2 | - | - @1",
        "W2": "0_1 0_3 | - | - @1",
    }
    story.at(4_000).take(join("W3"))  # something runs: at once
    assert story.group.target.generation == 2
