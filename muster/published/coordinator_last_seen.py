"""When the coordinator was last seen: the timestamp of the newest record that it has written.

While a group has members, the coordinator moves the group's wake-up at least once per step
(`state.session_clock.step_of`). If its newest record is older than a step and some batches, it is
gone, frozen or far behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from muster.kafka.client_settings import ClientSettings
from muster.kafka.cluster import TIMEOUT_S, admin, failures_named
from muster.kafka.reader import read
from muster.output import ago
from muster.protocol.ids import SEPARATOR
from muster.protocol.keys import SIGN_GROUP, key_of
from muster.protocol.records import CoordinatorRole, GroupSnapshot
from muster.protocol.topics import TopicKind, topic_name
from muster.state.session_clock import step_of
from muster.streams.coordinator_signs import Signed

ANSWER_MS = 5_000
"""Longest time from a due wake-up to the coordinator's next record, on a slow machine."""
NO_STANDBY = "no standby coordinator"
WRITTEN = (
    TopicKind.COORDINATOR,
    TopicKind.CLOCK,
    TopicKind.GROUPS,
    TopicKind.ASSIGNMENTS,
    TopicKind.REJECTED,
)
"""The topics that only coordinators write."""


def standing_by(signs: Iterable[Signed], now_ms: int) -> str:
    """The standby coordinators in words; empty = there is none."""
    waiting = _alive(signs, CoordinatorRole.STANDBY, now_ms)
    return f"{', '.join(waiting)} stand{'s' if len(waiting) == 1 else ''} by" if waiting else ""


def _alive(signs: Iterable[Signed], role: CoordinatorRole, now_ms: int) -> list[str]:
    return sorted(
        f"job {each.sign.job} on {each.sign.host}"
        for each in signs
        if each.sign.role is role and not each.is_old(now_ms)
    )


def signs_text(signs: Sequence[Signed], now_ms: int) -> str:
    """Which process is the coordinator, and which ones stand by, for `groups describe`."""
    running = ", ".join(_alive(signs, CoordinatorRole.RUNNING, now_ms)) or "no sign of life"
    return f"coordinator: {running}; {standing_by(signs, now_ms) or NO_STANDBY}"


def last_seen_ms(settings: ClientSettings, prefix: str) -> int | None:
    """The newest timestamp of what a coordinator's query wrote (epoch ms); None = there is none.

    One request asks for the newest timestamp of each partition. Only `clock` is read, because signs
    of life do not count there: they show that a process runs, not that its query does.

    Raises:
        Unreachable: no answer.
    """
    wanted = {topic_name(kind, prefix) for kind in WRITTEN if kind is not TopicKind.CLOCK}
    with failures_named(settings):
        client = admin(settings)
        topics = client.list_topics(timeout=TIMEOUT_S).topics
        places = [
            TopicPartition(t, p) for t in wanted & topics.keys() for p in topics[t].partitions
        ]
        newest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
        asked = client.list_offsets(dict.fromkeys(places, newest), request_timeout=TIMEOUT_S)
        newest_ms = [future.result().timestamp for future in asked.values()]
    clock = topic_name(TopicKind.CLOCK, prefix)
    if clock in topics:
        signs = key_of(SIGN_GROUP) + SEPARATOR.encode()
        rows = read(settings, clock)
        newest_ms += [row.at_ms for row in rows if not (row.key or b"").startswith(signs)]
    return max((at_ms for at_ms in newest_ms if at_ms and at_ms > 0), default=None)


def is_overdue(seen_ms: int | None, now_ms: int, groups: Iterable[GroupSnapshot]) -> bool:
    """Whether a live coordinator would have written since `seen_ms`."""
    steps = [step_of(each.settings) for each in groups if each.members]
    return bool(steps) and now_ms - (seen_ms or 0) > min(steps) + ANSWER_MS


def seen_text(seen_ms: int | None, now_ms: int, groups: Iterable[GroupSnapshot]) -> str:
    """When the coordinator was last seen, and what follows from it, for `groups describe`."""
    if seen_ms is None:
        return "coordinator never seen: start `muster run`"
    groups = list(groups)
    text = f"coordinator last seen {ago(now_ms, seen_ms)}"
    if is_overdue(seen_ms, now_ms, groups):
        return f"{text}, too long ago for a group with members: muster doctor says more"
    idle = not any(each.members for each in groups)
    return f"{text}; no group has members, so it writes little" if idle else text
