"""Builds the requests that a governor sends to its group's coordinator in Kafka. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

from muster.adopt.model import Message, Options

WHY: Final = "muster adopt"
"""Reason of a join or a leave in the broker's log (KIP-800)."""


def join(options: Options, member: str, offers: Sequence[tuple[str, bytes]]) -> Message:
    """Join the group under every protocol in `offers`; an empty `member` = it has no id yet."""
    return JoinGroupRequest(
        group_id=options.group,
        session_timeout_ms=options.session_timeout_ms,
        rebalance_timeout_ms=options.session_timeout_ms,
        member_id=member,
        group_instance_id=options.instance_id,
        protocol_type=str(options.kind),
        protocols=[
            JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
            for name, metadata in offers
        ],
        reason=WHY,
    )


def sync(
    options: Options, member: str, generation: int, protocol: str, answers: Mapping[str, bytes]
) -> Message:
    """Answer the members, by member id; without answers, ask for our own, as a follower does."""
    return SyncGroupRequest(
        group_id=options.group,
        generation_id=generation,
        member_id=member,
        group_instance_id=options.instance_id,
        protocol_type=str(options.kind),
        protocol_name=protocol,
        assignments=[
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=each, assignment=answer)
            for each, answer in answers.items()
        ],
    )


def beat(options: Options, member: str, generation: int) -> Message:
    """Stay in the group; the broker's response says whether the group rebalances."""
    return HeartbeatRequest(
        group_id=options.group,
        generation_id=generation,
        member_id=member,
        group_instance_id=options.instance_id,
    )


def leave(options: Options, members: Mapping[str, str | None]) -> Message:
    """Let members leave: member id → instance id; None = it is not needed."""
    return LeaveGroupRequest(
        group_id=options.group,
        members=[
            LeaveGroupRequest.MemberIdentity(
                member_id=member, group_instance_id=instance_id, reason=WHY
            )
            for member, instance_id in members.items()
        ],
    )


def look(options: Options) -> Message:
    """Ask who the members are."""
    return DescribeGroupsRequest(groups=[options.group], include_authorized_operations=False)
