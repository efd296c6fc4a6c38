"""One Connect group under two leaders, Kafka's and muster's, compared round by round."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from support.assignor.connect_history import History, Round
from support.assignor.kafka_assignors import Kafka

from muster.assignor.model import NO_MEMBER, GroupView, Pairs, group_view
from muster.assignor.registry import get
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Connector, TaskTable

ROUNDS = 25
NEWEST = 7
"""The config offset that all workers have read."""


def view_of(asked: Round, memory: Mapping[str, object] | None) -> GroupView:
    """The round as muster's assignor sees it, without jobs that are no longer configured."""
    problem = asked.problem
    tasks = TaskTable([Connector(t["connector"], t["tasks"]) for t in problem["tasks"]])
    members = tuple(m["id"] for m in problem["members"])
    owner = np.full(len(tasks), NO_MEMBER, dtype=np.int32)
    place = np.zeros(len(tasks), dtype=np.int32)
    more: list[tuple[int, int]] = []
    for number, member in enumerate(problem["members"]):
        for position, printed in enumerate(member["active"]):
            task = tasks.index(printed)
            if task is None:
                continue
            if owner[task] == NO_MEMBER:
                owner[task], place[task] = number, position
            else:
                more.append((task, number))
    columns = np.array(more, dtype=np.int32).reshape(-1, 2)
    return group_view(
        tasks=tasks,
        settings=parse_settings(problem["config"], "cooperative"),
        members=members,
        active=owner,
        also_active=Pairs.of(columns[:, 0], columns[:, 1]),
        report_order=place,
        now_ms=problem["now_ms"],
        memory=memory,
        whole_generation=asked.delivered,
        config_offsets=np.full(len(members), NEWEST),
        config_offset=NEWEST - asked.mismatch,
    )


class Leader:
    """muster's leader and its memory, which survives JSON."""

    def __init__(self) -> None:
        self.memory: Mapping[str, object] | None = None

    def answer(self, asked: Round) -> dict[str, Any]:
        """For each worker what it has to run and to stop; and the delay."""
        view = view_of(asked, None if asked.new_leader else self.memory)
        placement = get("cooperative").assign(view)
        self.memory = json.loads(json.dumps(placement.memory))
        named = [str(view.tasks.task(i)) for i in range(len(view.tasks))]
        by_worker = {w: {"active": set(), "revoked": set()} for w in view.members}
        for task, member in enumerate(placement.active.tolist()):
            if member != NO_MEMBER:
                by_worker[view.members[member]]["active"].add(named[task])
        for task, member in zip(placement.revoked.task, placement.revoked.member, strict=True):
            by_worker[view.members[member]]["revoked"].add(named[task])
        return {"members": by_worker, "delay_ms": placement.delay_ms}


def kafkas(answer: Mapping[str, Any], asked: Round) -> dict[str, Any]:
    """Kafka's answer in the same form, about configured tasks only.

    Where nothing changes Kafka goes on listing what two workers claim for both.
    """
    first: dict[str, str] = {}
    for member in asked.problem["members"] if asked.mismatch else ():
        for task in member["active"]:
            first.setdefault(task, member["id"])
    configured = {
        name
        for unit in asked.problem["tasks"]
        for name in (
            unit["connector"],
            *(f"{unit['connector']}-{n}" for n in range(unit["tasks"])),
        )
    }
    members = {
        worker: {
            kind: {t for t in held[kind] if t in configured and first.get(t, worker) == worker}
            for kind in ("active", "revoked")
        }
        for worker, held in answer["members"].items()
    }
    return {"members": members, "delay_ms": answer["delay_ms"]}


def compare(kafka: Kafka, seed: int, faults: bool) -> None:
    """Play one life; print all of it if the two leaders disagree."""
    history, leader = History(seed, faults), Leader()
    story: list[str] = []
    session = f"{seed}/{faults}/0"
    for number in range(ROUNDS):
        asked = history.next()
        if asked.new_leader:
            session = f"{seed}/{faults}/{number}"
        answer = kafka.ask(
            "cooperative-wire",
            {
                **asked.problem,
                "members": [{**m, "config_offset": NEWEST} for m in asked.problem["members"]],
            },
            session=session,
            delivered=asked.delivered,
            config_offset=NEWEST - asked.mismatch,
        )
        theirs, mine = kafkas(answer, asked), leader.answer(asked)
        story.append(
            f"round {number}: {asked.cause}; delivered={asked.delivered} "
            f"new_leader={asked.new_leader} mismatch={asked.mismatch}"
            f"\n  {json.dumps(asked.problem)}"
            f"\n  kafka {theirs}\n  ours  {mine}"
        )
        assert mine == theirs, f"seed {seed}, faults {faults}\n" + "\n".join(story[-3:])
        history.apply(answer)
