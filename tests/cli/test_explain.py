"""`muster explain`: which generation put a task where it is, however long ago."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from support.state.snapshots import orders, pairs

from muster.cli import explain
from muster.cli.main import main
from muster.protocol.ids import GroupId, MemberId, Role
from muster.protocol.records import GroupGone, GroupSnapshot, MemberEntry, Move
from muster.protocol.snapshot import outline_of
from muster.published import snapshots
from muster.published.snapshots import Published
from muster.published.unapplied_configs import Unapplied

W1 = MemberEntry(id=MemberId("W1"), slot=0, incarnation=1)
W2 = MemberEntry(id=MemberId("W2"), slot=2, incarnation=2)
W3 = MemberEntry(id=MemberId("W3"), slot=3, incarnation=3)


def moved(task: str, before: str | None, after: str, reason: str) -> Move:
    """A move of an active task."""
    return Move(task=task, role=Role.ACTIVE, from_member=before, to_member=after, reason=reason)


def life() -> Iterator[GroupSnapshot | GroupGone]:
    """W1 gets all tasks, W2 gets 0_1, W3 joins and leaves without a move; no move names 0_2."""
    first = replace(
        orders(1, "W1 joined"),
        members=(W1,),
        moves=(moved("0_0", None, "W1", "had no owner"), moved("0_1", None, "W1", "had no owner")),
    )
    yield replace(first, cause="of a life before")
    yield GroupGone(group=GroupId("orders"))
    yield first
    yield replace(
        orders(2, "W2 joined"), members=(W1, W2), moves=(moved("0_1", "W1", "W2", "balance"),)
    )
    quiet = replace(
        orders(3, "W3 joined"),
        members=(W1, W2, W3),
        moves=(),
        holder=np.array([0, 2, 2, 0, -1], dtype=np.int32),
        revoking=np.zeros(5, dtype=bool),
        learner=pairs(),
    )
    yield quiet
    yield replace(quiet, generation=4, cause="W3 left", members=(W1, W2))


@pytest.fixture(autouse=True)
def _published(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [Published(each, 1_700_000_000_000 + n * 1_000) for n, each in enumerate(life())]
    monkeypatch.setattr(explain, "history", lambda *_: iter(records))
    monkeypatch.setattr(explain, "unapplied", lambda *_: {})
    outlines = {each.group: outline_of(each) for each in life() if isinstance(each, GroupSnapshot)}
    monkeypatch.setattr(snapshots, "newest_outlines", lambda *_: outlines)


def said(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The output of the command."""
    assert main(["explain", "--group", "orders", *options]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The error for options that name nothing."""
    assert main(["explain", "--group", "orders", *options]) == 1
    return capsys.readouterr().err.strip()


def test_the_newest_generation(capsys: pytest.CaptureFixture[str]) -> None:
    """Without options the command prints the newest generation's cause and moves."""
    assert said(capsys).splitlines() == [
        "generation 4, 2023-11-14T22:13:25.000+00:00: W3 left",
        "no task moves",
        "",
    ]


def test_where_a_task_is_and_since_when(capsys: pytest.CaptureFixture[str]) -> None:
    """--task prints the task's owner and the older generation that put it there."""
    assert said(capsys, "--task", "0_1").splitlines() == [
        "GROUP  TASK ROLE   MEMBER-ID STATE",
        "orders 0_1  active W2        running",
        "",
        "generation 2, 2023-11-14T22:13:23.000+00:00: W2 joined",
        "TASK ROLE   FROM TO REASON",
        "0_1  active W1   W2 balance",
        "",
    ]
    (line,) = said(capsys, "--task", "0_1", "--format", "json").splitlines()
    assert (json.loads(line)["generation"], json.loads(line)["moves"][0]["to"]) == (2, "W2")


def test_a_task_whose_placement_is_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    """If no generation on the topic moved the task, the output says so."""
    assert said(capsys, "--task", "0_2").splitlines()[3] == (
        "it has been there since before generation 1, the oldest that the topic still holds"
    )


def test_the_history_of_a_task_and_of_a_member(capsys: pytest.CaptureFixture[str]) -> None:
    """--history keeps generations that moved the task, or that concern the member."""

    def numbers(*options: str) -> list[int]:
        lines = said(capsys, "--history", "--format", "json", *options).splitlines()
        return [json.loads(line)["generation"] for line in lines]

    assert numbers() == [1, 2, 3, 4]
    assert numbers("--task", "0_1") == [1, 2]
    assert numbers("--member", "W2") == [2]
    assert numbers("--member", "W1") == [1, 2]
    assert numbers("--member", "W3") == [3, 4]
    assert numbers("--member", "W1", "--task", "0_0") == [1]


def test_a_configuration_that_the_group_does_not_follow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its refusal explains why a task that an operator has configured is not there."""
    late = Unapplied(GroupId("orders"), 0, 7, 1_000, "9 tasks; at most 8")
    monkeypatch.setattr(explain, "wall_ms", lambda: 13_000)
    monkeypatch.setattr(explain, "unapplied", lambda *_: {late.group: late})
    text = (
        "orders: the newest change of its configuration, 12 s ago, was refused: 9 tasks; at most "
        "8. The group follows the one before"
    )
    assert text in said(capsys).splitlines()
    assert refused(capsys, "--task", "0_9") == (
        "muster explain: no task '0_9' in group 'orders'; it has: 0 (3 tasks), c1 (2 tasks). "
        + text
    )


def test_what_is_misspelt_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown tasks and members are refused with the known ones."""
    assert refused(capsys, "--task", "0_9") == (
        "muster explain: no task '0_9' in group 'orders'; it has: 0 (3 tasks), c1 (2 tasks)"
    )
    assert refused(capsys, "--task", "nonsense").startswith("muster explain: no task 'nonsense'")
    assert refused(capsys, "--member", "w1") == (
        "muster explain: no member 'w1' in group 'orders'; there are: W1, W2"
    )
    assert refused(capsys, "--member", "W3") == (
        "muster explain: no member 'W3' in group 'orders'; there are: W1, W2; it was a member "
        "earlier: see --history"
    )
    assert refused(capsys, "--member", "W9", "--history").endswith("there are: W1, W2")
