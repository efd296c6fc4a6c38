"""Metrics about groups, computed from published snapshots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.state.snapshots import orders

from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, GroupState, MemberEntry
from muster.protocol.tasks import Subtopology
from muster.streams.observability.group_gauges import GroupsCollector
from muster.streams.observability.group_stats import GroupStats
from muster.streams.observability.metrics import Metrics

P = "muster"
EPOCH = 3
"""Epoch of the job under test, which published `orders`."""


class Watched:
    """A fold and its metrics."""

    def __init__(self, groups_max: int = 10) -> None:
        self.metrics = Metrics()
        self.fold = GroupStats(self.metrics, {P: EPOCH}, groups_max)
        self.metrics.registry.register(GroupsCollector(self.fold, lambda: 20_000))

    def see(
        self, record: GroupSnapshot, published_ms: int = 1_500, since_ms: int | None = None
    ) -> dict[str, object] | None:
        """Read a snapshot."""
        return self.fold.snapshot(P, record, published_ms, since_ms)

    def value(self, name: str, **labels: str) -> float | None:
        """A sample of a metric."""
        return self.metrics.registry.get_sample_value(f"muster_{name}", {"prefix": P, **labels})


def settled(*holder: int, **changes: object) -> GroupSnapshot:
    """Group g with one subtopology; the member of slot n is "Wn" if it holds a task."""
    members = tuple(
        MemberEntry(id=MemberId(f"W{slot}"), slot=slot, incarnation=slot + 100)
        for slot in sorted({*holder} - {-1})
    )
    owned = np.array(holder, dtype=np.int32)
    changed = {
        "group": GroupId("g"),
        "state": GroupState.STABLE,
        "tasks": (Subtopology("0", len(holder)),),
        "members": members,
        "moves": (),
        "lags": np.empty((0, 3), dtype=np.int64),
        "lag_ms": np.empty(0, dtype=np.int64),
        "learner": np.empty((0, 2), dtype=np.int32),
        **changes,
    }
    return replace(
        orders(),
        holder=owned,
        target=owned,
        destination=owned,
        revoking=owned < -1,
        **changed,  # type: ignore[arg-type]
    )


def test_what_a_group_is_like() -> None:
    """One snapshot sets every gauge: states, tasks, learners, lag, balance by capacity."""
    watched = Watched()
    watched.see(orders())
    group = {"group": "orders"}
    stats = {
        name: watched.value(name, **group)
        for name in (
            "group_generation",
            "group_members",
            "group_tasks",
            "unassigned_tasks",
            "learner_tasks",
            "copy_lag_offsets",
            "group_unsettled_seconds",
        )
    }
    assert stats == {
        "group_generation": 7,
        "group_members": 2,
        "group_tasks": 5,
        "unassigned_tasks": 1,
        "learner_tasks": 1,
        "copy_lag_offsets": 40,
        "group_unsettled_seconds": 18.5,
    }
    # W1 (capacity 1) has 3 of 5 tasks; its fair share of three thirds is 5/3.
    assert watched.value("imbalance_ratio", **group) == pytest.approx(3 / (5 / 3))
    assert watched.value("groups", state="Reconciling") == 1
    assert watched.value("member_state", state="unrevoked") == 1


def test_only_copies_are_behind() -> None:
    """Files that a member has kept on its disk, and an active that restores, are no copies."""
    watched = Watched()
    owner, copy, files = [0, 0, 5], [1, 0, 7], [2, 1, 1_000]
    watched.see(
        settled(
            0,
            1,
            0,
            lags=np.array([owner, copy, files], dtype=np.int64),
            lag_ms=np.zeros(3, dtype=np.int64),
            standby=np.array([[1, 0]], dtype=np.int32),
        )
    )
    assert watched.value("copy_lag_offsets", group="g") == 7


def test_a_generation_that_waits_is_reported_with_its_moves() -> None:
    """A generation is reported once, with its moves, when it has a target; not before."""
    watched = Watched()
    placed = orders()
    opened = replace(placed, state=GroupState.ASSIGNING, moves=())
    assert watched.see(opened) is None
    generation = watched.see(placed)
    assert generation is not None
    assert (generation["generation"], generation["moves"]) == (placed.generation, len(placed.moves))
    assert placed.moves
    assert watched.value("generations_total", group="orders", cause="joined") == 1
    assert watched.see(placed) is None


def test_a_generation_is_reported_once() -> None:
    """Repeated snapshots of a generation count once; the report has its cause and moves."""
    watched = Watched()
    news = watched.see(orders())
    assert news == {
        "prefix": P,
        "group": "orders",
        "generation": 7,
        "cause": "W2 joined",
        "moves": 2,
        "members": 2,
        "tasks": 5,
        "state": "Reconciling",
    }
    assert watched.see(replace(orders(), state=GroupState.STABLE)) is None
    assert watched.see(orders(generation=8, cause="W1 expired")) is not None
    counts = {
        cause: watched.value("generations_total", group="orders", cause=cause)
        for cause in ("joined", "expired")
    }
    assert counts == {"joined": 1, "expired": 1}
    moved = {
        role: watched.value("tasks_moved_total", group="orders", role=role, cause="joined")
        for role in ("active", "standby")
    }
    assert moved == {"active": 1, "standby": 1}


def test_snapshots_of_an_earlier_job_add_no_counts() -> None:
    """A snapshot of an earlier job sets the gauges but adds no generation and no latency."""
    watched = Watched()
    assert watched.see(replace(orders(), coordinator_epoch=2), since_ms=1_000) is None
    assert watched.value("group_generation", group="orders") == 7
    assert watched.value("generations_total", group="orders", cause="joined") is None
    assert watched.value("event_to_assignment_seconds_count") is None
    assert watched.see(orders()) is None  # the same generation, published again by this job
    assert watched.see(orders(generation=8)) is not None


def test_latency_is_from_the_oldest_event() -> None:
    """Only snapshots that answer an event are measured; a negative latency counts as 0."""
    watched = Watched()
    watched.see(orders(), published_ms=1_500, since_ms=1_000)
    watched.see(orders(), published_ms=1_500)
    watched.see(orders(), published_ms=1_500, since_ms=1_600)
    assert watched.value("event_to_assignment_seconds_count") == 2
    assert watched.value("event_to_assignment_seconds_sum") == 0.5


@pytest.mark.parametrize(
    ("cause", "since_ms", "spent_s"),
    [
        ("W0 left", 29_000, 1.0),  # from its leave on
        ("W0 expired", None, 47.0),  # from one session timeout (45 s) before the group's clock on
    ],
)
def test_ownerless_from_the_last_sure_moment(
    cause: str, since_ms: int | None, spent_s: float
) -> None:
    """W0's two tasks go to W1: each counts from when W0 surely ran it until the grant."""
    watched = Watched()
    watched.see(settled(0, 0, 1))
    after = settled(1, 1, 1, generation=8, cause=cause, clock_ms=28_000)
    watched.see(after, published_ms=30_000, since_ms=since_ms)
    assert watched.value("task_ownerless_seconds_count") == 2
    assert watched.value("task_ownerless_seconds_sum") == pytest.approx(2 * spent_s)


def test_a_task_that_waits_is_ownerless_until_it_is_granted() -> None:
    """A delay counts fully as ownerless time, over any number of snapshots."""
    watched = Watched()
    watched.see(settled(0, 1))
    watched.see(settled(-1, 1, generation=8, cause="W0 left"), 2_000, since_ms=1_900)
    watched.see(settled(-1, 1, generation=8), 5_000)
    watched.see(settled(1, 1, generation=9, cause="delay ended"), 61_900)
    assert watched.value("task_ownerless_seconds_count") == 1
    assert watched.value("task_ownerless_seconds_sum") == 60.0


def test_groups_beyond_the_limit_share_a_label() -> None:
    """Groups beyond the limit are summed up under the empty group."""
    watched = Watched(groups_max=1)
    for name in ("a", "b", "c"):
        watched.see(settled(0, -1, group=GroupId(name)))
    assert watched.value("group_tasks", group="a") == 2
    assert watched.value("group_tasks", group="") == 4
    assert watched.value("unassigned_tasks", group="") == 2
    assert watched.value("group_tasks", group="b") is None
    assert watched.value("group_generation", group="") is None
    assert watched.value("generations_total", group="", cause="joined") == 2


def test_a_group_without_members_adds_no_unassigned_tasks_to_the_shared_label() -> None:
    """A group that is planned, or that rests at night, gives no alarm for others of its label."""
    watched = Watched(groups_max=1)
    watched.see(settled(0, group=GroupId("named")))
    watched.see(settled(0, 0, group=GroupId("works")))
    watched.see(settled(-1, -1, group=GroupId("rests")))
    assert watched.value("group_members", group="") == 1
    assert watched.value("group_tasks", group="") == 4
    assert not watched.value("unassigned_tasks", group="")


def test_a_deleted_group_is_reported_no_more() -> None:
    """A deleted group's series end, and another group may take its place."""
    watched = Watched(groups_max=1)
    watched.see(settled(0, group=GroupId("a")))
    watched.fold.gone(P, GroupId("a"))
    watched.fold.gone(P, GroupId("never seen"))
    assert watched.value("group_tasks", group="a") is None
    assert watched.value("generations_total", group="a", cause="joined") is None
    watched.see(settled(0, group=GroupId("b")))
    assert watched.value("group_tasks", group="b") == 1


def test_tasks_that_read_from_afar() -> None:
    """Cross-rack tasks are counted by the racks of replicas; a member without a rack has none."""
    racks = ((("r0", "r1"),), (("r1",),), (("r0",), ("r1",)))
    unit = (Subtopology("0", 3, source_racks=racks),)
    watched = Watched()

    def crossing(rack: str | None) -> float | None:
        member = MemberEntry(id=MemberId("W0"), slot=0, incarnation=1, rack=rack)
        watched.see(settled(0, 0, 0, tasks=unit, members=(member,)))
        return watched.value("cross_rack_tasks", group="g")

    assert [crossing(rack) for rack in ("r0", "r1", "r9", None)] == [2, 1, 3, 0]


def test_unsettled_counts_from_the_first_sight() -> None:
    """Unsettled time counts from the group's first unsettled snapshot; a Stable group has 0."""
    watched = Watched()
    watched.see(orders(), published_ms=2_000)
    watched.see(orders(generation=8), published_ms=15_000)
    assert watched.value("group_unsettled_seconds", group="orders") == 18.0
    watched.see(replace(orders(generation=8), state=GroupState.STABLE), published_ms=16_000)
    assert watched.value("group_unsettled_seconds", group="orders") == 0
