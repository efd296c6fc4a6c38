"""The text of causes, and their kinds."""

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
        (causes.UNDRAINED, "undrained"),
    ],
)
@pytest.mark.parametrize("members", [("w1",), ("w1", "w2", "w3", "w4", "w5")])
def test_every_cause_of_a_member_has_its_kind(
    what: str, kind: str, members: tuple[str, ...]
) -> None:
    """`kind_of` recognises every text of `Causes` about one or many members."""
    collected = Causes()
    for member in members:
        collected.member(what, member)
    assert kind_of(str(collected)) == kind


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
def test_every_cause_of_the_group_has_its_kind(text: str, kind: str) -> None:
    """Every group text of `state` has a kind; an unknown one is "other"."""
    collected = Causes()
    if text:
        collected.add(text)
    assert kind_of(str(collected)) == kind


def test_copies_that_caught_up() -> None:
    """One ready copy, or several, of one kind or of many."""
    collected = Causes()
    collected.ready("learner", "0_1", "w1")
    assert (str(collected), kind_of(str(collected))) == ("learner of 0_1 on w1 ready", "ready")
    collected.ready("learner", "0_2", "w2")
    assert (str(collected), kind_of(str(collected))) == ("2 learners on w1, w2 ready", "ready")
    collected.ready("standby", "0_3", "w2")
    assert (str(collected), kind_of(str(collected))) == ("3 copies on w1, w2 ready", "ready")


def test_causes_are_added_to_causes() -> None:
    """One collection is added to another, each entry once."""
    collected, more = Causes(), Causes()
    for each in (collected, more):
        each.member(causes.JOINED, "w3")
        each.add("follow-up")
    more.ready("copy", "0_1", "w1")
    collected.absorb(more)
    assert str(collected) == "follow-up; w3 joined; copy of 0_1 on w1 ready"


def test_an_expiry_names_the_kind() -> None:
    """Of several causes in one batch, an expiry names the kind."""
    collected = Causes()
    collected.member(causes.JOINED, "w3")
    collected.member(causes.EXPIRED, "w1")
    collected.add("config changed: max.warmup.replicas")
    assert kind_of(f"{collected}; a warning of the assignor") == "expired"
