"""Whole fleets restart at once: the limits on a group's events do not keep them from settling.

Nor does a config that takes long: while a child process computes it, the fleet starts or grows.

Real sessions write what workers write, and repeat what is not answered (`support.streams.crowd`).
A few hundred members stand for five thousand, with limits that are as much smaller; with
``-m slow`` the fleets have their full size.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from support.streams.asides import Desk, all_are_large
from support.streams.crowd import Crowd
from support.streams.operator import config

from muster.streams.batch import work_limits

pytestmark = pytest.mark.usefixtures("nothing_in_memory")

SMALLER = 20
"""The fast tests have so many times fewer members and tasks, and smaller limits."""
MEMBERS = 5_000
OUTAGE_MS = 120_000
"""Longer than a session."""


def even(members: int, tasks: int) -> Counter[int]:
    """How many members run so many tasks when all is shared out."""
    few, more = divmod(tasks, members)
    return +Counter({few + 1: more, few: members - more})


def has_settled(crowd: Crowd, loads: Counter[int]) -> bool:
    """Whether the fleet's processes are the group's members and run so many tasks."""
    return crowd.loads() == loads and crowd.are_members()


def restarts(members: int, tasks: int) -> Crowd:
    """A fleet starts, and starts again after an outage; prints how long it took to settle."""
    crowd = Crowd()
    crowd.configure(config(tasks))
    wanted = even(members, tasks)
    for name in ("first", "second"):
        crowd.come(f"{name}-{number}" for number in range(members))
        began_ms = crowd.now_ms
        batches = crowd.settle(partial(has_settled, crowd, wanted), 900)
        print(f"{name}: {batches} batches, {crowd.now_ms - began_ms} ms; {crowd.story()}")
        if name == "first":
            crowd.die()
            crowd.pass_by(OUTAGE_MS)
    return crowd


@pytest.fixture
def smaller_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits for fleets that are `SMALLER` times smaller; the estimates stay."""
    for name in ("CREDIT_EVENTS_MIN", "CREDIT_CONFIGS_US", "REGROWN_US", "KEPT_US"):
        monkeypatch.setattr(work_limits, name, getattr(work_limits, name) // SMALLER)


@pytest.mark.usefixtures("smaller_limits")
@pytest.mark.parametrize("tasks", [1_000, 10_000])
def test_a_fleet_that_restarts_settles(tasks: int) -> None:
    """All members join at once, twice: every task has one owner and every member its share."""
    crowd = restarts(MEMBERS // SMALLER, tasks // SMALLER)
    assert crowd.overlaps == 0
    if tasks < MEMBERS:
        assert crowd.refused["TOO_MUCH_AT_ONCE"], "the limit must be met, or nothing is shown"
    else:
        assert crowd.refused == {}


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("tasks", [1_000, 10_000])
def test_a_fleet_of_five_thousand_that_restarts_settles(tasks: int) -> None:
    """The same with 5,000 members and the limits as they are."""
    crowd = restarts(MEMBERS, tasks)
    assert crowd.overlaps == 0


def grows(monkeypatch: pytest.MonkeyPatch, members: int, batches: int) -> None:
    """A fleet starts while its config is computed, and grows by a tenth while the next one is."""
    all_are_large(monkeypatch)
    crowd, desk = Crowd(), Desk()
    desk.serve(crowd.operator.processor)
    there = 0
    for come, tasks in ((members, 2 * members), (members // 10, 3 * members)):
        desk.is_ready = False
        crowd.configure(config(tasks))
        crowd.come(f"m{number}" for number in range(there, there + come))
        before = crowd.loads()
        for _ in range(batches):
            crowd.turn()
        assert crowd.loads() == before, "a member that works goes on, and no other begins"
        there += come
        desk.is_ready = True
        took = crowd.settle(partial(has_settled, crowd, even(there, tasks)), 60)
        print(f"{there} members: {took} batches; {crowd.story()}")
    assert crowd.overlaps == 0
    assert len(desk.begun) == 2


@pytest.mark.usefixtures("smaller_limits")
@pytest.mark.parametrize("batches", [8, 400])
def test_a_fleet_starts_and_grows_while_its_config_is_computed(
    monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    """What came meanwhile counts when the config is there, also after more than a session."""
    grows(monkeypatch, MEMBERS // SMALLER, batches)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_a_fleet_of_five_thousand_starts_while_its_config_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same with 5,000 members, and the limits as they are."""
    grows(monkeypatch, MEMBERS, 40)
