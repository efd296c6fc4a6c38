"""Connect's rounds in a live group, where records and heartbeats cross on their way."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from support.state.story import Story, beat, config, join, leave, report, since, tick

from muster.protocol.digest import Holding
from muster.protocol.events import GroupConfig
from muster.protocol.tasks import Connector
from muster.simulation.jobs import read_back
from muster.state import invariants
from muster.state.group import Group
from muster.state.ownership import NO_MEMBER

DELAY_MS, SESSION_MS = 60_000, 10_000


def configured(*connectors: Connector, delay_ms: int = DELAY_MS) -> GroupConfig:
    """A Connect group's config; sessions are longer than any test."""
    settings = {"scheduled_rebalance_max_delay_ms": delay_ms, "session_timeout_ms": 600_000}
    return config(*connectors, assignor="cooperative", **settings)


def group(*connectors: Connector, workers: Iterable[str]) -> Story:
    """A Connect group whose workers have joined."""
    story = Story()
    story.take(configured(*connectors), *map(join, workers))
    return story


def holdings(story: Story) -> dict[str, Holding]:
    """What each worker holds, as the group records it."""
    return {m.id: invariants.holding_of(story.group, m.slot) for m in story.group.roster}


def counts(story: Story) -> list[tuple[int, int]]:
    """For each worker the connectors and tasks that it keeps, sorted."""
    group, owned = story.group, story.group.owned
    kept = {member.slot: [0, 0] for member in group.roster}
    for index, slot in enumerate(owned.holder.tolist()):
        if slot != NO_MEMBER and not owned.revoking[index]:
            kept[slot]["-" in str(group.table.task(index))] += 1
    return sorted((connectors, tasks) for connectors, tasks in kept.values())


@pytest.mark.parametrize("at_once", [False, True], ids=["two batches", "one batch"])
def test_no_work_waits_for_workers_when_all_were_restarted(at_once: bool) -> None:
    """All workers leave, then others join: they start every job at once, wherever a batch ends.

    A Connect leader that is new to the group knows of no lost work (S3-F10).
    """
    story = group(Connector("c", 3), workers="AB")
    leaves, joins = (leave("A"), leave("B")), (join("X"), join("Y"))
    for batch in [(*leaves, *joins)] if at_once else [leaves, joins]:
        story.at(100).take(*batch)
    assert story.group.timers.delay_until_ms is None
    assert counts(story) == [(0, 1), (1, 2)]


def test_work_of_all_workers_waits_if_another_one_was_there() -> None:
    """X joins before the last worker leaves: it knows of the lost work, which waits (S3-F18)."""
    story = group(Connector("c", 3), workers="AB")
    story.at(100).take(leave("A"), join("X"), leave("B"), join("Y"))
    assert story.group.timers.delay_until_ms == story.now_ms + DELAY_MS
    assert counts(story) == [(0, 0), (0, 0)]


@pytest.mark.parametrize("is_heard", [False, True], ids=["all silent", "B is heard"])
@pytest.mark.parametrize("at_once", [False, True], ids=["many batches", "one batch"])
def test_no_work_waits_for_workers_that_had_all_crashed(at_once: bool, is_heard: bool) -> None:
    """X joins when all others are silent, and starts every job when their sessions have ended.

    In Kafka a round begins then in which X leads, and it knows of no lost work (S3-F10). If B was
    heard after X had joined, the group was never without a worker, and lost work waits (S3-F18).
    """
    story = Story()
    connect = {"assignor": "cooperative", "scheduled_rebalance_max_delay_ms": DELAY_MS}
    story.take(config(Connector("c", 7), session_timeout_ms=SESSION_MS, **connect), join("A"))
    story.at(10).take(join("B"))
    b_holds = invariants.holding_of(story.group, story.group.roster.by_id["B"]).digest()
    events = [since(2_000, join("X"))]
    events += [since(2_001, beat("B", b_holds))] if is_heard else []
    events += [since(8_000, beat("X", Holding().digest(), 0)), since(SESSION_MS + 3_000, tick())]
    for batch in [events] if at_once else [[event] for event in events]:
        story.take(*batch)
    assert [member.id for member in story.group.roster] == ["X"]
    assert (story.group.owned.holder == NO_MEMBER).any() == is_heard
    assert (story.group.timers.delay_until_ms is not None) == is_heard


def test_a_heartbeat_on_its_way_does_not_end_the_delay() -> None:
    """Lost jobs wait though a worker's heartbeat is older than its newest record (S3-F05, I-10)."""
    story = group(Connector("c", 3), workers="AB")
    before_any_record = Holding().digest()
    story.at(100).take(beat("A", before_any_record, epoch=0))
    lost = story.group.owned.holder == story.group.roster.by_id["B"]
    story.at(200).take(leave("B"))
    assert story.group.timers.delay_until_ms == story.now_ms + DELAY_MS
    assert (story.group.owned.holder[lost] == NO_MEMBER).all()
    story.at(200 + DELAY_MS).take(tick())
    assert (story.group.owned.holder != NO_MEMBER).all()


@pytest.mark.parametrize("kept", ["a checkpoint", "the published record alone"])
def test_the_delay_survives_a_restart_of_the_coordinator(kept: str) -> None:
    """Lost jobs wait as long as the coordinator before had said (S3-F18, Q-01)."""
    story = group(Connector("c", 3), workers="AB")
    story.at(200).take(leave("B"))
    until_ms = story.group.timers.delay_until_ms
    assert until_ms == story.now_ms + DELAY_MS
    record = read_back(story.group.snapshot())
    if kept == "a checkpoint":
        story.group = Group.restore(record, story.group.liveness())
    else:
        story.group = Group.recover(record)
    story.epoch = 2
    jobs = map(str, holdings(story)["A"].active)
    story.at(20_000).take(report("A", 1, *jobs, coordinator_epoch=2))
    story.at(199 + DELAY_MS).take(tick())
    assert (story.group.owned.holder == NO_MEMBER).any()
    assert story.group.timers.delay_until_ms == until_ms
    story.at(200 + DELAY_MS).take(tick())
    assert (story.group.owned.holder != NO_MEMBER).all()


def test_a_delay_that_is_set_to_0_ends() -> None:
    """The config ends a delay under way: lost jobs are placed, and nothing waits (S3-F05)."""
    story = group(Connector("c", 3), workers="AB")
    story.at(200).take(leave("B"))
    assert story.group.timers.delay_until_ms is not None
    story.at(300).take(configured(Connector("c", 3), delay_ms=0))
    assert (story.group.owned.holder != NO_MEMBER).all()
    assert story.group.timers.delay_until_ms is None
    story.at(400).take(join("B"))
    assert counts(story) == [(0, 0), (1, 2)]  # A gives its surplus up at once


@pytest.mark.parametrize("misses", [0, 2], ids=["ex_i10", "ex_i11_known_as_lost"])
def test_a_later_assignment_is_lost(misses: int) -> None:
    """Stops that never arrive are planned again after 40 ms, known as lost or not."""
    story = group(Connector("c1", 4), Connector("c2", 4), workers=("w1", "w2"))
    held = holdings(story)
    assert counts(story) == [(1, 4), (1, 4)]
    story.at(1_000).take(join("w3"))
    assert counts(story) == [(0, 0), (1, 3), (1, 3)]
    beats = [beat(name, holding.digest()) for name, holding in held.items()] * misses
    rejoins = [join(name, holding=holding) for name, holding in held.items()]
    story.at(6_500).take(*beats, *rejoins, join("w3"))
    assert counts(story) == [(0, 0), (1, 4), (1, 4)]
    assert story.group.timers.delay_until_ms == story.now_ms + 40
    story.at(6_540).take(tick())
    assert counts(story) == [(0, 0), (1, 3), (1, 3)]
