"""Reads the groups that Kafka coordinates every few seconds, and adds them to the console's store.

`muster.shadow` converts each group to a snapshot like those that muster publishes. The store gets
it when owners, members or tasks differ from the previous one. Kafka keeps no history, so a shadowed
group's timeline begins when the console starts, and this module numbers its generations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import structlog

from muster.console.store import SHADOWED, Store
from muster.discovery.topics import topics
from muster.errors import BadInput, NotFound
from muster.kafka.client_settings import ClientSettings
from muster.kafka.cluster import admin, failures_named
from muster.kafka.groups import Description, Listed, describe_with, listed_with
from muster.kafka.protocol_client import connected
from muster.output import some, wall_ms
from muster.protocol.codec import encode
from muster.protocol.errors import MusterError
from muster.protocol.ids import GroupId, Role
from muster.protocol.records import GroupGone, GroupSnapshot, GroupState, Move
from muster.protocol.tasks import TaskTable
from muster.shadow.group_conversion import ASSIGNORS, to_snapshot
from muster.shadow.group_reader import ShadowedGroup
from muster.shadow.placement_figures import owners_of
from muster.streams.background_thread import Loop

LOOK_EVERY_S = 2.0
"""How often the groups are read."""
GROUPS_MAX = 200
"""Most groups that are shown: the first by name."""
NAMES_MAX = 3
"""Most members, and most topics, that a cause names."""

_log = structlog.get_logger("muster.console")


class Shadows(Loop):
    """Reads Kafka's groups into the store, under `SHADOWED`, while its ``with`` block runs."""

    def __init__(self, clients: ClientSettings, store: Store) -> None:
        super().__init__("muster-console-shadows")
        self._clients = clients
        self._published = PublishedShadows(store)

    def _run(self) -> None:
        logged = ""
        while not self._closing.is_set():
            try:
                self._look()
                logged = ""
            except Exception as error:
                # A console that is left open goes on reading; it logs each cause once.
                why = self._clients.hidden(str(error)) or type(error).__name__
                if why != logged:
                    _log.warning("cannot read Kafka's groups", why=why)
                logged = why
            self._closing.wait(LOOK_EVERY_S)

    def _look(self) -> None:
        with connected(self._clients) as client:
            names = self._published.wanted(listed_with(client))
            try:
                described = describe_with(client, names) if names else []
            except NotFound:
                return  # a group ended after it was listed; the next reading leaves it out
        with failures_named(self._clients):
            read = {topic for each in described for topic in each.topics()}
            known_topics = topics(admin(self._clients), read)
        now_ms = wall_ms()
        for each in described:
            group_topics = {
                name: known_topics[name] for name in each.topics() if name in known_topics
            }
            self._published.take(ShadowedGroup(each, group_topics, at_ms=now_ms))
        self._published.keep(names)


@dataclass(slots=True)
class PublishedShadows:
    """Adds the shadowed groups to the store when they differ from their previous reading.

    Attributes:
        last: group → the newest snapshot that the store got.
        ids: group → topic → its id when the group was read last.
        warned: whether the log says that some groups are not shown.
    """

    store: Store
    last: dict[str, GroupSnapshot] = field(default_factory=dict)
    ids: dict[str, dict[str, str]] = field(default_factory=dict)
    warned: bool = False

    def wanted(self, listed: Iterable[Listed]) -> list[str]:
        """The groups to show, by name.

        Groups whose members muster cannot read are left out, as are the consumer groups of muster's
        own programs, and governed groups, which the store has from muster's topics.
        """
        own_prefixes = tuple(f"{prefix}." for prefix in self.store.prefixes)
        led = {key.group for key, _ in self.store.histories() if key.prefix != SHADOWED}
        names = [
            each.group
            for each in listed
            if each.kind in ASSIGNORS
            and each.group not in led
            and not each.group.startswith(own_prefixes)
        ]
        if len(names) > GROUPS_MAX and not self.warned:
            self.warned = True
            _log.warning("some of Kafka's groups are left out", groups=len(names), shown=GROUPS_MAX)
        return names[:GROUPS_MAX]

    def take(self, shadowed: ShadowedGroup) -> None:
        """Add a group to the store if it differs from its previous reading."""
        described = shadowed.description
        if described.is_hidden:
            return  # its snapshot would show no owners, and workers under other names
        try:
            group = to_snapshot(shadowed)
        except (BadInput, MusterError) as error:
            _log.debug("a group is left out", group=described.group, why=str(error))
            return
        before = self.last.get(described.group)
        known = self.ids.setdefault(described.group, {})
        now = {name: topic.id for name, topic in shadowed.topics.items()}
        anew = sorted(name for name, id_ in now.items() if known.get(name, id_) != id_)
        known |= now
        record = _next(before, group, described, anew)
        if record is not None:
            self.last[described.group] = record
            self.store.take(SHADOWED, record, shadowed.at_ms, encode(record).value or b"")

    def keep(self, names: Collection[str]) -> None:
        """Remove all other groups from the store."""
        for name in self.last.keys() - set(names):
            del self.last[name], self.ids[name]
            self.store.take(SHADOWED, GroupGone(group=GroupId(name)), wall_ms(), b"")


def _next(
    before: GroupSnapshot | None,
    group: GroupSnapshot,
    described: Description,
    anew: Collection[str],
) -> GroupSnapshot | None:
    """The snapshot as the group's next generation, with cause and moves; None = no difference.

    `anew`: its topics that were deleted and created again under their names.
    """
    by = described.assignor or "Kafka's assignor"
    if described.is_rebalancing:
        group = replace(group, state=GroupState.RECONCILING)
    if before is None:
        return replace(group, cause=f"first seen; placed by {by}")
    owners, was = owners_of(group), owners_of(before)
    members, old = ({m.id for m in each.members} for each in (group, before))
    is_same = (owners, members, group.tasks) == (was, old, before.tasks) and not anew
    if is_same and group.state == before.state:
        return None
    moves = tuple(
        Move(
            task=task,
            role=Role.ACTIVE,
            from_member=was.get(task),
            to_member=owner,
            reason=f"{by} moved it",
        )
        for task, owner in sorted(owners.items())
        if was.get(task) != owner
    )
    if is_same:
        return replace(group, generation=before.generation, cause=before.cause, moves=before.moves)
    causes = [f"topic {name} was created anew" for name in [*anew][:NAMES_MAX]]
    for names, what in ((members - old, "joined"), (old - members, "left")):
        causes += [f"{some(sorted(names), NAMES_MAX)} {what}"] if names else []
    if group.tasks != before.tasks:
        causes.append(f"tasks {len(TaskTable(before.tasks))} → {len(TaskTable(group.tasks))}")
    return replace(
        group,
        generation=before.generation + 1,
        target_generation=before.generation + 1,
        cause="; ".join(causes) or "Kafka moved partitions",
        moves=moves,
    )
