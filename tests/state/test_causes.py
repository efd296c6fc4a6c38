"""Causes in words, and the one word they are counted by."""

from __future__ import annotations

import pytest

from muster.state import causes
from muster.state.causes import OTHER, Causes, kind_of


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (causes.JOINED, "joined"),
        (causes.RETURNED, "returned"),
        (causes.REJOINED, "rejoined"),
        (causes.CHANGED, "changed"),
        (causes.LEFT, "left"),
        (causes.EXPIRED, "expired"),
        (causes.FENCED, "fenced"),
        (causes.DRAINING, "draining"),
        (causes.KEPT, "undrained"),
    ],
)
@pytest.mark.parametrize("members", [("w1",), ("w1", "w2", "w3", "w4", "w5")])
def test_what_happened_to_members_is_counted_as_told(
    what: str, kind: str, members: tuple[str, ...]
) -> None:
    """Whatever `Causes` says of one member or of many is recognised again."""
    told = Causes()
    for member in members:
        told.member(what, member)
    assert kind_of(str(told)) == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("assignor sticky → learner", "config"),
        ("config changed: num.standby.replicas", "config"),
        ("config read up to 12", "config"),
        ("1 task added", "config"),
        ("12 tasks removed", "config"),
        ("tasks declared anew", "config"),
        ("delay ended", "delay"),
        ("w1 drained for scale.down.timeout.ms", "drained"),
        ("follow-up", "followup"),
        ("all releases acknowledged", "released"),
        ("something new", OTHER),
        ("", OTHER),
    ],
)
def test_what_happened_to_the_group_is_counted(text: str, kind: str) -> None:
    """Every text that the state room adds has its word; an unknown one is other."""
    told = Causes()
    if text:
        told.add(text)
    assert kind_of(str(told)) == kind


def test_copies_that_caught_up() -> None:
    """One that is ready, or several, of one kind or of many."""
    told = Causes()
    told.ready("learner", "0_1", "w1")
    assert (str(told), kind_of(str(told))) == ("learner of 0_1 on w1 ready", "ready")
    told.ready("learner", "0_2", "w2")
    assert (str(told), kind_of(str(told))) == ("2 learners on w1, w2 ready", "ready")
    told.ready("standby", "0_3", "w2")
    assert (str(told), kind_of(str(told))) == ("3 copies on w1, w2 ready", "ready")


def test_causes_are_taken_over() -> None:
    """What one collection knows is added to another, each thing once."""
    told, more = Causes(), Causes()
    for each in (told, more):
        each.member(causes.JOINED, "w3")
        each.add("follow-up")
    more.ready("copy", "0_1", "w1")
    told.absorb(more)
    assert str(told) == "follow-up; w3 joined; copy of 0_1 on w1 ready"


def test_the_gravest_names_the_generation() -> None:
    """Of several causes in one batch a death is what people look for."""
    told = Causes()
    told.member(causes.JOINED, "w3")
    told.member(causes.EXPIRED, "w1")
    told.add("config changed: max.warmup.replicas")
    assert kind_of(f"{told}; a warning of the assignor") == "expired"
