"""``muster worker --exec`` with the real broker and job: killed, frozen, stopped and new workers.

The workers log every start and stop; the tests check that no task ever had two owners.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kafka.brokers import Topics
from support.streams.job import Job
from support.suite.waiting import until
from support.worker.command_fleet import CommandFleet

from muster.kafka.reader import read
from muster.protocol import codec
from muster.protocol.events import NOWHERE, Join
from muster.protocol.tasks import Connector, Subtopology
from muster.protocol.topics import TopicKind
from muster.published.snapshots import Shown

pytestmark = [pytest.mark.broker, pytest.mark.spark]
STUBBORN = "trap '' TERM; while :; do sleep 0.05; done"
"""A task that ignores SIGTERM."""


def runs(fleet: CommandFleet) -> dict[str, set[str]]:
    """Worker → the tasks it runs now; "-" has the tasks that no worker runs."""
    held = {name: tasks for name, tasks in fleet.held().items() if tasks}
    free = fleet.tasks.difference(*held.values())
    return {**held, "-": free} if free else held


def shared_by(fleet: CommandFleet, *names: str) -> bool:
    """Whether exactly these workers run all tasks, each task once."""
    return fleet.is_whole() and runs(fleet).keys() == set(names)


def members(fleet: CommandFleet) -> set[str]:
    """Members of the group in the newest snapshot."""
    newest = fleet.newest()
    return {str(entry.id) for entry in newest.members} if newest else set()


def joins(fleet: CommandFleet) -> list[Join]:
    """The joins that its workers have written."""
    rows = read(fleet.topics.clients, fleet.topics.name(TopicKind.MEMBERSHIP))
    events = (codec.decode(TopicKind.MEMBERSHIP, r.key, r.value, NOWHERE) for r in rows)
    return [e for e in events if isinstance(e, Join) and e.group == fleet.group]


@pytest.fixture
def fleet(kafka: Topics, job: Job, tmp_path: Path) -> Iterator[CommandFleet]:
    """A fleet of six tasks."""
    with CommandFleet(kafka, tmp_path, "exec-workers", "sticky", Subtopology("0", 6)) as fleet:
        fleet.declare()
        yield fleet


def test_killed_frozen_and_stopped(fleet: CommandFleet) -> None:
    """When a worker is killed, frozen or stopped, the others get its tasks; none has two owners."""

    def await_share(what: str, *names: str) -> None:
        until(lambda: shared_by(fleet, *names), what, story=fleet.story)

    fleet.start("W1")
    fleet.start("W2")
    fleet.start("stubborn", STUBBORN)
    await_share("three share the tasks", "W1", "W2", "stubborn")
    assert all(join.apart for join in joins(fleet)), "each knows the topic of heartbeats"
    fleet.kill("W1")
    await_share("W1's tasks have moved", "W2", "stubborn")
    fleet.signal("stubborn", signal.SIGSTOP)
    await_share("the frozen one's tasks have moved", "W2")
    fleet.signal("stubborn", signal.SIGCONT)
    await_share("it is back", "W2", "stubborn")
    fleet.stop("W2")
    await_share("W2 has left", "stubborn")
    tenures = fleet.check()
    assert len({each.pid for each in tenures if each.member == "stubborn"}) == 2  # incarnations
    fleet.kill("stubborn")
    until(lambda: not members(fleet), "the last one expires, although no member heartbeats")


def test_pinned_jobs_run_where_they_are_named(kafka: Topics, job: Job, tmp_path: Path) -> None:
    """A worker with `--static` runs exactly the jobs it names; wildcard workers run the others.

    When it is killed, its jobs wait for it as lost jobs do (KIP-987), or without a delay go to the
    wildcard workers; without wildcard workers the other jobs stay unassigned.
    """
    named = {"c-0", "d"}
    units = Connector("c", 2), Connector("d", 2)
    pins = {"P": sorted(named)}
    with CommandFleet(kafka, tmp_path, "pinned", "static", *units, pins=pins) as fleet:
        others = fleet.tasks - named

        def await_state(state: dict[str, set[str]], what: str) -> None:
            until(lambda: runs(fleet) == state, what, story=fleet.story)

        def is_shared() -> bool:
            now = runs(fleet)
            return now.get("P") == named and "-" not in now and len(now) == 3

        def is_waiting() -> bool:
            return members(fleet) == {"W1", "W2"} and runs(fleet).get("-") == named

        fleet.declare()
        fleet.start("W1")
        await_state({"W1": fleet.tasks}, "W1 has all")
        fleet.start("P")
        fleet.start("W2")
        until(is_shared, "P has what it names, W1 and W2 share the others", story=fleet.story)
        before = runs(fleet)
        fleet.kill("P")
        until(is_waiting, "the jobs of P wait", story=fleet.story)
        assert runs(fleet) == {"W1": before["W1"], "W2": before["W2"], "-": named}
        fleet.start("P")
        await_state(before, "P has its jobs again")
        fleet.declare(scheduled_rebalance_max_delay_ms=0)
        fleet.kill("P")
        until(lambda: shared_by(fleet, "W1", "W2"), "the others have all", story=fleet.story)
        fleet.start("P")
        until(is_shared, "P has what it names again", story=fleet.story)
        fleet.stop("W1", "W2")
        until(lambda: members(fleet) == {"P"}, "the wildcard workers have left")
        await_state({"P": named, "-": others}, "the other jobs wait")
        assert {each.task for each in fleet.check() if each.member == "P"} == named


def test_new_workers_of_a_group_with_standbys(kafka: Topics, job: Job, tmp_path: Path) -> None:
    """Two workers join three: all five run tasks, each task has a standby, no follow-up comes."""
    unit = Subtopology("0", 6, stateful=True)
    with CommandFleet(kafka, tmp_path, "exec-standbys", "high-availability", unit) as fleet:

        def await_rest(*names: str) -> None:
            def is_at_rest() -> bool:
                newest = fleet.newest()
                no_follow_up = newest is not None and newest.followup_ms is None
                return no_follow_up and shared_by(fleet, *names) and fleet.is_settled()

            until(is_at_rest, f"{names} share the tasks", story=fleet.story)

        fleet.declare(num_standby_replicas="1")
        for name in ("W1", "W2", "W3"):
            fleet.start(name)
        await_rest("W1", "W2", "W3")
        for name in ("W4", "W5"):
            fleet.start(name)
        await_rest("W1", "W2", "W3", "W4", "W5")
        newest = fleet.snapshots()[-1]
        shown = Shown(newest, {})
        copies = [str(task) for member in newest.members for task in shown.standby(member)]
        assert sorted(copies) == sorted(fleet.tasks)
        assert not any(shown.standby(each) & shown.active(each) for each in newest.members)
        assert sorted(Counter(newest.holder.tolist()).values()) == [1, 1, 1, 1, 2]
        fleet.check()
        causes = {each.generation: each.cause for each in fleet.snapshots()}
        assert "follow-up" not in causes.values()
