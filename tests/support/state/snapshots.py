"""A published group for tests: two members, five tasks, one of which moves."""

from __future__ import annotations

import numpy as np

from muster.protocol.ids import GroupId, MemberId, Role
from muster.protocol.records import GroupSnapshot, GroupState, MemberEntry, MemberState, Move
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Connector, Subtopology


def pairs(*rows: tuple[int, int]) -> np.ndarray:
    """(task index, slot) rows."""
    return np.array(rows, dtype=np.int32).reshape(-1, 2)


def orders(generation: int = 7, cause: str = "W2 joined") -> GroupSnapshot:
    """Group orders: W1 (slot 0) releases 0_1, W2 (slot 2) restores it; c1-0 has no owner."""
    return GroupSnapshot(
        group=GroupId("orders"),
        coordinator_epoch=3,
        generation=generation,
        target_generation=generation,
        state=GroupState.RECONCILING,
        assignor="sticky",
        settings=parse_settings({"num.standby.replicas": 1}, "sticky"),
        tasks=(Subtopology("0", 3, stateful=True), Connector("c1", 1)),
        members=(
            MemberEntry(
                id=MemberId("W1"),
                slot=0,
                incarnation=11,
                rack="r0",
                epoch=7,
                state=MemberState.UNREVOKED,
            ),
            MemberEntry(
                id=MemberId("W2"), slot=2, incarnation=12, instance_id="i2", capacity=2, epoch=6
            ),
        ),
        target=np.array([0, 2, 2, 0, -1], dtype=np.int32),
        holder=np.array([0, 0, 2, 0, -1], dtype=np.int32),
        revoking=np.array([False, True, False, False, False]),
        destination=np.array([0, 2, 2, 0, -1], dtype=np.int32),
        target_standby=pairs((0, 2)),
        standby=pairs((0, 2), (2, 0)),
        standby_revoking=pairs((2, 0)),
        target_learner=pairs((1, 2)),
        learner=pairs((1, 2)),
        lags=np.array([[1, 2, 40]], dtype=np.int64),
        lag_ms=np.array([900], dtype=np.int64),
        moves=(
            Move(task="0_1", role=Role.ACTIVE, from_member="W1", to_member="W2", reason="balance"),
            Move(task="0_0", role=Role.STANDBY, from_member=None, to_member="W2", reason="copy"),
        ),
        cause=cause,
        clock_ms=1_000,
    )
