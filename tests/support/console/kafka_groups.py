"""Groups of Kafka's own as Kafka describes them, for the console's tests."""

from __future__ import annotations

from muster.discovery.topics import Topic
from muster.kafka.groups import Description, Kind, Member, Partition
from muster.shadow.group_reader import ShadowedGroup


def consumer(name: str, *numbers: int) -> Member:
    """A consumer of `orders` with these partitions."""
    return Member(
        id=f"{name}-1",
        instance_id=name,
        client_id="app",
        host="10.0.0.1",
        topics=("orders",),
        assigned=frozenset(Partition("orders", number) for number in numbers),
    )


def seen(
    at_ms: int, *members: Member, state: str = "Stable", name: str = "shop", topic_id: str = "id"
) -> ShadowedGroup:
    """The group `shop` as Kafka describes it: four partitions."""
    described = Description(name, Kind.CLASSIC, state, "range", None, members)
    return ShadowedGroup(
        described, {"orders": Topic("orders", topic_id, ((),) * 4, (None,) * 4)}, at_ms=at_ms
    )
