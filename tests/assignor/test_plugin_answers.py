"""Answers of plug-ins that are not what `Placement` says: the group keeps what it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from support.assignor.placing import Member, group
from support.plugin_assignors import RELEASE

from muster import plugins
from muster.assignor.api import (
    AssignedTask,
    KafkaStreamsAssignment,
    Task,
    TaskAssignment,
    TaskAssignor,
)
from muster.assignor.errors import AssignorError, InvalidPlacement
from muster.assignor.kip924.adapted_plugin import Adapted
from muster.assignor.model import GroupView, Pairs, Placement, Reason
from muster.protocol.ids import Role
from muster.protocol.tasks import Subtopology
from muster.testing import Environment


@dataclass
class Answers:
    """Everything to the first member, in a placement that a test changes."""

    changes: dict[str, Any]
    name: str = "mine"

    def assign(self, view: GroupView) -> Placement:
        """Assign."""
        active = np.zeros(len(view.tasks), dtype=np.int32)
        return replace(Placement(active=active, destination=active), **self.changes)


def _view(**settings: object) -> GroupView:
    return group([Subtopology("0", 2)], {"A": Member(), "B": Member()}, **settings)


def _reason(**changes: object) -> Reason:
    return replace(Reason(0, Role.ACTIVE, -1, 0, "mine"), **changes)  # type: ignore[arg-type]


BAD = {
    "followup_ms": (1.5, "followup_ms is 1.5; expected a whole number"),
    "delay_ms": ("1", "delay_ms is '1'; expected a whole number"),
    "active": ([0, 0], "active is list; expected an array of int32"),
    "destination": (np.zeros(2), "destination is an array of float64; expected an array of int32"),
    "standby": (None, "standby is NoneType; expected Pairs"),
    "learner": (Pairs([0], [0]), "learner.task is list; expected an array"),  # type: ignore[arg-type]
    "warnings": ("mind the gap", "warnings is str; expected a list"),
    "reasons": (None, "reasons is NoneType; expected a list"),
}


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        *((part, *case) for part, case in BAD.items()),
        ("active", np.zeros(1, np.int32), r"active has the shape \(1,\); expected \(2,\), one for"),
        ("destination", np.array([]), r"destination has the shape \(0,\); expected \(2,\)"),
        ("warnings", (1,), "warnings has 1; expected a text"),
        ("reasons", ["0_0 moves"], "reasons has str; expected Reason"),
        ("reasons", [_reason(task=7)], "task of a reason is 7; expected 0 to 1"),
        ("reasons", [_reason(destination=7)], "destination of a reason is 7; expected -1 to 1"),
        ("reasons", [_reason(role="active")], "role of a reason is 'active'; expected a Role"),
        ("reasons", [_reason(text=7)], "reasons has 7; expected a text"),
    ],
)
def test_a_part_of_another_type_is_named(part: str, value: object, message: str) -> None:
    """Neither the batch nor `muster assign` ends of it; the group goes on without the answer."""
    with pytest.raises(AssignorError, match=f"mine answered a bad Placement: {message}"):
        plugins.Guarded(Answers({part: value})).assign(_view())
    with Environment({"0": 2}, Answers({part: value})) as env:
        env.worker("A")
        env.advance(20)
        assert "target stays" in env.story


def test_numpy_scalars_are_plain_numbers() -> None:
    """An assignor over arrays computes with them; they can be stored and printed all the same."""
    answered = Answers(
        {
            "followup_ms": np.int64(60_000),
            "delay_ms": np.int64(0),
            "again": np.bool_(False),
            "cost": np.int64(3),
            "unassigned": np.array([]),
            "standby": Pairs(np.array([]), np.array([])),  # type: ignore[arg-type]
            "reasons": [_reason(task=np.int64(1), text="\ud800" + 5_000 * "x")],
        }
    )
    placement = plugins.Guarded(answered).assign(_view())
    assert [type(n) for n in (placement.followup_ms, placement.delay_ms, placement.cost)] == [
        int
    ] * 3
    assert placement.again is False
    assert placement.unassigned.dtype == placement.standby.task.dtype == np.int32
    [reason] = placement.reasons
    assert type(reason.task) is int
    assert reason.text.startswith("\\ud800xxx")
    assert len(reason.text) < 1_100
    with Environment({"0": 2}, answered) as env:
        env.worker("A")
        env.settle()
        env.restart_coordinator()
        env.settle()


@pytest.fixture
def released() -> Iterator[None]:
    """Unblocks a hanging plug-in after the test."""
    RELEASE.clear()
    yield
    RELEASE.set()


@pytest.mark.usefixtures("released")
def test_reasons_that_hang_are_given_up() -> None:
    """Reasons that the plug-in computes when they are read count for its time."""

    def reasons() -> Iterator[Reason]:
        RELEASE.wait()
        yield _reason()

    with pytest.raises(AssignorError, match="more than 20 ms"):
        plugins.Guarded(Answers({"reasons": reasons()})).assign(_view(assignor_timeout_ms=20))


def test_a_failure_without_a_text_is_a_failure() -> None:
    """The text of an exception is the plug-in's code too."""

    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError

    class Fails:
        name = "mine"

        def assign(self, view: GroupView) -> Placement:
            raise Silent

    with pytest.raises(AssignorError, match="mine failed: Silent"):
        plugins.Guarded(Fails()).assign(_view())


Entries = Callable[[], list[KafkaStreamsAssignment]]


def _kip(entries: Entries) -> plugins.Guarded:
    class Kip(TaskAssignor):
        def assign(self, state: object) -> TaskAssignment:
            return TaskAssignment.of(entries())

    return plugins.Guarded(Adapted("mine", Kip()))


def _entry(member: str, *partitions: int) -> KafkaStreamsAssignment:
    return KafkaStreamsAssignment.of(member, [AssignedTask(Task("0", p)) for p in partitions])


def test_a_follow_up_at_half_a_millisecond_is_refused() -> None:
    """A deadline that was computed with a division would be written into the group's record."""
    late = _entry("A", 0, 1).with_followup_rebalance(120_001 / 2)  # type: ignore[arg-type]
    with pytest.raises(AssignorError, match="the follow-up of A is due at 60000"):
        _kip(lambda: [late, _entry("B")]).assign(_view())


def test_a_member_that_is_listed_twice_gets_both() -> None:
    """As in Kafka: two entries are added up, and an active in both is there twice."""
    placement = _kip(lambda: [_entry("A", 0), _entry("B"), _entry("A", 1)]).assign(_view())
    assert placement.active.tolist() == [0, 0]
    with pytest.raises(InvalidPlacement, match="ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES task 0_0"):
        _kip(lambda: [_entry("A", 0), _entry("B", 1), _entry("A", 0)]).assign(_view())
