"""Reads a group that Kafka coordinates, its topics and their load, and changes nothing.

Needs the right to describe the groups and their topics, and for bytes the cluster.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.client import HTTPException

from muster.discovery import measured_traffic
from muster.discovery.measured_traffic import Load, Measure, Place
from muster.discovery.topics import Topic, topics
from muster.errors import BadInput, Unreachable
from muster.kafka.access_check import Refused
from muster.kafka.client_settings import ClientSettings
from muster.kafka.cluster import admin, failures_named
from muster.kafka.groups import Description, Kind, describe_stable_with
from muster.kafka.protocol_client import connected
from muster.output import wall_ms

REST_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class ShadowedGroup:
    """A group that Kafka coordinates, with its topics and their load.

    Attributes:
        topics: the topics that its members read, by name.
        loads: load of each of their partitions.
        connectors: connector → number of its tasks, from Connect's REST; None = not asked.
        at_ms: when it was read, epoch milliseconds.
        unknown: one sentence for each figure that cannot be known.
    """

    description: Description
    topics: Mapping[str, Topic] = field(default_factory=dict)
    loads: Mapping[Place, Load] = field(default_factory=dict)
    connectors: Mapping[str, int] | None = None
    at_ms: int = 0
    unknown: tuple[str, ...] = ()


def read_groups(
    clients: ClientSettings,
    groups: Sequence[str],
    *,
    measures: Sequence[Measure] = tuple(Measure),
    connect_url: str | None = None,
    waits: bool = False,
) -> list[ShadowedGroup]:
    """Read groups; return them in the order of `groups`.

    Args:
        clients: how to reach Kafka.
        groups: their names.
        measures: loads to measure.
        connect_url: REST address of a Connect worker; None = only running connectors are known.
        waits: whether to wait for a group that rebalances: it hides its owners until it is stable.

    Raises:
        NotFound, BadInput, Unreachable, Refused: as `muster.kafka.groups.describe`.
    """
    with connected(clients) as client:
        described = describe_stable_with(client, groups, tuple(Kind) if waits else ())
    return [
        _read_group(clients, without_governor(each), measures, connect_url) for each in described
    ]


def without_governor(description: Description) -> Description:
    """The group without a governor of muster, which leads the group and runs no task."""
    members = tuple(member for member in description.members if not member.is_governor)
    if len(members) == len(description.members):
        return description
    return replace(description, members=members, assignor=f"muster adopt ({description.assignor})")


def _read_group(
    clients: ClientSettings,
    description: Description,
    measures: Sequence[Measure],
    connect_url: str | None,
) -> ShadowedGroup:
    now_ms = wall_ms()
    if description.kind is Kind.CONNECT:
        jobs = None if connect_url is None else connectors(connect_url)
        unknown = [*_hidden(description), *_connect_unknown(jobs)]
        return ShadowedGroup(description, connectors=jobs, at_ms=now_ms, unknown=tuple(unknown))
    unknown = []
    with failures_named(clients):
        client = admin(clients)
        known_topics = topics(client, description.topics())
        places = [(t.name, p) for t in known_topics.values() for p in range(t.partitions)]
        commits = (
            measured_traffic.committed(clients, description.group)
            if Measure.LAG in measures
            else None
        )
        sizes = _sizes(clients, places, unknown) if Measure.BYTES in measures else None
        loads = measured_traffic.measured(client, places, now_ms, commits=commits, log_sizes=sizes)
    unknown += _unknown(description, known_topics, loads, commits)
    return ShadowedGroup(description, known_topics, loads, at_ms=now_ms, unknown=tuple(unknown))


def _sizes(
    clients: ClientSettings, places: Sequence[Place], unknown: list[str]
) -> dict[Place, int] | None:
    try:
        return measured_traffic.sizes(clients, places)
    except Refused:
        unknown.append("bytes a second: this login may not describe the cluster (DescribeLogDirs)")
        return None


def _unknown(
    description: Description,
    known_topics: Mapping[str, Topic],
    loads: Mapping[Place, Load],
    commits: Mapping[Place, int] | None,
) -> list[str]:
    lines = _hidden(description)
    members = description.members
    if members and not any(member.rack for member in members):
        lines.append("cross-rack partitions: no member has a rack (client.rack)")
    elif known_topics and not any(topic.has_racks for topic in known_topics.values()):
        lines.append("cross-rack partitions: no broker has a rack (broker.rack)")
    missing = sorted(set(description.topics()) - known_topics.keys())
    if missing:
        lines.append(f"topics that do not exist or may not be described: {', '.join(missing)}")
    if any(member.pattern for member in members):
        lines.append("topics that a subscribed pattern matches and no member has")
    if (
        commits is not None
        and known_topics
        and not any(each.lag is not None for each in loads.values())
    ):
        lines.append("lag: the group has committed nothing")
    if description.kind is not Kind.STREAMS and members:
        lines.append("capacity: Kafka does not know it; every member counts as 1")
    return lines


def _hidden(description: Description) -> list[str]:
    lines = []
    if description.is_hidden:
        lines.append(
            f"owners: the group is rebalancing ({description.state}), and Kafka returns the"
            f" assignments of a {description.kind} group only when it is stable"
        )
    if strange := [member.name for member in description.members if member.is_unreadable]:
        lines.append(f"what {', '.join(strange)} reads: its bytes are not of Kafka's protocol")
    return lines


def _connect_unknown(jobs: Mapping[str, int] | None) -> list[str]:
    lines = ["load: Connect does not measure its tasks; each counts as 1"]
    if jobs is None:
        lines.append("connectors and tasks that no worker runs now: give --connect-url")
    return lines


def connectors(url: str) -> dict[str, int]:
    """Connector → number of its tasks, from a Connect worker's REST interface.

    Raises:
        BadInput: `url` is no URL, or has a name or password in it, which messages would show.
        Unreachable: no answer, or an answer that is not Connect's.
    """
    if "@" in url:
        raise BadInput("--connect-url: expected http://HOST:PORT, without a name and password")
    if not url.startswith(("http://", "https://")):
        raise BadInput(f"--connect-url {url!r}: expected http://HOST:PORT")
    address = f"{url.rstrip('/')}/connectors?expand=info"
    try:
        with urllib.request.urlopen(address, timeout=REST_TIMEOUT_S) as answer:  # noqa: S310
            rows = json.load(answer)
        return {name: len(row["info"]["tasks"]) for name, row in rows.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, HTTPException) as why:
        raise Unreachable(f"Connect at {url}: {why or type(why).__name__}") from None
