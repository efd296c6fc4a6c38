"""Hands a group back, wherever its governor runs: the governor is removed from the group.

A governor that is removed within its session knows that an operator did it, and ends.
"""

from __future__ import annotations

from muster.adopt.examine import governors
from muster.errors import NotFound
from muster.kafka import groups
from muster.kafka.protocol_client import connected
from muster.kafka.settings import ClientSettings


def release(clients: ClientSettings, group: str) -> str:
    """Remove the governors of a group; returns a line that says so.

    Raises:
        NotFound: there is no such group, or no governor in it.
        Refused, Unreachable: of Kafka.
    """
    from kafka.admin import MemberToRemove

    with connected(clients) as client:
        [described] = groups.describe_with(client, [group])
        there = governors(described)
        if not there:
            raise NotFound(f"no governor is in group {group!r}")
        client.remove_group_members(
            group, [MemberToRemove(group_instance_id=instance) for instance in there]
        )
    return f"{group}: handed back by {', '.join(there)}"
