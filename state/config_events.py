"""Applies a new config to a group: settings and assignor. `removed_tasks` takes the new tasks."""

from __future__ import annotations

from collections.abc import Mapping

from muster.protocol.events import GroupConfig
from muster.protocol.settings import KEY_OF, Settings
from muster.protocol.topics import TopicKind
from muster.state import drains, found_topics, session_timeouts
from muster.state.draft import Draft


def configure(draft: Draft, event: GroupConfig) -> None:
    """Apply a config; a deleted group becomes alive again."""
    if draft.dead:
        draft.dead, draft.cause = False, ""
    draft.publishes_again = True  # the operator sees that the config was read
    _catch_up(draft, event)
    if event.assignor != draft.assignor:
        draft.causes.add(f"assignor {draft.assignor} → {event.assignor}")
        draft.assignor, draft.target.memory = event.assignor, None
        draft.target.again = False
    _set(draft, event.settings)
    found_topics.configured(draft, event)


def _catch_up(draft: Draft, event: GroupConfig) -> None:
    """Open a generation if a Connect worker had read a newer config than the group (S3-F11).

    Connect's assignors place nothing while a worker's config offset is above the group's.
    """
    newest_read = offset_of(draft.group.sessions.through)
    worker_offsets = (draft.member(slot).config_offset for slot in draft.roster.slots)
    if any(offset is not None and offset > newest_read for offset in worker_offsets):
        draft.causes.add(f"config read up to {event.origin.offset}")


def offset_of(through: Mapping[tuple[str, int], int]) -> int:
    """Offset of the newest config read, -1 = none; see `Liveness.through`."""
    config_topic = str(TopicKind.CONFIG)
    offsets = (
        offset for (topic, _), offset in through.items() if topic.rpartition(".")[2] == config_topic
    )
    return max(offsets, default=-1)


def _set(draft: Draft, settings: Settings) -> None:
    old_settings = draft.settings
    changed_fields = [
        field for field in KEY_OF if getattr(old_settings, field) != getattr(settings, field)
    ]
    draft.settings = settings
    if not changed_fields:
        return
    keys = sorted(KEY_OF[field] for field in changed_fields)
    draft.causes.add(f"config changed: {', '.join(keys)}")
    if "scale_down_timeout_ms" in changed_fields:
        for slot in draft.roster.slots:
            drains.set_deadline(draft, slot)
    if {"session_timeout_ms", "heartbeat_interval_ms"}.isdisjoint(changed_fields):
        return
    for slot in draft.roster.slots:
        session_timeouts.lengthen(draft, slot)
        draft.ask(slot)
