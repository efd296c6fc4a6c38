"""State that another version of muster stored: the group continues and no task moves.

Each file in ``tests/golden/state/`` holds, for groups in many situations, the liveness and snapshot
bytes that one version stored, and their meaning. A file never changes; a new liveness format adds a
file (`support.streams.kept_groups` writes it).
"""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from support.streams.kept_groups import MOMENTS, KeptGroup
from support.streams.kept_groups import record as record_moments
from support.streams.operator import LANE, G, Operator, config, join, nothing_in_memory

from muster.protocol.events import Heartbeat, Join, Tick
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupState, MemberAssignment
from muster.streams.batch import stored_values
from muster.streams.batch.stored_values import Stored

pytestmark = pytest.mark.usefixtures("nothing_in_memory")
__all__ = ["nothing_in_memory"]

FOLDER = Path(__file__).parent.parent / "golden" / "state"
KEPT = [
    pytest.param(moment, id=f"{file.stem}, {moment['name']}")
    for file in sorted(FOLDER.glob("*.json"))
    for moment in json.loads(file.read_text())
]
LATER = 1_000_000
"""Offset of the events after the upgrade."""


def upgraded(moment: dict[str, Any], liveness: bytes | None = None) -> KeptGroup:
    """A stored group under a coordinator that starts later."""
    kept = b64decode(moment["liveness"]) if liveness is None else liveness
    stored = Stored(kept, b64decode(moment["snapshot"]))
    group = KeptGroup(GroupId(moment["key"]), stored, moment["clock_ms"], LATER)
    group.epoch = 60
    return group


def goes_on(group: KeptGroup, moment: dict[str, Any]) -> None:
    """Check that members and tasks stay, that releases complete and that a new member joins."""
    group.take(Tick(group=group.group))
    # After two wrong digests the coordinator asks, so members that owe a release report it.
    for entry in 2 * group.snapshot.members:
        group.take(Heartbeat(group=group.group, member=entry.id, epoch=entry.epoch, digest=1))
    assert group.members() == moment["members"]
    if moment["state"] in ("Stable", "Empty"):
        assert group.holders() == moment["holders"]
    else:  # the member that was asked to release its task has done so
        assert group.holders().keys() == moment["holders"].keys()
        assert group.snapshot.state is GroupState.STABLE
    generation = group.snapshot.generation
    group.take(Join(group=group.group, member=MemberId("W9"), incarnation=99))
    assert group.members() == [*moment["members"], "W9"]
    assert group.snapshot.generation > generation


@pytest.mark.parametrize("moment", KEPT)
def test_goes_on_from_what_another_version_stored(moment: dict[str, Any]) -> None:
    """Each stored moment can be read, and its group continues."""
    goes_on(upgraded(moment), moment)


@pytest.mark.parametrize("moment", KEPT)
@pytest.mark.parametrize("place", ["the job's part", "the core's part"])
def test_goes_on_from_a_liveness_that_cannot_be_read(moment: dict[str, Any], place: str) -> None:
    """If the liveness has an unknown format (a rollback), members without instance id are asked."""
    liveness = bytearray(b64decode(moment["liveness"]))
    liveness[0 if place == "the job's part" else stored_values.HEADER.size] = 250
    group = upgraded(moment, bytes(liveness))
    goes_on(group, moment)
    asked = {r.member for r in group.published if isinstance(r, MemberAssignment) and r.report}
    away = {m.id for m in group.snapshot.members if m.instance_id is not None}
    assert {MemberId(name) for name in moment["members"]} - away <= asked


def test_a_liveness_that_cannot_be_read_shortens_no_session() -> None:
    """Heartbeats that the job before has read are lost with it, and leases follow from them."""
    settings = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 2_000}
    before = Operator()
    before.feed(1_000, config(settings=settings), join())
    liveness = bytearray(before.stored(LANE)[0] or b"")
    liveness[stored_values.HEADER.size] = 250
    before.tester.updateValueState("liveness", LANE, (bytes(liveness),))
    operator = Operator(epoch=8)
    operator.goes_on(before, LANE)
    members = []
    for silent_ms in (0, 4_000, 8_000, 9_999, 10_000):
        operator.feed(90_000 + silent_ms, Tick(group=G))
        record = Stored(*operator.stored(LANE)).record(G)
        members.append(record is not None and len(record.members))
    assert members == [1, 1, 1, 1, 0]


def test_the_newest_file_is_of_this_version(tmp_path: Path) -> None:
    """The newest file has the liveness format of this version and contains every moment."""
    newest = sorted(FOLDER.glob("*.json"))[-1]
    record_moments(tmp_path / "now")
    formats = [
        {
            moment["name"]: b64decode(moment["liveness"])[stored_values.HEADER.size]
            for moment in moments
        }
        for moments in (json.loads(file.read_text()) for file in (newest, tmp_path / "now"))
    ]
    assert formats[0] == formats[1]
    assert set(formats[0]) == set(MOMENTS)
    assert newest.stem == f"liveness-{formats[0]['stable']}"
