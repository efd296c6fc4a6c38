"""Rules of Kafka's broker (KIP-848, KIP-1071) that muster's groups follow too."""

from __future__ import annotations

import pytest
from support.state.story import GROUP, Story, beat, config, join, leave, report, short, tick

from muster.protocol.digest import Holding
from muster.protocol.events import Event, GroupDeleted
from muster.protocol.records import GroupState, MemberAssignment, MemberState, no_tasks
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology

FOUR = Subtopology("0", 4)


def test_b_01_defaults() -> None:
    """Kafka's defaults for session and heartbeat, and no limit of members."""
    defaults = parse_settings({})
    assert (defaults.session_timeout_ms, defaults.heartbeat_interval_ms) == (45_000, 5_000)
    assert defaults.group_max_size == 2**31 - 1
    assert (defaults.num_standby_replicas, defaults.max_warmup_replicas) == (0, 2)
    assert defaults.initial_rebalance_delay_ms == 3_000


def test_b_01_a_full_group() -> None:
    """A join to a full group is refused; it succeeds after another member has left."""
    story = Story()
    story.take(config(FOUR, group_max_size=2), join("W1"), join("W2"))
    assert story.at(100).records(join("W3")) == {"W3": "GROUP_MAX_SIZE_REACHED"}
    assert story.at(200).records(join("W2")) == {"W2": "0_1 0_3 | - | - @1"}  # is a member
    story.at(300).take(leave("W1"))
    assert story.at(400).records(join("W3"))["W3"] == "- | - | - @3"
    assert [member.id for member in story.group.roster] == ["W2", "W3"]


def test_b_01_a_full_group_of_static_members() -> None:
    """A new process takes the place of one that is away; a lower limit turns no member out."""
    story = Story()
    first = [join(f"W{n}", instance_id=f"i{n}") for n in (1, 2)]
    story.take(config(FOUR, group_max_size=2), *first)
    story.at(100).take(leave("W1", temporary=True))
    assert story.at(200).records(join("W3")) == {"W3": "GROUP_MAX_SIZE_REACHED"}
    back = story.at(300).records(join("W9", instance_id="i1"))
    assert back == {"W1": "gone", "W9": "0_0 0_2 | - | - @1"}
    assert story.at(400).records(config(FOUR, group_max_size=1)) == {}
    assert [member.id for member in story.group.roster] == ["W2", "W9"]
    story.at(500).take(leave("W9"))
    assert story.at(600).records(join("W3")) == {"W3": "GROUP_MAX_SIZE_REACHED"}
    story.at(700).take(config(FOUR, group_max_size=2))
    assert story.at(800).records(join("W3"))["W3"] == "- | - | - @5"


def _standing(story: Story) -> dict[str, tuple[int, MemberState]]:
    return {str(m.id): (m.epoch, m.state) for m in story.group.roster}


def test_b_02_a_slow_member_holds_up_its_own_tasks_only() -> None:
    """No barrier: W3 gets what W2 gave up while W1 still stops a task, and the target moves on.

    W1 takes no step until it has answered; then one step leads it to the newest target.
    """
    stable, unrevoked = MemberState.STABLE, MemberState.UNREVOKED
    story = Story()
    start = story.records(config(Subtopology("0", 6)), join("W1"), join("W2"))
    assert start == {"W1": "0_0 0_2 0_4 | - | - @1", "W2": "0_1 0_3 0_5 | - | - @1"}
    assert story.at(100).records(join("W3")) == {
        "W1": "0_0 0_2 | - | - @1",
        "W2": "0_1 0_3 | - | - @1",
        "W3": "- | - | - @2",
    }
    assert story.at(200).records(report("W2", 2, "0_1", "0_3")) == {"W3": "0_5 | - | - @2"}
    slow = {"W1": (1, unrevoked), "W2": (2, stable), "W3": (2, MemberState.UNRELEASED)}
    assert _standing(story) == slow
    assert "W1" not in story.at(300).records(join("W4"))
    assert _standing(story)["W1"] == (1, unrevoked)
    assert (story.group.generation, story.group.target.generation) == (3, 3)
    story.at(400).take(report("W1", 2, "0_0", "0_2"))
    assert _standing(story)["W1"] == (3, stable)
    left = story.at(500).records(leave("W2"))  # what it had is free at once
    assert left["W4"].split(" |")[0].split() == ["0_1", "0_4"]
    assert left["W4"].endswith("@4")


def test_b_04_the_six_states_of_a_group() -> None:
    """From the first config to the last record, and the order of the conditions.

    Without tasks a group is not ready, although W1 still stops some.
    """
    story, states = Story(), []

    def then(ms: int, *events: Event) -> None:
        story.at(ms).take(*events)
        states.append(story.group.state.value)

    then(0, config(FOUR, initial_rebalance_delay_ms=3_000))
    then(100, join("W1"))
    then(400, tick())
    then(500, join("W2"))
    then(600, config())
    assert _standing(story)["W1"][1] is MemberState.UNREVOKED
    then(700, config(FOUR))
    then(800, report("W1", story.group.roster.by_slot[0].revision))
    then(900, leave("W1"), leave("W2"))
    then(1_000, GroupDeleted(group=GROUP))
    expected = "Empty, Assigning, Stable, Reconciling, Not Ready, Reconciling, Stable, Empty, Dead"
    assert ", ".join(states) == expected


def test_b_04_tasks_go_and_come_back_on_the_way() -> None:
    """In the middle of a hand-over the tasks are removed: members stop them, stay, and start again.

    A member that joins meanwhile gets its share too.
    """
    story = Story()
    story.take(config(FOUR), join("W1"))
    story.at(100).take(join("W2"))
    assert story.at(200).records(config()) == {"W1": "- | - | - @1"}
    assert story.at(300).records(report("W1", 3)) == {}
    assert story.at(400).records(join("W3")) == {"W3": "- | - | - @2"}
    nothing = Holding().digest()
    for ms in range(5_000, 120_000, 5_000):
        beats = [beat(name, nothing, epoch=epoch) for name, (epoch, _) in _standing(story).items()]
        assert story.at(ms).records(*beats, tick()) == {}
    assert story.group.state is GroupState.NOT_READY
    back = story.at(120_000).records(config(FOUR))
    tasks = sorted(task for held in back.values() for task in held.partition(" |")[0].split())
    assert (sorted(back), tasks) == (["W1", "W2", "W3"], ["0_0", "0_1", "0_2", "0_3"])


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
