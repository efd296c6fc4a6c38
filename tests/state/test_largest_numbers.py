"""Settings and reports with the largest numbers that are accepted."""

from __future__ import annotations

import pytest
from support.state.groups import same_group
from support.state.story import Story, config, join, report, snapshot, tick

from muster.protocol.codec import decode_record, encode
from muster.protocol.records import Fault, GroupSnapshot, MemberState
from muster.protocol.setting_values import LONG_MAX
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TopicKind
from muster.state import invariants
from muster.state.group import Group
from muster.state.machine import Step

FOUR = Subtopology("0", 4)


def as_published(step: Step) -> GroupSnapshot:
    """The step's snapshot as a reader of the topic gets it."""
    encoded = encode(snapshot(step))
    record = decode_record(TopicKind.GROUPS, encoded.key, encoded.value)
    assert isinstance(record, GroupSnapshot)
    return record


def test_a_member_has_the_longest_time_to_release() -> None:
    """`rebalance.timeout.ms` is the largest number: the demand stands and is never overdue."""
    story = Story()
    story.take(config(FOUR, rebalance_timeout_ms=LONG_MAX), join("W1"))
    story.at(100).take(join("W2"))
    story.at(1_000).take(tick())
    step = story.at(2_000).take(tick())
    assert story.group.roster.member(0).state is MemberState.UNREVOKED
    assert story.group.sessions.response_due[0] == LONG_MAX
    assert step.wake_at_ms is not None
    assert step.wake_at_ms <= story.now_ms + 10_000
    story.at(3_000).take(report("W1", 2, "0_0", "0_1"))
    assert story.group.owned.holder.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("setting", ["probing_rebalance_interval_ms", "assignment_interval_ms"])
def test_a_group_that_never_places_again_is_restored(setting: str) -> None:
    """The longest interval: the published record and the liveness give the same group."""
    story = Story()
    four = Subtopology("0", 4, stateful=True)
    values = {setting: LONG_MAX, "assignor": "high-availability"}
    story.take(config(four, **values), join("W1"))
    step = story.at(1_000).take(join("W2"))
    same_group(Group.restore(as_published(step), step.group.liveness()), step.group)


@pytest.mark.parametrize(("epoch", "revision"), [(2**31 - 1, 1), (1, 2**62)])
def test_an_answer_with_an_impossible_epoch_is_fenced(epoch: int, revision: int) -> None:
    """A new coordinator takes no epoch or revision above which there are hardly any left."""
    story = Story()
    story.take(config(FOUR), join("W1"), join("W2"))
    story.group, story.epoch = Group.recover(story.group.snapshot()), 2
    story.at(1_000).take(tick())
    impossible = report("W1", revision, "0_0", "0_2", epoch=epoch, coordinator_epoch=2)
    records = story.at(2_000).records(impossible)
    assert records["W1"] == Fault.FENCED_MEMBER_EPOCH.value
    story.take(report("W2", 1, "0_1", "0_3", coordinator_epoch=2))
    for ms in range(12_000, 200_000, 10_000):
        other = story.group.roster.member(1)
        held = invariants.holding_of(story.group, 1).active
        story.at(ms).take(
            report("W2", other.revision, *held, epoch=other.epoch, coordinator_epoch=2), tick()
        )
    assert story.group.owned.holder.tolist() == [1, 1, 1, 1]
    assert story.group.generation < 100
