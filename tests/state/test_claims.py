"""What joining members say they hold: of others' tasks, in several roles, and again otherwise."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from support.state.story import Story, config, join, leave, report

from muster.protocol.digest import Holding
from muster.protocol.records import MemberState
from muster.protocol.tasks import Subtopology, TaskSet
from muster.state.group import Group

FOUR = Subtopology("0", 4, stateful=True)
ROLES = ("active", "standby", "learner")


def holding(role: str, *tasks: str) -> Holding:
    """Tasks in one role."""
    return Holding(**{role: TaskSet.of(tasks)})


def test_a_duplicate_becomes_its_own_when_the_owner_is_away() -> None:
    """W1 repeats its join while the static owner of its task is away: it owes it once."""
    story = Story()
    story.take(
        config(FOUR), join("W2", instance_id="i", holding=holding("active", "0_0", "0_1", "0_2"))
    )
    first = join("W1", holding=holding("active", "0_0"))
    assert story.records(first)["W1"].startswith("- ")  # it is asked to stop it
    assert len(story.group.owned.duplicate) == 1
    story.at(100).take(leave("W2", temporary=True))
    story.at(200).take(first)
    slot = story.group.roster.by_id["W1"]
    assert story.group.owned.holder[0] == slot
    assert len(story.group.owned.duplicate) == 0
    entry = story.group.roster.member(slot)
    keeps = (story.group.owned.holder == slot) & ~story.group.owned.revoking
    held = [str(story.group.table.task(task)) for task in keeps.nonzero()[0].tolist()]
    story.at(300).take(report("W1", entry.revision, *held, epoch=entry.epoch))
    assert story.group.roster.member(slot).state is MemberState.STABLE


@pytest.mark.parametrize(("before", "now"), [*permutations(ROLES, 2)])
@pytest.mark.parametrize("owner", ["no member", "another member"])
def test_a_task_that_is_claimed_in_another_role_than_before(
    owner: str, before: str, now: str
) -> None:
    """A member that says first one thing, then another of a task has it in one role."""
    story = Story()
    story.take(config(FOUR, num_standby_replicas=1))
    if owner == "another member":
        story.take(join("W2", holding=holding("active", "0_0")))
    for role in (before, now, before):
        story.take(join("W1", holding=holding(role, "0_0")))  # it checks the invariants


def test_a_task_that_returns_was_claimed_in_two_roles() -> None:
    """Two joins name a task that the group does not have yet; the member has it as its active."""
    story = Story()
    story.take(config(FOUR))
    for role in ("learner", "active"):
        story.take(join("W1", holding=holding(role, "0_5")))
    assert len(story.group.owned.orphans) == 2
    story.take(config(Subtopology("0", 6, stateful=True)))
    assert story.group.owned.holder[5] == 0


def test_an_answer_without_a_duplicate_ends_it() -> None:
    """What a member reports to a new coordinator is all that it has, also after another join."""
    story = Story()
    story.take(config(FOUR), join("W2", holding=holding("active", "0_0", "0_1", "0_2", "0_3")))
    story.group, story.epoch = Group.recover(story.group.snapshot()), 2
    story.at(100).take(join("W1", holding=holding("active", "0_0")))
    assert len(story.group.owned.duplicate) == 1
    story.at(200).take(report("W1", 0, epoch=0, standby=["0_0"], coordinator_epoch=2))
    assert len(story.group.owned.duplicate) == 0


def test_a_report_behind_a_leave_fences_no_member() -> None:
    """A static member is away: a report of before does not count, and it returns to its tasks."""
    story = Story()
    story.take(config(FOUR), join("W1"), join("W2", instance_id="i"))
    story.at(100).take(leave("W2", temporary=True))
    assert story.at(200).records(report("W2", 9, "0_1", "0_3", epoch=9)) == {}
    records = story.at(300).records(join("W2", 2, instance_id="i"))
    assert records["W2"] == "0_1 0_3 | - | - @1"


@pytest.mark.parametrize(("one", "other"), [*permutations(ROLES, 2)])
def test_an_answer_that_names_a_task_in_two_roles(one: str, other: str) -> None:
    """It counts in one of them; the invariants are checked."""
    story = Story()
    story.take(config(FOUR), join("W1"), join("W2"))
    story.group, story.epoch = Group.recover(story.group.snapshot()), 2
    both = Holding(**{role: TaskSet.of(["0_0"]) for role in (one, other)})
    answer = report("W1", 1, coordinator_epoch=2)
    story.at(100).take(replace(answer, holding=both))
    story.at(200).take(report("W2", 1, "0_1", "0_3", coordinator_epoch=2))
