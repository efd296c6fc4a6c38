"""When the coordinator was last seen: the timestamp of the newest record that it has written.

While a group has members, the coordinator moves the group's wake-up at least once per step
(`state.deadlines.step_of`). If its newest record is older than a step and some batches, it is gone,
frozen or far behind.
"""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from muster.kafka.cluster import TIMEOUT_S, admin, failures_named
from muster.kafka.settings import ClientSettings
from muster.output import ago
from muster.protocol.records import GroupSnapshot
from muster.protocol.topics import TopicKind, topic_name
from muster.state.deadlines import step_of

ANSWER_MS = 5_000
"""Longest time from a due wake-up to the coordinator's next record, on a slow machine."""
WRITTEN = (
    TopicKind.COORDINATOR,
    TopicKind.CLOCK,
    TopicKind.GROUPS,
    TopicKind.ASSIGNMENTS,
    TopicKind.REJECTED,
)
"""The topics that only coordinators write."""


def last_seen_ms(settings: ClientSettings, prefix: str) -> int | None:
    """The newest timestamp of any coordinator's record (epoch ms); None = there is none.

    One request asks for the newest timestamp of each partition; no record is read.

    Raises:
        Unreachable: no answer.
    """
    wanted = {topic_name(kind, prefix) for kind in WRITTEN}
    with failures_named(settings):
        client = admin(settings)
        topics = client.list_topics(timeout=TIMEOUT_S).topics
        places = [
            TopicPartition(t, p) for t in wanted & topics.keys() for p in topics[t].partitions
        ]
        newest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]  # the library left it out
        asked = client.list_offsets(dict.fromkeys(places, newest), request_timeout=TIMEOUT_S)
        newest_ms = [future.result().timestamp for future in asked.values()]
    return max((at_ms for at_ms in newest_ms if at_ms and at_ms > 0), default=None)


def is_overdue(seen_ms: int | None, now_ms: int, groups: Iterable[GroupSnapshot]) -> bool:
    """Whether a live coordinator would have written since `seen_ms`."""
    steps = [step_of(each.settings) for each in groups if each.members]
    return bool(steps) and now_ms - (seen_ms or 0) > min(steps) + ANSWER_MS


def seen_text(seen_ms: int | None, now_ms: int, groups: Iterable[GroupSnapshot]) -> str:
    """The line that `groups describe` ends with."""
    if seen_ms is None:
        return "coordinator never seen: start `muster run`"
    groups = list(groups)
    text = f"coordinator last seen {ago(now_ms, seen_ms)}"
    if is_overdue(seen_ms, now_ms, groups):
        return f"{text}, too long ago for a group with members: muster doctor says more"
    idle = not any(each.members for each in groups)
    return f"{text}; no group has members, so it writes little" if idle else text
