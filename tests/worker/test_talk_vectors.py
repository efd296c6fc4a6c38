"""The session reacts to records as `protocol/vectors/talk.json` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.protocol.codec import decode_record
from muster.protocol.events import Join, Report
from muster.protocol.ids import Role
from muster.protocol.records import MemberAssignment, MemberGone
from muster.protocol.settings import Settings
from muster.protocol.tasks import TaskSet
from muster.protocol.topics import TopicKind
from muster.worker.lease import lease_until_ms
from muster.worker.session import Session
from muster.worker.session_messages import (
    Acknowledged,
    AllStopped,
    Assigned,
    Begin,
    CaughtUp,
    Lose,
    Read,
    Released,
    Send,
)

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "protocol" / "vectors" / "talk.json"
NOW_MS = 1_000_000


def test_the_pages_give_the_length_of_a_lease() -> None:
    """The pages have the lease of the default session timeout, as the formula computes it."""
    lease_ms = lease_until_ms(0, Settings().session_timeout_ms)
    assert f"44,550 − 3,000 = {lease_ms:,}." in (ROOT / "protocol" / "GRAMMAR.md").read_text()
    assert f"({lease_ms / 1000:g} s with the default" in (ROOT / "docs" / "worker.md").read_text()


@pytest.mark.parametrize("talk", json.loads(VECTORS.read_text()), ids=lambda talk: talk["name"])
def test_a_talk(talk: dict[str, Any]) -> None:
    """After each step: whether the record was obeyed and reported, the holding and its digest."""
    session = Session(Join(group="fleet", member="W1", incarnation=0), seed=1)
    given = session.step(Begin(), NOW_MS)
    for step in talk["steps"]:
        session.incarnation = int(step["incarnation"], 16)
        for sent in given:
            if isinstance(sent, Send):
                session.step(Acknowledged(sent), NOW_MS)
        session.step(CaughtUp(NOW_MS), NOW_MS)
        if "stopped" in step:
            ((role, tasks),) = step["stopped"].items()
            given = session.step(Released(Role[role.upper()], TaskSet.of(tasks)), NOW_MS)
        else:
            value = None if step["read"] is None else bytes.fromhex(step["read"])
            record = decode_record(TopicKind.ASSIGNMENTS, talk["key"].encode(), value)
            assert isinstance(record, MemberAssignment | MemberGone)
            given = session.step(Read(record), NOW_MS)
            assert any(isinstance(each, Assigned | Lose) for each in given) == step["obeyed"]
        reports = [s.event for s in given if isinstance(s, Send) and isinstance(s.event, Report)]
        assert len(reports) == step["report"]
        holding = session.holding
        sets = {name: sorted(map(str, getattr(holding, name))) for name in step["held"]}
        assert sets == {name: sorted(tasks) for name, tasks in step["held"].items()}
        assert f"{holding.digest():016x}" == step["digest"]
        assert all(report.holding == holding for report in reports)
        if any(isinstance(each, Lose) for each in given):
            given = session.step(AllStopped(), NOW_MS)
