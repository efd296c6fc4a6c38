"""Groups as tables and as JSON."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.state.snapshots import orders

from muster.cli.groups import hints, quarantines
from muster.output import table
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupState, KeptDrain, Quarantine
from muster.protocol.snapshot import outline_of
from muster.protocol.tasks import Connector, Subtopology, TaskSet
from muster.published.generations import generation_json, generation_text
from muster.published.holdups import waits_text
from muster.published.snapshots import Shown, compact, drains_text
from muster.published.tables import (
    group_json,
    list_table,
    members_table,
    state_table,
    tasks_table,
)

SHOWN = Shown(orders(), {"W1": 990})


def test_state_columns() -> None:
    """Each group is a row, the widest cell sets a column's width, and the cause comes last."""
    assert state_table([SHOWN], 1_000).splitlines() == [
        "GROUP  ASSIGNMENT-STRATEGY STATE       GROUP-EPOCH #MEMBERS #TASKS CAUSE",
        "orders sticky              Reconciling 7           2        5      W2 joined",
    ]
    assert list_table([outline_of(SHOWN.snapshot)]).splitlines() == [
        "GROUP  ASSIGNMENT-STRATEGY STATE       GROUP-EPOCH #MEMBERS #TASKS",
        "orders sticky              Reconciling 7           2        5",
    ]
    assert list_table([]) == "GROUP ASSIGNMENT-STRATEGY STATE GROUP-EPOCH #MEMBERS #TASKS"


def test_times_are_told_as_ages() -> None:
    """Times print as ages; a member that missed two heartbeats is silent."""
    assert state_table([SHOWN], 125_000, verbose=True).splitlines()[1].split()[:-2] == (
        ["orders", "sticky", "Reconciling", "7", "2", "5", "7", "3", "2", "min", "ago"]
    )

    silent = members_table([SHOWN], 57_990).splitlines()
    assert [
        line.endswith(end) for line, end in zip(silent[1:], ("silent 57 s", "-"), strict=True)
    ] == [True, True]
    assert members_table([SHOWN], 3_990).splitlines()[1].endswith(" 3 s ago")


def test_member_columns() -> None:
    """Each member is a row, missing values are dashes, and assignments look as in Kafka."""
    assert members_table([SHOWN], 1_990, verbose=True).splitlines() == [
        "GROUP  MEMBER-ID GROUP-INSTANCE-ID RACK CAPACITY MEMBER-EPOCH STATE     #ACTIVE #STANDBY "
        "#LEARNER LAST-HEARTBEAT DRAINING ACTIVE     STANDBY LEARNER REVOKING",
        "orders W1        -                 r0   1        7            unrevoked 2       0        "
        "0        1 s ago        false    0(0),c1(-) -       -       0(1,2)",
        "orders W2        i2                -    2        6            stable    1       1        "
        "1        -              false    0(2)       0(0)    0(1)    -",
    ]


def test_a_member_that_is_away() -> None:
    """A static member that left for a while is `away`, in the table and in JSON."""
    first, second = orders().members
    shown = Shown(replace(orders(), members=(first, replace(second, away=True))), {})
    states = [line.split()[6] for line in members_table([shown], 0).splitlines()]
    assert states == ["STATE", "unrevoked", "away"]
    assert [member["state"] for member in group_json(shown)["members"]] == ["unrevoked", "away"]


def test_a_group_that_was_never_configured_says_what_to_do() -> None:
    """A group without tasks gets a hint with the configured names; other groups get none."""
    waits = Shown(replace(orders(), group=GroupId("order"), state=GroupState.NOT_READY), {})
    assert hints([SHOWN], lambda: pytest.fail("looked up for nothing")) == []
    assert hints([SHOWN, waits], lambda: ["payments", "orders", "order"]) == [
        "group 'order' has no tasks; configured groups: orders, payments; "
        "muster config set --group order --tasks FILE gives it some"
    ]
    many = [f"g{n}" for n in range(9)]
    assert "configured groups: g0, g1, g2, g3, g4 and 4 more;" in hints([waits], lambda: many)[0]
    assert "configured groups: none;" in hints([waits], list)[0]


def test_standbys_without_state_are_said_to_be_nowhere() -> None:
    """Standbys without a stateful task give a hint."""
    settings = replace(orders().settings, num_standby_replicas=1)
    asked = replace(orders(), assignor="sticky", settings=settings)
    stateless = replace(asked, tasks=(Subtopology("0", 3), Connector("c1", 1)))
    assert hints([Shown(asked, {}), Shown(stateless, {})], list) == [
        'orders: num.standby.replicas is ignored: it counts only where a task is "stateful": true'
    ]


def test_drains_of_members_that_are_gone() -> None:
    """Drains of absent members are listed with the command that undoes them, at most ten."""
    kept = (
        KeptDrain(MemberId("W9"), "i9", 0, False),
        KeptDrain(MemberId("W7"), None, 60_000, True),
        KeptDrain(MemberId("W2"), None, None, True),
        KeptDrain(MemberId("W1"), None, None, False),
    )
    cancel = "muster drain --group orders --member"
    expelled = "was expelled before it was empty"
    assert drains_text(replace(orders(), drains=kept), 180_000) == [
        f"W2 {expelled} and is back: its process may still run what it had; drained until {cancel} "
        "W2 --cancel",
        f"W7 {expelled} and went 2 min ago: its process may still run what it had; drained until "
        f"{cancel} W7 --cancel",
        f"W9 went 3 min ago; it gets no tasks when it returns, until {cancel} W9 --cancel",
    ]
    many = tuple(KeptDrain(MemberId(f"W{n}"), None, 0, False) for n in range(14))
    lines = drains_text(replace(orders(), drains=many), 0)
    assert (len(lines), lines[-1]) == (11, "and 4 more drained members")
    assert drains_text(orders(), 0) == []


def test_a_group_that_is_quarantined() -> None:
    """The state says quarantined, a paragraph gives cause and command, JSON has the values."""
    quarantine = Quarantine(60_000, "it was ended by SIGABRT")
    shown = Shown(replace(orders(), quarantine=quarantine), {})
    assert "Reconciling (quarantined)" in state_table([shown], 0)
    assert "Reconciling (quarantined)" in list_table([outline_of(shown.snapshot)])
    (paragraph,) = quarantines([SHOWN, shown], 180_000)
    assert "orders: quarantined 2 min ago: it was ended by SIGABRT" in paragraph
    assert paragraph.endswith("then: muster groups release --group orders")
    assert group_json(shown)["quarantine"] == {"since_ms": 60_000, "story": quarantine.story}
    assert group_json(SHOWN)["quarantine"] is None


def test_what_tasks_wait_for() -> None:
    """Each waiting task has a line, at most ten, and an object in JSON."""
    few = replace(orders(), target=np.array([0, 0, 2, 0, -1], dtype=np.int32))
    assert waits_text(few) == "0_1 waits for W2: its copy is 40 offsets behind"
    (wait,) = generation_json(few, (), at_ms=1)["waits"]  # type: ignore[misc]  # a list
    assert wait == group_json(Shown(few, {}))["waits"][0]
    assert (wait["task"], wait["role"], wait["member"], wait["behind"]) == (
        *("0_1", "active", "W2"),
        40,
    )
    count = 30
    many = replace(
        few,
        tasks=(Subtopology("0", count, stateful=True),),
        target=np.zeros(count, dtype=np.int32),
        destination=np.full(count, 2, dtype=np.int32),
    )
    assert waits_text(many).splitlines()[-1] == "and 20 more wait"
    assert waits_text(orders()) == ""


def test_task_columns() -> None:
    """Each task is a row, with its copies below it."""
    assert tasks_table([SHOWN], verbose=True).splitlines() == [
        "GROUP  TASK ROLE    MEMBER-ID STATE      TARGET DESTINATION LAG",
        "orders 0_0  active  W1        running    W1     W1          -",
        "orders 0_0  standby W2        kept       -      -           -",
        "orders 0_1  active  W1        revoking   W2     W2          -",
        "orders 0_1  learner W2        restoring  -      -           40",
        "orders 0_2  active  W2        running    W2     W2          -",
        "orders 0_2  standby W1        revoking   -      -           -",
        "orders c1   active  W1        running    W1     W1          -",
        "orders c1-0 active  -         unassigned -      -           -",
    ]


def test_the_json_of_a_group() -> None:
    """The JSON has exactly the documented keys; a member's keys are in the documented order."""
    printed = group_json(SHOWN)
    assert printed == {
        "group": "orders",
        "generation": 7,
        "state": "Reconciling",
        "assignor": "sticky",
        "cause": "W2 joined",
        "members": [
            {
                "id": "W1",
                "instance_id": None,
                "epoch": 7,
                "state": "unrevoked",
                "rack": "r0",
                "capacity": 1,
                "active": ["0_0", "c1"],
                "standby": [],
                "learner": [],
                "revoking": ["0_1", "0_2"],
                "last_heartbeat_ms": 990,
            },
            {
                "id": "W2",
                "instance_id": "i2",
                "epoch": 6,
                "state": "stable",
                "rack": None,
                "capacity": 2,
                "active": ["0_2"],
                "standby": ["0_0"],
                "learner": ["0_1"],
                "revoking": [],
                "last_heartbeat_ms": None,
            },
        ],
        "unassigned": ["c1-0"],
        "waits": [],
        "coordinator_last_seen_ms": None,
        "drains": [],
        "quarantine": None,
    }
    assert list(printed["members"][0]) == [
        *("id", "instance_id", "epoch", "state", "rack", "capacity"),
        *("active", "standby", "learner", "revoking", "last_heartbeat_ms"),
    ]


def test_a_generation_explained() -> None:
    """The cause is the heading, each move has its reason, and JSON has the same."""
    snapshot = orders()
    assert generation_text(snapshot, snapshot.moves, 1_700_000_000_123).splitlines() == [
        "generation 7, 2023-11-14T22:13:20.123+00:00: W2 joined",
        "TASK ROLE    FROM TO REASON",
        "0_1  active  W1   W2 balance",
        "0_0  standby -    W2 copy",
    ]
    assert generation_text(snapshot, [], 0).splitlines()[1:] == ["no task moves"]
    assert generation_json(snapshot, snapshot.moves[:1], 5) == {
        "group": "orders",
        "generation": 7,
        "at_ms": 5,
        "cause": "W2 joined",
        "moves": [{"task": "0_1", "role": "active", "from": "W1", "to": "W2", "reason": "balance"}],
        "waits": [],
    }


def test_cells() -> None:
    """A missing value is a dash, lists are joined, and booleans are lower case."""
    assert table(("A", "B"), [(None, True), ("", ["x", "y"]), (0, [])]).splitlines() == [
        "A B",
        "- true",
        "- x,y",
        "0 -",
    ]


def test_assignments_in_short() -> None:
    """Tasks are grouped by unit; a connector itself is a dash."""
    assert compact(TaskSet.of(["10_1", "2_0", "2_3", "c", "c-1"])) == "2(0,3),10(1),c(-,1)"
    assert compact(TaskSet.of([])) == ""
