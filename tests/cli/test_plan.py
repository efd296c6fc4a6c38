"""`muster plan`: what a change would do to a live group."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.kafka.brokers import Topics
from support.state.snapshots import orders, pairs
from support.state.story import Story, config, join, leave

from muster.cli.main import main
from muster.documents.problem import as_text
from muster.errors import BadInput, NotFound
from muster.protocol import codec
from muster.protocol.errors import ConfigError
from muster.protocol.events import Join, Leave, Origin
from muster.protocol.ids import MemberId
from muster.protocol.records import (
    GroupSnapshot,
    GroupState,
    MemberEntry,
    MemberState,
    Quarantine,
)
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Connector, Subtopology
from muster.protocol.topics import TopicKind
from muster.state.group import Group, Recovery
from muster.state.machine import advance
from muster.whatif import planned


def calm(*holder: int, members: int = 2) -> GroupSnapshot:
    """A stable group whose task t is held by slot holder[t]; slot s is member W<s + 1>."""
    held = np.array(holder, dtype=np.int32)
    return replace(
        orders(),
        state=GroupState.STABLE,
        settings=parse_settings({}, "sticky"),
        tasks=(Subtopology("0", len(holder)),),
        members=tuple(
            MemberEntry(id=MemberId(f"W{s + 1}"), slot=s, incarnation=s) for s in range(members)
        ),
        target=held,
        holder=held,
        revoking=np.zeros(len(holder), dtype=np.bool_),
        destination=held,
        **dict.fromkeys(("target_standby", "standby", "standby_revoking"), pairs()),
        **dict.fromkeys(("target_learner", "learner"), pairs()),
        lags=np.empty((0, 3), dtype=np.int64),
        lag_ms=np.empty(0, dtype=np.int64),
    )


def ends(plan: dict[str, Any]) -> list[tuple[str, str | None, str | None]]:
    """Task, from and to of each move."""
    return [(m["task"], m["from"], m["to"]) for m in plan["moves"]]


def test_without_a_change_nothing_moves() -> None:
    """Without a change no task of a balanced group moves."""
    plan = planned(calm(0, 0, 1, 1))
    assert plan["moves"] == []
    assert plan["members"] == {
        "W1": {"active": ["0_0", "0_1"], "standby": [], "learner": [], "revoked": []},
        "W2": {"active": ["0_2", "0_3"], "standby": [], "learner": [], "revoked": []},
    }


def test_a_member_joins() -> None:
    """A new member gets its share with no further moves, and each move has a reason."""
    plan = planned(calm(0, 0, 0, 1, 1, 1), add=[{"id": "W3"}])
    assert sorted(to for _, _, to in ends(plan)) == ["W3", "W3"]
    assert {source for _, source, _ in ends(plan)} == {"W1", "W2"}
    assert all(move["reason"] for move in plan["moves"])
    assert plan["score"]["moved"] == 2
    assert len(plan["members"]["W3"]["active"]) == 2


def test_a_member_that_joins_to_be_emptied_gets_nothing() -> None:
    """A member that is added with `draining` gets no tasks."""
    plan = planned(calm(0, 0, 0, 1, 1, 1), add=[{"id": "W3", "draining": True}])
    assert (plan["moves"], plan["members"]["W3"]["active"]) == ([], [])


def test_a_member_leaves() -> None:
    """The tasks of a removed member go to the others, which keep what they have."""
    plan = planned(calm(0, 0, 1, 1, 2, 2, members=3), remove=["W3"])
    assert set(plan["members"]) == {"W1", "W2"}
    assert sorted((task, source) for task, source, _ in ends(plan)) == [
        ("0_4", "W3"),
        ("0_5", "W3"),
    ]
    assert {move["reason"] for move in plan["moves"]} == {"W3 left"}
    assert {"0_0", "0_1"} < set(plan["members"]["W1"]["active"])
    columns, values = (line.split() for line in as_text(plan).splitlines()[-2:])
    score = dict(zip(columns, values, strict=True))
    assert (score["MOVES"], score["FROM-STAYING"]) == ("2", "0")  # no remaining member loses a task


def test_tasks_and_settings_change() -> None:
    """New tasks are placed, removed tasks are dropped, and a new setting counts."""
    more = planned(calm(0, 1), tasks=[{"subtopology": "0", "partitions": 4}])
    assert [(source, to is None) for _, source, to in ends(more)] == [(None, False)] * 2
    fewer = planned(calm(0, 0, 1, 1), tasks=[{"subtopology": "0", "partitions": 2}])
    held = [t for m in fewer["members"].values() for t in m["active"]]
    assert sorted(held) == ["0_0", "0_1"]
    stateful = replace(calm(0, 1), tasks=(Subtopology("0", 2, stateful=True),))
    copies = planned(stateful, config={"num.standby.replicas": 1})
    assert [m["standby"] for m in copies["members"].values()] == [["0_1"], ["0_0"]]


def test_plan_says_that_a_change_moves_nothing() -> None:
    """A setting that the assignor does not use, and a useless --static, give a warning."""
    plan = planned(
        calm(0, 1), config={"max.warmup.replicas": 3}, add=[{"id": "W3", "static": ["0_1"]}]
    )
    assert plan["warnings"] == [
        "max.warmup.replicas is ignored: sticky does not use it (used by: high-availability)",
        "--static of W3 is ignored: sticky pins nothing (static does)",
    ]
    copies = planned(calm(0, 1), config={"num.standby.replicas": 1})
    assert copies["warnings"] == [
        'num.standby.replicas is ignored: it counts only where a task is "stateful": true'
    ]
    assert "warnings" not in planned(calm(0, 1), config={"max.warmup.replicas": 2})


def test_plan_says_that_a_group_is_quarantined() -> None:
    """The coordinator takes no event of it, so nothing of the plan happens before its release."""
    aside = replace(calm(0, 1), quarantine=Quarantine(1_000, "it took more than 60 s of CPU time"))
    plan = planned(aside, remove=["W2"])
    assert len(plan["moves"]) == 1
    (warning,) = plan["warnings"]
    assert warning.startswith("group 'orders' is quarantined, and its events become dead letters")
    assert warning.endswith("then: muster groups release --group orders")


def test_an_assignor_that_the_group_names() -> None:
    """The error does not name an option that was not given."""
    group = replace(calm(0, 1), assignor="places.of_ours:Mine")
    with pytest.raises(BadInput, match=r"^assignor 'places.of_ours:Mine' is code that a record"):
        planned(group, trusts_assignor=True)
    with pytest.raises(BadInput, match=r"^--assignor: assignor 'no.such:Best'"):
        planned(group, assignor="no.such:Best", trusts_assignor=True)


def test_the_assignor_sees_what_members_hold() -> None:
    """Draining, learners and revocations in the record affect the plan."""
    drained = calm(0, 0, 1, 1)
    first, second = drained.members
    drained = replace(drained, members=(replace(first, draining=True), second))
    assert planned(drained)["members"]["W1"]["active"] == []
    plan = planned(orders())  # W2 restores 0_1, which W1 still runs
    assert "0_1" in plan["members"]["W2"]["active"] + plan["members"]["W1"]["active"]
    unrevoked = replace(first, state=MemberState.UNREVOKED)
    moving = replace(
        calm(0, 0, 0, 1),
        members=(unrevoked, second),
        revoking=np.array([True, False, False, False]),
    )
    assert ends(planned(moving)) == [("0_0", "W1", "W2")] or len(ends(planned(moving))) == 1


def test_the_plan_is_what_then_happens() -> None:
    """Given the same events, the coordinator places every task as the plan said."""
    record = calm(0, 0, 0, 1, 1, 1)
    promised = planned(record, add=[{"id": "W3", "rack": "r1"}], remove=["W1"])
    at = Origin("muster.membership", 0, 1, record.clock_ms + 1)
    group = Group.recover(record)
    group = replace(group, recovery=Recovery(floor=group.recovery.floor), coordinator_epoch=3)
    events = [
        Leave(group=record.group, member=MemberId("W1"), incarnation=0, origin=at),
        Join(
            group=record.group,
            member=MemberId("W3"),
            incarnation=7,
            rack="r1",
            origin=at._replace(offset=2),
        ),
    ]
    after = advance(group, events, coordinator_epoch=3).group.snapshot()
    name = {m.slot: m.id for m in after.members}
    placed: dict[str, list[str]] = {m.id: [] for m in after.members}
    for task, slot in enumerate(after.target.tolist()):
        placed[name[slot]].append(f"0_{task}")
    assert {m: held["active"] for m, held in promised["members"].items()} == placed
    assert ends(promised) == [(m.task, m.from_member, m.to_member) for m in after.moves]
    assert [m["reason"] for m in promised["moves"]] == [m.reason for m in after.moves]


@pytest.mark.parametrize("stays", [(), ("W3",)], ids=["every worker", "all but one"])
def test_work_waits_in_a_plan_as_it_does_in_the_group(stays: tuple[str, ...]) -> None:
    """New workers start every job at once if no old one stays; else the lost jobs wait (S3-F10)."""
    story = Story()
    settings = {"scheduled_rebalance_max_delay_ms": 60_000}
    old = ("W1", "W2", *stays)
    story.take(config(Connector("c", 4), assignor="cooperative", **settings), *map(join, old))
    plan = planned(story.group.snapshot(), add=[{"id": "W4"}], remove=["W1", "W2"])
    after = story.take(leave("W1"), leave("W2"), join("W4")).group.snapshot()
    assert plan["delay_ms"] == (60_000 if stays else 0)
    assert len(plan["members"]["W4"]["active"]) == (0 if stays else 5)
    assert ends(plan) == [(m.task, m.from_member, m.to_member) for m in after.moves]
    assert [m["reason"] for m in plan["moves"]] == [m.reason for m in after.moves]


def test_a_change_that_cannot_be() -> None:
    """Unknown or duplicate members and wrong settings or tasks are named in the error."""
    group = calm(0, 1)
    with pytest.raises(NotFound, match="no member 'W9' in the group; there are: W1, W2"):
        planned(group, remove=["W9"])
    with pytest.raises(NotFound, match="there are: none"):
        planned(replace(group, members=()), remove=["W9"])
    with pytest.raises(BadInput, match="'W1' cannot join"):
        planned(group, add=[{"id": "W1"}])
    with pytest.raises(ConfigError, match=r"no\.such"):
        planned(group, config={"no.such": "1"})
    with pytest.raises(BadInput, match=r"tasks\[0\]\.partitions"):
        planned(group, tasks=[{"subtopology": "0"}])
    with pytest.raises(BadInput, match="assignor 'best'"):
        planned(group, assignor="best")


@pytest.mark.broker
def test_plan_reads_and_changes_nothing(
    kafka: Topics, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The command reads the group from its topic, answers in both formats and writes nothing."""
    encoded = codec.encode(calm(0, 0, 1, 1))
    kafka.write_raw(TopicKind.GROUPS, encoded.key, encoded.value)
    before = [kafka.end(kind) for kind in TopicKind]
    member = tmp_path / "member.json"
    member.write_text('{"id": "W3", "capacity": 2}')
    words = ["plan", "--group", "orders", "--add-member", str(member)]
    words += ["--bootstrap-server", kafka.address, "--topic-prefix", kafka.prefix]
    assert main([*words, "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan == planned(calm(0, 0, 1, 1), add=[{"id": "W3", "capacity": 2}])
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "TASK ROLE   FROM TO REASON" in shown
    member.write_text('{"id": "W3", "capacity": 0}')
    assert main(words) == 2
    assert f"{member}: member.capacity: 0; expected a whole" in capsys.readouterr().err
    member.write_text("[]")
    assert main(words) == 2
    assert "expected a member" in capsys.readouterr().err
    assert [kafka.end(kind) for kind in TopicKind] == before
