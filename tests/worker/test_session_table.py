"""The session's table: every state with every kind of input."""

from __future__ import annotations

import pytest
from support.repository.sources import ROOT
from support.worker.talk import GONE, GROUP, MEMBER, in_state, kinds

from muster.protocol.digest import Holding
from muster.protocol.events import Heartbeat, Lag, Report
from muster.protocol.ids import Role, Task
from muster.protocol.records import Fault
from muster.protocol.tasks import TaskSet
from muster.worker.fault_responses import FAULTS
from muster.worker.session import TABLE, on
from muster.worker.session_messages import (
    Acknowledged,
    AllStopped,
    Begin,
    CaughtUp,
    ClockMoved,
    Failed,
    Input,
    LagsKnown,
    LeaveAsked,
    Read,
    Ready,
    Released,
    Send,
)
from muster.worker.session_steps import State, Steps, mixed63

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
    LagsKnown: LagsKnown((Lag(Task("0", 9), 5),)),
    LeaveAsked: LeaveAsked(),
    ClockMoved: ClockMoved(),
}

FIRST: dict[type, Input] = {Acknowledged: INPUTS[CaughtUp], CaughtUp: INPUTS[Acknowledged]}
"""A lease needs both inputs: this one is given first, so that the tested one extends it."""

EXPECTED: dict[tuple[State, type], tuple[State, list[str]]] = {
    (State.NEW, Begin): (State.JOINING, ["Join"]),
    (State.NEW, LeaveAsked): (State.ENDED, ["End"]),
    (State.JOINING, LeaveAsked): (State.ENDED, ["Leave", "End"]),
    (State.MEMBER, Read): (State.LOST, ["Lose"]),
    (State.MEMBER, Acknowledged): (State.MEMBER, ["Lease"]),
    (State.MEMBER, CaughtUp): (State.MEMBER, ["Lease"]),
    (State.MEMBER, Ready): (State.MEMBER, ["Report"]),
    (State.MEMBER, LagsKnown): (State.MEMBER, ["LagReport"]),
    (State.MEMBER, LeaveAsked): (State.LEAVING, ["Release", "Release"]),
    (State.LOST, AllStopped): (State.JOINING, ["Join"]),
    (State.LEAVING, Read): (State.LOST, ["Lose"]),
    (State.LEAVING, Acknowledged): (State.LEAVING, ["Lease"]),
    (State.LEAVING, CaughtUp): (State.LEAVING, ["Lease"]),
}
"""(state, input) -> (next state, actions). All other pairs change nothing."""


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("state", State)
def test_table(state: State, kind: type) -> None:
    """Each state handles each input as expected; inputs that are not listed change nothing."""
    talk = in_state(state)
    talk.now_ms += 1
    if kind in FIRST:
        assert talk.give(FIRST[kind]) == []
    actions = talk.give(INPUTS[kind])
    assert (talk.session.state, kinds(actions)) == EXPECTED.get((state, kind), (state, []))


def test_every_move_of_the_table_is_expected() -> None:
    """The table lists every move expected above, and has a row for each kind of input."""
    for (before, kind), (after, _) in EXPECTED.items():
        assert after in {before, *TABLE[before][kind].leads_to}
    assert set(TABLE) == set(State)
    assert {kind for rules in TABLE.values() for kind in rules} == set(INPUTS)
    assert set(FAULTS) == set(Fault)


def test_a_move_that_the_table_does_not_list_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step fails if its handler leads to a state that the table does not list."""
    talk = in_state(State.NEW)
    monkeypatch.setitem(TABLE[State.NEW], Begin, on(Begin, Steps._join)[Begin])
    with pytest.raises(AssertionError, match="JOINING"):
        talk.give(Begin())


def test_the_page_draws_the_table() -> None:
    """docs/worker.md has every move of the table, and no other."""
    causes: dict[tuple[State, State], list[str]] = {}
    for state, rules in TABLE.items():
        for kind, rule in rules.items():
            for after in rule.leads_to:
                causes.setdefault((state, after), []).append(kind.__name__)
    for state in (State.MEMBER, State.LEAVING):
        causes.setdefault((state, State.LOST), []).append("lease over")
    drawn = [
        f"    {before.value} --> {after.value}: {', '.join(kinds)}"
        for (before, after), kinds in sorted(causes.items(), key=lambda move: _order(*move[0]))
    ]
    page = (ROOT / "docs" / "worker.md").read_text()
    assert page.split("stateDiagram-v2\n")[1].split("```")[0].splitlines() == [
        "    [*] --> new",
        *drawn,
        "    ended --> [*]",
    ]


def _order(before: State, after: State) -> tuple[int, int]:
    states = list(State)
    return states.index(before), states.index(after)
