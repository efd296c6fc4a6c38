"""`muster plan` leaves out the members that the coordinator's placements leave out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.state.story import Story, config, join, leave, report, tick

from muster.console import plans
from muster.console.plans import Question, plan_json
from muster.documents.problem import as_text
from muster.protocol.codec import decode_record, encode
from muster.protocol.events import Drain
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TopicKind
from muster.whatif import planned

QUICK = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 600}


def started(assignor: str, *, stateful: bool = False, **settings: object) -> Story:
    """W1, W2 and W3 have three of nine tasks each."""
    story = Story()
    unit = Subtopology("0", 9, stateful=stateful)
    members = [join(f"W{n}") for n in (1, 2, 3)]
    story.take(config(unit, assignor=assignor, **QUICK, **settings), *members)
    story.at(10)
    for member, tasks in held(story).items():
        story.take(report(member, 1, *tasks))
    return story


def drain(member: str) -> Drain:
    """The order to drain a member."""
    return Drain(group=GroupId("g"), member=MemberId(member))


def newest(story: Story) -> GroupSnapshot:
    """The group's record as a reader has it."""
    encoded = encode(story.group.snapshot())
    record = decode_record(TopicKind.GROUPS, encoded.key, encoded.value)
    assert isinstance(record, GroupSnapshot)
    return record


def held(story: Story) -> dict[str, list[str]]:
    """Member → the actives that the coordinator's newest placement gives it."""
    record = story.group.snapshot()
    return {
        member.id: [
            f"0_{t}" for t, slot in enumerate(record.target.tolist()) if slot == member.slot
        ]
        for member in record.members
    }


def drained(assignor: str) -> Story:
    """W2 is draining."""
    story = started(assignor)
    story.at(100).take(drain("W2"))
    return story


def drained_for_long(assignor: str) -> Story:
    """W2 was drained for `scale.down.timeout.ms`, and its tasks went to members without copies."""
    story = started(assignor, stateful=True, scale_down_timeout_ms=5_000)
    story.at(100).take(drain("W2"))
    story.at(5_200).take(tick())
    return story


def all_drained(assignor: str) -> Story:
    """All are drained, W1 for `scale.down.timeout.ms`: the others keep what they have."""
    story = started(assignor, scale_down_timeout_ms=5_000)
    story.at(100).take(drain("W1"))
    story.at(3_000).take(drain("W2"), drain("W3"))
    story.at(5_200).take(tick())
    return story


def fenced(assignor: str) -> Story:
    """W2 was fenced because it did not release a task in time; it has the others still."""
    story = started(assignor)
    story.at(100).take(drain("W2"))
    for at_ms in range(500, 3_000, 400):
        story.at(at_ms).take(tick())
    story.take(Drain(group=GroupId("g"), member=MemberId("W2"), on=False))
    return story


LONG = "drained for scale.down.timeout.ms"


@pytest.mark.parametrize("assignor", ["sticky", "high-availability"])
@pytest.mark.parametrize(
    ("happens", "left_out"),
    [
        (drained, {}),
        (drained_for_long, {"W2": LONG}),
        (all_drained, {"W1": LONG}),
        (fenced, {"W2": "fenced"}),
    ],
)
def test_without_a_change_it_says_what_the_coordinator_placed(
    happens: Callable[[str], Story], left_out: dict[str, str], assignor: str
) -> None:
    """No task moves, every member has what it has, and the output names who is left out."""
    story = happens(assignor)
    plan = planned(newest(story))
    assert plan.get("left_out", {}) == left_out
    placed = {m: tasks for m, tasks in held(story).items() if m not in left_out}
    assert {m: row["active"] for m, row in plan["members"].items()} == placed
    assert plan["moves"] == []
    assert plan["unassigned"] == []
    assert not any(held(story)[m] for m in left_out)


@pytest.mark.parametrize("happens", [drained, drained_for_long, all_drained, fenced])
def test_a_change_gives_them_nothing_either(happens: Callable[[str], Story]) -> None:
    """W3 leaves: what the coordinator does then is what was planned, move by move."""
    story = happens("sticky")
    plan = planned(newest(story), remove=["W3"])
    story.now_ms += 50
    story.take(leave("W3"))
    after = story.group.snapshot()
    placed = {m: tasks for m, tasks in held(story).items() if m in plan["members"]}
    assert {m: row["active"] for m, row in plan["members"].items()} == placed
    assert [(m["task"], m["from"], m["to"], m["reason"]) for m in plan["moves"]] == [
        (m.task, m.from_member, m.to_member, m.reason) for m in after.moves
    ]


def test_all_outputs_say_so() -> None:
    """The table has a section for them, and the page a line."""
    record = newest(fenced("sticky"))
    rows = [line.split() for line in as_text(planned(record)).splitlines()]
    assert rows[rows.index(["LEFT-OUT", "WHY"]) + 1] == ["W2", "fenced"]
    page = plan_json(record, Question(), at_ms=0)
    assert page["warnings"] == ["W2 gets no task: fenced"]
    assert "left_out" not in planned(newest(started("sticky")))


def test_a_member_may_join_to_be_left_out() -> None:
    """`--add-member` with `draining`, where a drain takes no time: the member gets nothing."""
    record = newest(started("sticky", scale_down_timeout_ms=0))
    plan = planned(record, add=[{"id": "W4", "draining": True}])
    assert plan["left_out"] == {"W4": LONG}
    assert plan["moves"] == []


def test_the_page_names_a_few_of_many() -> None:
    """Of 100 members without a task it names twenty, and counts the others."""
    lines = plans._idle({f"W{number}": "fenced" for number in range(100)})
    assert lines[0] == "W0 gets no task: fenced"
    assert lines[plans.IDLE_SHOWN :] == ["80 more members get no task"]
    assert plans._idle({"W1": "fenced"}) == ["W1 gets no task: fenced"]
