"""EX-S1: KIP-924 plug-ins: validation, utilities, follow-ups, harmless failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from support import plugin_assignors
from support.assignor.placing import Member, group, holdings
from support.plugin_assignors import FirstTakesAll, NotNow, Scripted

from muster import plugins
from muster.assignor import check, registry
from muster.assignor.api import (
    LATEST_OFFSET,
    Adapted,
    ApplicationState,
    AssignedTask,
    AssignmentError,
    KafkaStreamsAssignment,
    RackAwareOptimizationParams,
    Task,
    TaskAssignment,
    TaskAssignmentException,
    TaskType,
    default_standby_task_assignment,
    identity_assignment,
    optimize_rack_aware_active_tasks,
    optimize_rack_aware_standby_tasks,
    validate_task_assignment,
)
from muster.assignor.errors import AssignorError, InvalidPlacement, UnknownAssignor
from muster.assignor.kip924.plugin_answer import placement_of, unchanged
from muster.assignor.model import GroupView
from muster.protocol.tasks import Subtopology

T0, T1 = Task("0", 0), Task("0", 1)
Change = Callable[[dict[str, KafkaStreamsAssignment]], object]


def two_members(**config: object) -> GroupView:
    """A runs 0_0 and has a copy of 0_1, B the reverse; C runs the stateless 1_0."""
    units = [Subtopology("0", 2, stateful=True), Subtopology("1", 1)]
    members = {
        "A": Member(active=["0_0"], standby=["0_1"], lag={"0_1": 7}),
        "B": Member(active=["0_1"], standby=["0_0"]),
        "C": Member(active=["1_0"]),
    }
    return group(units, members, **config)


def active(task: Task) -> AssignedTask:
    """A task as active."""
    return AssignedTask(task, TaskType.ACTIVE)


def standby(task: Task) -> AssignedTask:
    """A task as standby."""
    return AssignedTask(task, TaskType.STANDBY)


FAULTS: dict[str, tuple[Change, AssignmentError]] = {
    "EX_S1_1 active twice": (
        lambda proposed: proposed["B"].assign_task(active(T0)),
        AssignmentError.ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES,
    ),
    "EX_S1_2 unknown task": (
        lambda proposed: proposed["C"].assign_task(active(Task("9", 9))),
        AssignmentError.UNKNOWN_TASK_ID,
    ),
    "EX_S1_3 standby of a stateless task": (
        lambda proposed: proposed["A"].assign_task(standby(Task("1", 0))),
        AssignmentError.INVALID_STANDBY_TASK,
    ),
    "EX_S1_4 a member is missing": (
        lambda proposed: proposed.pop("C"),
        AssignmentError.MISSING_PROCESS_ID,
    ),
    "EX_S1_5 a member that did not join": (
        lambda proposed: proposed.update(Z=KafkaStreamsAssignment.of("Z")),
        AssignmentError.UNKNOWN_PROCESS_ID,
    ),
    "EX_S1_6 an unknown task and an active twice": (
        lambda proposed: (
            proposed["A"].assign_task(active(Task("9", 9))),
            proposed["B"].assign_task(active(T0)),
        ),
        AssignmentError.UNKNOWN_TASK_ID,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_EX_S1_1_to_6_faults_are_named_and_refused(fault: str) -> None:
    """Each fault has the KIP's name in the utility, in the callback and in the error."""
    change, error = FAULTS[fault]
    view = two_members()
    proposed = identity_assignment(ApplicationState(view))
    assert (
        validate_task_assignment(ApplicationState(view), proposed.values()) is AssignmentError.NONE
    )
    change(proposed)
    assert validate_task_assignment(ApplicationState(view), proposed.values()) is error
    plugin = Scripted(change)
    with pytest.raises(InvalidPlacement, match=error.value):
        Adapted("mine", plugin).assign(view)
    assert plugin.errors == [error]


def test_EX_S1_4_an_empty_entry_is_enough() -> None:
    """A member that gets nothing is listed with nothing, and that is valid."""
    view = two_members()

    def emptied(proposed: dict[str, KafkaStreamsAssignment]) -> None:
        proposed["B"].assign_task(active(Task("1", 0)))
        proposed["C"] = KafkaStreamsAssignment.of("C")

    plugin = Scripted(emptied)
    placement = Adapted("mine", plugin).assign(view)
    assert holdings(view, placement)["C"] == ([], [], [])
    assert plugin.errors == [AssignmentError.NONE]


def test_EX_S1_7_identity_assignment() -> None:
    """It returns what every member holds, and carrying it out moves nothing."""
    view = two_members()
    proposed = identity_assignment(ApplicationState(view))
    assert proposed["A"].tasks == {T0: active(T0), T1: standby(T1)}
    assert proposed["B"].tasks == {T1: active(T1), T0: standby(T0)}
    placement = Adapted("mine", Scripted(lambda _: None)).assign(view)
    assert len(placement.reasons) == 0
    assert placement.active.tolist() == view.active.tolist()


@pytest.mark.parametrize(
    ("deadline_ms", "expected"), [(None, None), (600_000, 600_000), (0, 0), (-5, 0)]
)
def test_EX_S1_8_to_10_followup_is_the_last_answers_own(
    deadline_ms: int | None, expected: int | None
) -> None:
    """A follow-up belongs to the answer that asks for it; a past deadline means at once."""
    view = two_members()

    def wish(proposed: dict[str, KafkaStreamsAssignment]) -> None:
        if deadline_ms is not None:
            proposed["B"] = proposed["B"].with_followup_rebalance(view.now_ms + deadline_ms)

    assert Adapted("mine", Scripted(wish)).assign(view).followup_ms == expected


def test_EX_S1_11_retriable_error_keeps_everything() -> None:
    """The plug-in cannot decide: a retriable error; the command line shows the same placement."""
    view = two_members()
    with pytest.raises(TaskAssignmentException, match="lags are not known yet") as raised:
        plugins.Guarded(Adapted("mine", NotNow())).assign(view)
    assert raised.value.retriable
    placement = unchanged(view, raised.value)
    assert placement.active.tolist() == view.active.tolist()
    assert placement.standby.code.tolist() == view.standby.code.tolist()
    assert (placement.followup_ms, len(placement.reasons)) == (0, 0)
    assert "lags are not known yet" in placement.warnings[0]


def test_EX_S1_12_the_named_assignor_is_used() -> None:
    """Built-in names, `module:Class`, and a clear error for anything else."""
    assert plugins.get("high-availability").name == "high-availability"
    assert plugins.get("sticky").name == "sticky"
    view = two_members()
    placement = plugins.get("support.plugin_assignors:FirstTakesAll").assign(view)
    assert holdings(view, placement)["A"][0] == ["0_0", "0_1", "1_0"]
    for name in ("unknown", "no.such.module:Thing", "support.plugin_assignors:Thing"):
        with pytest.raises(UnknownAssignor, match=name):
            plugins.get(name)


@pytest.fixture
def released() -> Iterator[None]:
    """Unblocks a hanging plug-in after the test."""
    plugin_assignors.RELEASE.clear()
    yield
    plugin_assignors.RELEASE.set()


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ("Raises", "ZeroDivisionError: oops"),
        ("Nonsense", "answered str, not a Placement"),
    ],
)
def test_a_plugin_that_fails_is_an_assignor_error(plugin: str, message: str) -> None:
    """Any failure of a plug-in reaches the caller as an AssignorError that says what happened."""
    with pytest.raises(AssignorError, match=message):
        plugins.get(f"support.plugin_assignors:{plugin}").assign(two_members())


@pytest.mark.usefixtures("released")
def test_a_plugin_that_hangs_is_given_up() -> None:
    """After the timeout the caller goes on; the plug-in is not asked again while it still runs."""
    view = two_members(assignor_timeout_ms=20)
    hangs = plugins.get("support.plugin_assignors:Hangs")
    with pytest.raises(AssignorError, match="more than 20 ms"):
        hangs.assign(view)
    with pytest.raises(AssignorError, match="still hangs"):
        hangs.assign(view)
    plugin_assignors.RELEASE.set()
    assert isinstance(hangs, plugins.Guarded)
    assert hangs._hanging is not None
    assert hangs._hanging.ends_within(10)
    patient = two_members(assignor_timeout_ms=10_000)
    assert hangs.assign(patient).active.tolist() == view.active.tolist()


def test_a_plugin_that_breaks_the_law_is_refused() -> None:
    """An active left out passes the KIP's checks and is still refused."""
    view = two_members()
    plugin = Adapted(
        "mine", Scripted(lambda proposed: proposed["C"].remove_task(active(Task("1", 0))))
    )
    with pytest.raises(InvalidPlacement, match="ACTIVE_TASK_NOT_ASSIGNED task 1_0"):
        plugins.Guarded(plugin).assign(view)


def test_the_registry_guards_plugins_only() -> None:
    """Built-in assignors are returned directly; a plug-in is returned behind the guard."""
    plugins.install()
    assert not isinstance(registry.get("sticky"), plugins.Guarded)
    assert isinstance(registry.get("support.plugin_assignors:Raises"), plugins.Guarded)


def test_states_say_what_members_hold() -> None:
    """Previous tasks, capacity and lags of a member; lags only if asked for."""
    view = two_members()
    state = ApplicationState(view)
    a = state.kafka_streams_states(compute_lags=True)["A"]
    assert (a.previous_active_tasks, a.previous_standby_tasks) == ({T0}, {T1})
    assert (a.lag_for(T0), a.lag_for(T1)) == (LATEST_OFFSET, 7)
    assert a.prev_tasks_by_lag("A") == [T0, T1]
    assert set(a.stateful_tasks_to_lag_sums) == state.stateful_tasks == {T0, T1}
    with pytest.raises(RuntimeError, match="compute_lags=True"):
        state.kafka_streams_states()["A"].lag_for(T0)
    with pytest.raises(KeyError):
        a.lag_for(Task("1", 0))


def racked(**config: object) -> GroupView:
    """EX-R3's group: four partitions over four racks, three members, all in the wrong rack."""
    replicas = {"0": (["r0", "r1"], ["r1", "r2"]), "1": (["r0", "r2"], ["r1", "r3"])}
    units = [
        Subtopology(
            name,
            2,
            stateful=True,
            source_racks=tuple((tuple(racks),) for racks in lists),
            changelog_racks=tuple((tuple(racks),) for racks in lists),
        )
        for name, lists in replicas.items()
    ]
    members = {
        "P1": Member(rack="r0", active=["0_1", "1_1"]),
        "P2": Member(rack="r1", active=["1_0"]),
        "P3": Member(rack="r2", active=["0_0"]),
    }
    return group(units, members, rack_aware_assignment_strategy="min_traffic", **config)


def test_EX_R3_through_the_utility() -> None:
    """Actives are exchanged for the least traffic; counts stay (S1-20)."""
    state = ApplicationState(racked())
    proposed = identity_assignment(state)
    assert (
        optimize_rack_aware_active_tasks(RackAwareOptimizationParams.of(state), proposed)
        is proposed
    )
    held = {name: [str(t) for t in one.of_type(TaskType.ACTIVE)] for name, one in proposed.items()}
    assert held == {"P1": ["0_0", "1_0"], "P2": ["1_1"], "P3": ["0_1"]}


def test_EX_R3_a_draining_member_exchanges_nothing() -> None:
    """It may get nothing new, so an answer with an exchange would be refused; the others go on."""
    view = replace(racked(), draining=np.array([False, True, False]))
    state = ApplicationState(view)
    proposed = identity_assignment(state)
    optimize_rack_aware_active_tasks(RackAwareOptimizationParams.of(state), proposed)
    held = {name: [str(t) for t in one.of_type(TaskType.ACTIVE)] for name, one in proposed.items()}
    assert held == {"P1": ["0_0", "1_1"], "P2": ["1_0"], "P3": ["0_1"]}
    check.valid(view, placement_of(view, TaskAssignment.of(proposed.values())))


@pytest.mark.parametrize("tags", [(), ("zone",), ("zone", "floor")], ids=len)
def test_standbys_of_a_draining_member_are_not_exchanged(tags: tuple[str, ...]) -> None:
    """Each of 1_0 and 1_1 would be cheaper on the other member, of which one drains."""
    racks = {"A": "r9", "B": "r0", "C": "r1"}
    unit = Subtopology(
        "1",
        2,
        stateful=True,
        source_racks=((("r0",),), (("r1",),)),
        changelog_racks=((("r0",),), (("r1",),)),
    )
    copies = {"A": (), "B": ("1_1",), "C": ("1_0",)}
    for draining in ((), ("C",)):
        members = {
            name: Member(
                rack=rack,
                tags={"zone": name, "floor": name},
                active=["1_0", "1_1"] if name == "A" else [],
                standby=copies[name],
                draining=name in draining,
            )
            for name, rack in racks.items()
        }
        settings = {"rack_aware_assignment_tags": list(tags), "num_standby_replicas": 1}
        view = group([unit], members, rack_aware_assignment_strategy="min_traffic", **settings)
        state = ApplicationState(view)
        proposed = identity_assignment(state)
        optimize_rack_aware_standby_tasks(RackAwareOptimizationParams.of(state), proposed)
        held = {n: tuple(map(str, p.of_type(TaskType.STANDBY))) for n, p in proposed.items()}
        assert held == (copies if draining else {"A": (), "B": ("1_0",), "C": ("1_1",)})


@pytest.mark.parametrize("tags", [(), ("zone",)], ids=len)
def test_a_task_that_stays_on_a_draining_member_has_its_standbys(tags: tuple[str, ...]) -> None:
    """Each of the two other members can have a copy, with tags as without (S1-19)."""
    members = {
        name: Member(tags={"zone": name}, active=["0_0"] if name == "A" else [], draining=drains)
        for name, drains in (("A", True), ("B", False), ("C", False))
    }
    settings = {"num_standby_replicas": 2, "rack_aware_assignment_tags": list(tags)}
    view = group([Subtopology("0", 1, stateful=True)], members, **settings)
    state = ApplicationState(view)
    proposed = default_standby_task_assignment(state, identity_assignment(state))
    held = {name: one.of_type(TaskType.STANDBY) for name, one in proposed.items()}
    assert held == {"A": [], "B": [T0], "C": [T0]}


def test_optimisation_honours_tasks_and_prices() -> None:
    """Only the given tasks move; a price of moves above all traffic keeps every task."""
    state = ApplicationState(racked())
    dear = (
        RackAwareOptimizationParams.of(state)
        .with_traffic_cost_override(1)
        .with_non_overlap_cost_override(100)
    )
    for params in (dear, RackAwareOptimizationParams.of(state).for_stateless_tasks()):
        kept = optimize_rack_aware_active_tasks(params, identity_assignment(state))
        assert kept == identity_assignment(state)
    pair = RackAwareOptimizationParams.of(state).for_tasks([Task("1", 0), Task("1", 1)])
    proposed = optimize_rack_aware_active_tasks(pair, identity_assignment(state))
    assert proposed["P1"].of_type(TaskType.ACTIVE) == [Task("0", 1), Task("1", 0)]
    assert proposed["P2"].of_type(TaskType.ACTIVE) == [Task("1", 1)]


def test_optimisation_refuses_what_is_no_assignment() -> None:
    """A task active twice or nowhere is an error, unless the caller left it out (S4-F07)."""
    state = ApplicationState(racked())
    params = RackAwareOptimizationParams.of(state)
    twice = identity_assignment(state)
    twice["P2"].assign_task(AssignedTask(Task("0", 1), TaskType.ACTIVE))
    with pytest.raises(AssignorError, match="task 0_1 is active on P1 and on P2; expected one"):
        optimize_rack_aware_active_tasks(params, twice)
    nowhere = identity_assignment(state)
    nowhere["P3"].remove_task(AssignedTask(Task("0", 0), TaskType.ACTIVE))
    with pytest.raises(AssignorError, match="task 0_0 is active on no member; expected one"):
        optimize_rack_aware_active_tasks(params, nowhere)
    optimize_rack_aware_active_tasks(params.for_tasks([Task("1", 0), Task("1", 1)]), nowhere)
    assert nowhere["P1"].of_type(TaskType.ACTIVE) == [Task("0", 1), Task("1", 0)]


def test_standbys_by_default_and_by_rack() -> None:
    """Standbys are added for every active, then exchanged; counts per member stay."""
    state = ApplicationState(racked(num_standby_replicas=1))
    proposed = default_standby_task_assignment(state, identity_assignment(state))
    before = {name: len(one.of_type(TaskType.STANDBY)) for name, one in proposed.items()}
    assert sum(before.values()) == 4
    assert validate_task_assignment(state, proposed.values()) is AssignmentError.NONE
    crossed = _crossings(state, proposed)
    optimize_rack_aware_standby_tasks(RackAwareOptimizationParams.of(state), proposed)
    assert {n: len(one.of_type(TaskType.STANDBY)) for n, one in proposed.items()} == before
    assert validate_task_assignment(state, proposed.values()) is AssignmentError.NONE
    assert _crossings(state, proposed) <= crossed


def _crossings(state: ApplicationState, proposed: dict[str, KafkaStreamsAssignment]) -> int:
    """Standbys in a rack without a replica of their changelog."""
    members = state.kafka_streams_states()
    return sum(
        members[name].rack_id not in (part.rack_ids or ())
        for name, one in proposed.items()
        for task in one.of_type(TaskType.STANDBY)
        for part in state.all_tasks[task].topic_partitions
        if part.is_changelog
    )


def test_the_callback_gets_a_valid_assignment_too() -> None:
    """The callback is also called for a valid assignment."""
    plugin = FirstTakesAll()
    placement = Adapted("mine", plugin).assign(two_members())
    assert np.unique(placement.active).tolist() == [0]
    assert plugin.errors == [AssignmentError.NONE]
