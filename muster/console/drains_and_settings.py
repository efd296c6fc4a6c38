"""Writes drains and settings for pages, if the console was started with ``--allow``.

The events are those of `muster drain` and `muster config set`. The record's header ``by`` and the
console's log name the user.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from muster.console.store import SHADOWED, GroupKey
from muster.documents.group_config import Change, check_fits, merged
from muster.errors import BadInput, ChangedMeanwhile, NotFound
from muster.kafka.client_settings import ClientSettings
from muster.kafka.writer import append
from muster.output import shown
from muster.protocol.events import Drain
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot
from muster.protocol.topics import TopicKind, topic_name
from muster.published.config_changes import known, replaced
from muster.published.snapshots import refuses_events
from muster.signing.followed_key_file import KeyFile

ALLOWABLE = ("drain", "config")
_log = structlog.get_logger("muster.console")


@dataclass(frozen=True, slots=True)
class Writes:
    """Checks and writes what pages ask for; `allow` has some of `ALLOWABLE`."""

    allow: frozenset[str] = field(default_factory=frozenset)
    keys: KeyFile | None = None

    def drain(
        self,
        clients: ClientSettings,
        key: GroupKey,
        snapshot: GroupSnapshot,
        body: bytes,
        user: str,
    ) -> str:
        """Drain a member, or undo that; the body is {"member", "on", "confirmed"}.

        Raises:
            BadInput: it is not allowed, not confirmed, or malformed, or the group is quarantined.
            NotFound: no such member.
            Unreachable, Refused, NoTopics: as `append`.
        """
        request = self._confirmed_request("drain", key, body)
        member, on = request.get("member"), request.get("on")
        if not isinstance(member, str) or not isinstance(on, bool):
            raise BadInput("expected a member and whether it is drained")
        known = {str(m.id) for m in snapshot.members} | {str(d.member) for d in snapshot.drains}
        if member not in known:
            raise NotFound(f"no member {shown(member)} in this group")
        if refusal := refuses_events(snapshot):
            raise BadInput(refusal)
        order = Drain(group=GroupId(key.group), member=MemberId(member), on=on)
        topic = topic_name(TopicKind.MEMBERSHIP, key.prefix)
        append(clients, topic, order, self.keys, by=author(user))
        _log.info("drain", group=key.group, member=member, on=on, by=author(user))
        return f"{member}: {'drain ordered' if on else 'drain cancellation ordered'}"

    def config(
        self, clients: ClientSettings, key: GroupKey, _: GroupSnapshot, body: bytes, user: str
    ) -> str:
        """Change settings; the body is {"config", "assignor", "confirmed"}.

        Raises:
            BadInput, ConfigError: it is not allowed, not confirmed, or malformed.
            ChangedMeanwhile: it was written, and another change at the same moment was lost.
            Unreachable, Refused, NoTopics: as `append`.
        """
        request = self._confirmed_request("config", key, body)
        config, assignor = request.get("config", {}), request.get("assignor")
        if not isinstance(config, dict) or not all(isinstance(v, str) for v in config.values()):
            raise BadInput("expected settings as texts")
        if not isinstance(assignor, str | None) or not (config or assignor):
            raise BadInput("nothing to set: expected settings or an assignor")
        before = known(clients, key.prefix, key.group, self.keys)
        if before.note:
            _log.warning("config", note=before.note)
        group = merged(GroupId(key.group), before.config, Change(assignor or None, config, None))
        check_fits(group)
        topic = topic_name(TopicKind.CONFIG, key.prefix)
        place = append(clients, topic, group, self.keys, by=author(user))
        _log.info("config", group=key.group, config=config, assignor=assignor, by=author(user))
        lost = replaced(clients, key.prefix, before, group, place)
        if lost:
            raise ChangedMeanwhile(lost)
        return f"{key.group}: configured" + (f"; {before.note}" if before.note else "")

    def _confirmed_request(self, what: str, key: GroupKey, body: bytes) -> Mapping[str, Any]:
        if key.prefix == SHADOWED:
            raise BadInput("Kafka coordinates this group; muster only looks at it")
        if what not in self.allow:
            raise BadInput(f"this console only reads; start it with --allow {what}")
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            raise BadInput("expected JSON") from None
        if not isinstance(request, dict) or request.get("confirmed") is not True:
            raise BadInput('not confirmed: expected "confirmed": true')
        return request


def author(user: str) -> str:
    """The author of a record: the user, and the console's machine."""
    return f"{user or 'console'}@{socket.gethostname()}"
