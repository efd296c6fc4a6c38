"""A record that an older coordinator wrote over this job's is published again."""

from __future__ import annotations

from dataclasses import replace

from support.state.snapshots import orders

from muster.protocol.events import Mark
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot
from muster.streams.observability.late_records import LateRecords

P = "muster"
OWN = 7


def record(epoch: int, group: str = "g") -> GroupSnapshot:
    """A group as the coordinator of an epoch published it."""
    return replace(orders(), group=GroupId(group), coordinator_epoch=epoch)


def test_late_is_an_older_coordinator_behind_us() -> None:
    """A record of an older epoch is late once this job has published that group, not before."""
    again: list[tuple[str, GroupId, Mark]] = []
    late = LateRecords({P: OWN}, lambda *asked: again.append(asked))
    older, ours, later = record(OWN - 1), record(OWN), record(OWN + 1)
    assert [late.overrules(P, each) for each in (older, older, ours, older, ours)] == [
        0,
        0,
        0,
        1,
        0,
    ]
    assert again == [(P, GroupId("g"), Mark(OWN - 1, 0))]
    assert not late.overrules(P, record(OWN - 1, group="h"))
    assert not late.overrules("other", older)
    assert [late.overrules(P, each) for each in (later, older)] == [0, 0]  # not ours to overrule


def test_a_group_that_is_gone_is_forgotten() -> None:
    """After the group's record was deleted, another coordinator's record begins anew."""
    late = LateRecords({P: OWN}, lambda *_: None)
    late.overrules(P, record(OWN))
    late.gone(P, GroupId("g"))
    assert not late.overrules(P, record(OWN - 1))
