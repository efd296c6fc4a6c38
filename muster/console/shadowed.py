"""Groups that Kafka coordinates, beside muster's own: looked at every few seconds, never changed.

What Kafka says of a group becomes a record such as muster would publish (`muster.shadow`), and the
store takes it in when owners, members or tasks differ from the look before. Kafka keeps no history,
so a shadowed group's timeline begins with the console's start, and its generations are counted
here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import structlog

from muster.console.store import SHADOWED, Store
from muster.discovery.topics import topics
from muster.errors import BadInput, NotFound
from muster.kafka.cluster import admin, failures_named
from muster.kafka.groups import Description, Kind, Listed, describe_with, listed_with
from muster.kafka.protocol_client import connected
from muster.kafka.settings import ClientSettings
from muster.output import wall_ms
from muster.protocol.codec import encode
from muster.protocol.errors import MusterError
from muster.protocol.ids import GroupId, Role
from muster.protocol.records import GroupGone, GroupSnapshot, GroupState, Move
from muster.protocol.tasks import TaskTable
from muster.shadow.as_group import ASSIGNORS, as_group
from muster.shadow.look import Seen
from muster.shadow.standing import present
from muster.streams.background_thread import Loop

LOOK_EVERY_S = 2.0
"""How often Kafka is asked."""
GROUPS_MAX = 200
"""Most groups that are shown; further ones, by name, are left out."""
NAMES_MAX = 3
"""Most members that a cause names."""

_log = structlog.get_logger("muster.console")


class Shadows(Loop):
    """Looks at Kafka's groups while its ``with`` block runs.

    Args:
        clients: how to reach Kafka.
        store: where the groups go, under the prefix `SHADOWED`.
    """

    def __init__(self, clients: ClientSettings, store: Store) -> None:
        super().__init__("muster-console-shadows")
        self._clients = clients
        self._shown = Shown(store)

    def _run(self) -> None:
        said = ""
        while not self._closing.is_set():
            try:
                self._look()
                said = ""
            except Exception as error:
                # A console that is left open goes on asking; one line for one cause.
                why = self._clients.hidden(str(error)) or type(error).__name__
                if why != said:
                    _log.warning("cannot look at Kafka's groups", why=why)
                said = why
            self._closing.wait(LOOK_EVERY_S)

    def _look(self) -> None:
        with connected(self._clients) as client:
            names = self._shown.wanted(listed_with(client))
            try:
                described = describe_with(client, names) if names else []
            except NotFound:
                return  # a group ended between the list and its description; the next look knows
        with failures_named(self._clients):
            read = {topic for each in described for topic in each.topics()}
            there = topics(admin(self._clients), read)
        now_ms = wall_ms()
        for each in described:
            read_here = {name: there[name] for name in each.topics() if name in there}
            self._shown.take(Seen(each, read_here, at_ms=now_ms))
        self._shown.keep(names)


@dataclass(slots=True)
class Shown:
    """What was published of the shadowed groups; given the groups each time they were read.

    Attributes:
        store: where records go.
        last: group → the record that was taken in last.
        warned: the log says that there are more groups than are shown.
    """

    store: Store
    last: dict[str, GroupSnapshot] = field(default_factory=dict)
    warned: bool = False

    def wanted(self, listed: Iterable[Listed]) -> list[str]:
        """Groups to show, by name.

        Those whose members muster cannot read are left out, those of muster's own programs, and
        those that muster governs: they are on its topics.
        """
        ours = tuple(f"{prefix}." for prefix in self.store.prefixes)
        led = {key.group for key, _ in self.store.histories() if key.prefix != SHADOWED}
        names = [
            each.group
            for each in listed
            if each.kind in ASSIGNORS and not each.group.startswith(ours) and each.group not in led
        ]
        if len(names) > GROUPS_MAX and not self.warned:
            self.warned = True
            _log.warning("some of Kafka's groups are left out", groups=len(names), shown=GROUPS_MAX)
        return names[:GROUPS_MAX]

    def take(self, seen: Seen) -> None:
        """Take in what was read of a group, if it differs from what was read before."""
        described = seen.description
        if described.is_rebalancing and described.kind is Kind.CLASSIC:
            return  # Kafka tells nothing of its members now
        try:
            group = as_group(seen)
        except (BadInput, MusterError) as error:
            _log.debug("a group is left out", group=described.group, why=str(error))
            return
        before = self.last.get(described.group)
        record = _next(before, group, described)
        if record is not None:
            self.last[described.group] = record
            self.store.take(SHADOWED, record, seen.at_ms, encode(record).value or b"")

    def keep(self, names: Collection[str]) -> None:
        """Forget the groups that are not among these."""
        for name in self.last.keys() - set(names):
            del self.last[name]
            self.store.take(SHADOWED, GroupGone(group=GroupId(name)), wall_ms(), b"")


def _next(
    before: GroupSnapshot | None, group: GroupSnapshot, described: Description
) -> GroupSnapshot | None:
    """The group as its next generation, with cause and moves; None = nothing differs."""
    by = described.assignor or "Kafka's assignor"
    if described.is_rebalancing:
        group = replace(group, state=GroupState.RECONCILING)
    if before is None:
        return replace(group, cause=f"first seen; placed by {by}")
    owners, was = _owners(group), _owners(before)
    members, old = ({m.id for m in each.members} for each in (group, before))
    if (owners, members, group.tasks, group.state) == (was, old, before.tasks, before.state):
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
    if (owners, members, group.tasks) == (was, old, before.tasks):
        return replace(group, generation=before.generation, cause=before.cause, moves=before.moves)
    said = [*_said(members - old, "joined"), *_said(old - members, "left")]
    if group.tasks != before.tasks:
        said.append(f"tasks {len(TaskTable(before.tasks))} → {len(TaskTable(group.tasks))}")
    return replace(
        group,
        generation=before.generation + 1,
        target_generation=before.generation + 1,
        cause="; ".join(said) or "Kafka moved partitions",
        moves=moves,
    )


def _owners(group: GroupSnapshot) -> dict[str, str]:
    return {task: member for member, tasks in present(group).items() for task in tasks}


def _said(names: Collection[str], what: str) -> list[str]:
    if not names:
        return []
    shown = sorted(names)[:NAMES_MAX]
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return [f"{', '.join(shown)}{more} {what}"]
