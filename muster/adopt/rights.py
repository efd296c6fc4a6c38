"""Checks that this login may govern groups, before anything is changed.

A governor without READ on a group cannot lead it. Without DESCRIBE on a topic it does not see the
partitions, and no member would get them. So a missing right is an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.kafka import access_check, groups
from muster.kafka.access_check import Refused
from muster.kafka.acls import Acl, Resource, Role, governed_acls
from muster.kafka.client_settings import ClientSettings
from muster.kafka.protocol_client import connected

_OPTIONS = {
    (Resource.GROUP, "READ"): "group",
    (Resource.TOPIC, "DESCRIBE"): "topic",
    (Resource.TOPIC, "READ"): "config-topic",
}
"""Right → the option of `muster topics create --acls` that grants it."""


def check_groups(clients: ClientSettings, prefix: str, names: Sequence[str]) -> None:
    """Check that this login may use muster's topics as a governor, and lead these groups.

    The groups need not exist.

    Raises:
        Refused: rights are missing; the message names them.
        NoTopics, Silent, Unreachable: of Kafka.
    """
    access_check.check(clients, Role.GOVERNOR, [prefix])
    with connected(clients) as client:
        closed = [name for name in names if not groups.may_join(client, name)]
    _refuse(clients, governed_acls(closed, (), ()))


def check_topics(
    clients: ClientSettings, topics: Iterable[str], config_topics: Sequence[str]
) -> None:
    """Check that this login sees the topics that consumers read, and Connect's config topics.

    A topic of consumers that does not exist is no error.

    Raises:
        Refused: rights are missing; the message names them.
        NoTopics: a config topic does not exist.
        Silent: no answer.
    """
    wanted = governed_acls((), sorted(set(topics)), config_topics)
    missing, absent = access_check.missing(clients, wanted)
    _refuse(clients, missing)
    for name in absent:
        if name in config_topics:
            raise access_check.NoTopics(
                f"no topic {name!r}; --config-topic is config.storage.topic of the Connect workers"
            )


def _refuse(clients: ClientSettings, missing: Sequence[Acl]) -> None:
    if not missing:
        return
    who = access_check.principal_of(clients)
    named = who if who.startswith("User:") else "User:NAME"
    options = " ".join(f"--governed-{_OPTIONS[a.resource, a.operation]} {a.name}" for a in missing)
    raise Refused(
        f"{who} lacks {', '.join(map(str, missing))}; grant: muster topics create --acls"
        f" --governor-principal '{named}' {options}"
    )
