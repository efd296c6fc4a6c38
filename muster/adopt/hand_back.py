"""Hands a group back: removes its governor from the group, wherever the governor runs.

A governor that is removed before its session ends knows that an operator removed it, and stops.
"""

from __future__ import annotations

from muster.adopt.eligibility import governors
from muster.errors import NotFound
from muster.kafka import groups
from muster.kafka.protocol_client import connected
from muster.kafka.settings import ClientSettings


def release(clients: ClientSettings, group: str) -> str:
    """Remove the governors of a group; return a line that names them.

    Raises:
        NotFound: there is no such group, or no governor in it.
        Refused, Unreachable: of Kafka.
    """
    from kafka.admin import MemberToRemove

    with connected(clients) as client:
        [described] = groups.describe_with(client, [group])
        instance_ids = governors(described)
        if not instance_ids:
            raise NotFound(f"no governor is in group {group!r}")
        client.remove_group_members(
            group, [MemberToRemove(group_instance_id=instance) for instance in instance_ids]
        )
    return f"{group}: handed back by {', '.join(instance_ids)}"
