"""The query's answer to the canary's ticks (`canary` says what they are for)."""

from __future__ import annotations

from collections.abc import Sequence

from muster.protocol.events import Mark
from muster.protocol.framing import PREFIX
from muster.protocol.records import Rejected, WakeUp
from muster.protocol.topics import TopicKind
from muster.streams.batch.inbox import dead_letter
from muster.streams.canary import GROUP
from muster.streams.source import HEADER, lane_of, split_signatures

_KEY = GROUP.encode()
_TICK = PREFIX["Tick"]


def is_of(lane: bytes, prefix: str) -> bool:
    """Whether a lane is the canary's."""
    return lane == lane_of(prefix, _KEY)


def answer(
    entries: Sequence[bytes],
    topics: Sequence[str],
    epoch: int,
    interval_ms: int,
    *,
    signed: bool = False,
) -> tuple[WakeUp | None, list[Rejected]]:
    """Answer all ticks of a batch with one wake-up; events that are no ticks get dead letters.

    Args:
        entries: packed rows, sorted.
        topics: the input topics, ascending.
        epoch: the coordinator epoch.
        interval_ms: time from the newest tick to the next; 0 = no further tick.
        signed: whether the rows have room for signatures (`source`).
    """
    ticks_ms: list[int] = []
    letters: list[Rejected] = []
    for entry in split_signatures(entries)[0] if signed else entries:
        if entry.startswith(_TICK, HEADER.size) and _is_membership(entry, topics):
            ticks_ms.append(HEADER.unpack_from(entry)[0])
        else:
            message = f"the group {GROUP} is the coordinator's own; choose another name"
            letters.append(dead_letter(entry, _KEY, message, topics))
    if not ticks_ms:
        return None, letters
    at_ms = max(ticks_ms) + interval_ms if interval_ms else None
    return WakeUp(group=GROUP, at_ms=at_ms, published=Mark(epoch, min(ticks_ms))), letters


def _is_membership(entry: bytes, topics: Sequence[str]) -> bool:
    topic: str = topics[HEADER.unpack_from(entry)[1]]
    return topic.endswith(TopicKind.MEMBERSHIP)
