"""The session machine: every state with every input."""

from __future__ import annotations

import pytest
from support.talk import GONE, GROUP, MEMBER, in_state, kinds

from muster.protocol.digest import Holding
from muster.protocol.events import Heartbeat, Lag, Report
from muster.protocol.ids import Role, Task
from muster.protocol.records import Fault
from muster.protocol.tasks import TaskSet
from muster.worker.chance import mixed63
from muster.worker.exchange import (
    Acknowledged,
    AllStopped,
    Begin,
    CaughtUp,
    ClockMoved,
    Failed,
    Input,
    LeaveAsked,
    Read,
    Ready,
    Released,
    Restored,
    Send,
)
from muster.worker.session import Session
from muster.worker.states import FAULTS, TABLE, State

INPUTS: dict[type, Input] = {
    Begin: Begin(),
    Read: GONE,
    Acknowledged: Acknowledged(
        Send(Heartbeat(group=GROUP, member=MEMBER, epoch=1, digest=0), mixed63(1), 1_000_500)
    ),
    CaughtUp: CaughtUp(1_000_500),
    Failed: Failed(
        Send(
            Report(
                group=GROUP, member=MEMBER, incarnation=0, epoch=0, revision=0, holding=Holding()
            ),
            mixed63(1),
            0,
        )
    ),
    Released: Released(Role.ACTIVE, TaskSet.of(["0_0"])),
    AllStopped: AllStopped(),
    Ready: Ready(TaskSet.of(["0_9"])),
    Restored: Restored((Lag(Task("0", 9), 5),)),
    LeaveAsked: LeaveAsked(),
    ClockMoved: ClockMoved(),
}

FIRST: dict[type, Input] = {Acknowledged: INPUTS[CaughtUp], CaughtUp: INPUTS[Acknowledged]}
"""A lease needs both; what is given first, so that the second makes a difference."""

EXPECTED: dict[tuple[State, type], tuple[State, list[str]]] = {
    (State.NEW, Begin): (State.JOINING, ["Join"]),
    (State.NEW, LeaveAsked): (State.ENDED, ["End"]),
    (State.JOINING, LeaveAsked): (State.ENDED, ["Leave", "End"]),
    (State.MEMBER, Read): (State.LOST, ["Lose"]),
    (State.MEMBER, Acknowledged): (State.MEMBER, ["Lease"]),
    (State.MEMBER, CaughtUp): (State.MEMBER, ["Lease"]),
    (State.MEMBER, Ready): (State.MEMBER, ["Report"]),
    (State.MEMBER, Restored): (State.MEMBER, ["LagReport"]),
    (State.MEMBER, LeaveAsked): (State.LEAVING, ["Release", "Release"]),
    (State.LOST, AllStopped): (State.JOINING, ["Join"]),
    (State.LEAVING, Read): (State.LOST, ["Lose"]),
    (State.LEAVING, Acknowledged): (State.LEAVING, ["Lease"]),
    (State.LEAVING, CaughtUp): (State.LEAVING, ["Lease"]),
}
"""Where the state or an action comes of it; all other pairs change nothing."""


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("state", State)
def test_table(state: State, kind: type) -> None:
    """Each state takes each input as the table says; what is not listed there changes nothing."""
    talk = in_state(state)
    talk.now_ms += 1
    if kind in FIRST:
        assert talk.give(FIRST[kind]) == []
    actions = talk.give(INPUTS[kind])
    assert (talk.session.state, kinds(actions)) == EXPECTED.get((state, kind), (state, []))


def test_table_names_methods_that_exist() -> None:
    """Every handler named in the table is one of the session's."""
    names = {name for row in TABLE.values() for name in row.values()}
    assert names == {name for name in names if callable(getattr(Session, name, None))}
    assert set(FAULTS) == set(Fault)
