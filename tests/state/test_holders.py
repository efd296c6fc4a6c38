"""What a batch knows of a member's tasks is what a search through all tasks finds."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.state.groups import same_group
from support.state.story import Story, config, join, leave, report

from muster.assignor import registry
from muster.protocol.events import Event, Report
from muster.protocol.records import MemberEntry
from muster.protocol.tasks import Connector, Subtopology, TaskTable
from muster.state import holders
from muster.state.draft import Draft
from muster.state.group import Group
from muster.state.holders import Holders

TASKS = Subtopology("0", 60)


def test_writes_are_seen() -> None:
    """The index follows what is written to the vector, before and after it is sorted."""
    rng = random.Random(3)
    holder = np.array([rng.randint(-1, 9) for _ in range(200)], dtype=np.int32)
    index = Holders()
    for _ in range(500):
        slot = rng.randint(-1, 12)
        tasks = np.array(sorted(rng.sample(range(200), 3)), dtype=np.int32)
        holder[tasks] = slot
        index.gain(slot, tasks)
        asked = rng.randint(0, 12)
        assert index.tasks(holder, asked).tolist() == np.flatnonzero(holder == asked).tolist()


def obedient(group: Group, member: MemberEntry) -> Report:
    """A member has stopped what it was asked to give up, and says what it has."""
    held = (group.owned.holder == member.slot) & ~group.owned.revoking
    tasks = [str(group.table.task(task)) for task in np.flatnonzero(held).tolist()]
    return report(member.id, member.revision, *tasks, epoch=member.epoch)


def played(seed: int) -> Story:
    """A group whose members report, leave and join in batches of many events each."""
    rng = random.Random(seed)
    story = Story()
    story.take(config(TASKS), *(join(f"W{n}") for n in range(20)))
    for turn in range(1, 8):
        group = story.group
        events: list[Event] = [obedient(group, m) for m in group.roster if not m.away]
        leaving = rng.sample([m.id for m in group.roster], 6)
        events += [leave(member, temporary=rng.random() < 0.4) for member in leaving]
        events += [join(f"W{turn * 20 + n}") for n in range(5)]
        story.at(turn * 1_000).take(*events)
    return story


@pytest.mark.parametrize("seed", range(5))
def test_sorted_or_not_is_the_same_group(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that sorts the tasks ends as one that searches for each event."""
    monkeypatch.setattr(holders, "SORTED_FROM", 0)
    quick = played(seed).group
    monkeypatch.setattr(holders, "SORTED_FROM", 10_000)
    same_group(quick, played(seed).group)


def test_claims_together_are_claims_one_by_one() -> None:
    """The first member that claims a free task gets it, the others have duplicates."""
    story = Story()
    story.take(config(TASKS), *(join(f"W{n}") for n in range(4)))
    for seed in range(20):
        rng = random.Random(seed)
        one, many = (Draft(story.group, 1, registry.get) for _ in range(2))
        for draft in (one, many):
            draft.free(np.arange(0, 60, 2, dtype=np.int32))
        tasks = np.array([rng.randint(0, 59) for _ in range(40)], dtype=np.int32)
        slots = np.array([rng.randint(0, 3) for _ in range(40)], dtype=np.int32)
        notified = np.array([rng.random() < 0.5 for _ in range(40)])
        many.claim_each(tasks, slots, notified)
        for task, slot, giving_up in zip(tasks, slots.tolist(), notified.tolist(), strict=True):
            one.claim(slot, np.array([task], dtype=np.int32), giving_up=giving_up)
        for name in ("holder", "revoking", "duplicate"):
            assert np.array_equal(getattr(one.owned, name), getattr(many.owned, name)), name
        assert story.group.owned.revoking.sum() == 0  # the group itself is not written to


def test_sets_in_bulk_are_the_sets_one_by_one() -> None:
    """Slices of tasks of several units become the same sets as each slice alone."""
    table = TaskTable((Subtopology("0", 7), Subtopology("1", 5), Connector("c", 6)))
    rng = random.Random(4)
    for _ in range(50):
        slices = [sorted(rng.sample(range(19), rng.randint(0, 9))) for _ in range(6)]
        cuts = np.cumsum([0, *map(len, slices)]).tolist()
        joined = np.array([task for part in slices for task in part], dtype=np.int32)
        sets = table.sets_of(joined, cuts)
        assert [[str(task) for task in tasks] for tasks in sets] == [
            [str(table.task(index)) for index in part] for part in slices
        ]
        assert [table.indexes_of(tasks)[0].tolist() for tasks in sets] == slices
