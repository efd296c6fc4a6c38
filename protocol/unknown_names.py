"""Messages about unknown names: similar known names, or what replaces a key of Kafka's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

from muster.protocol.ids import as_option

NAMED = 5
"""At most this many names are listed, then the number of the others."""

_BY_WORKER = "nothing here: each worker says it of itself"
_BY_FILE = "nothing here: keys get to processes as files, not through a topic"
ELSEWHERE: Mapping[str, str] = {
    "task.assignor.class": "nothing here: the `assignor` of the group, a name or module:attribute",
    "upgrade.from": "nothing here: readers take what older and newer versions write",
    "static.connectors": f"{_BY_WORKER} (`static` of its join)",
    "static.tasks": f"{_BY_WORKER} (`static` of its join)",
    "group.instance.id": f"{_BY_WORKER} (`instance_id` of its join)",
    "client.rack": f"{_BY_WORKER} (`rack` of its join)",
    "inter.worker.key.generation.algorithm": _BY_FILE,
    "inter.worker.key.size": _BY_FILE,
    "inter.worker.key.ttl.ms": _BY_FILE,
    "inter.worker.signature.algorithm": _BY_FILE,
    "inter.worker.verification.algorithms": _BY_FILE,
}
"""Kafka's keys that are not settings of a group in muster, and what replaces them."""


def there_are(name: str, known: Iterable[str]) -> str:
    """The known names as text, those similar to `name` first; "none" if there are none."""
    others = sorted({*known} - {name})
    similar = get_close_matches(name, others, NAMED)
    named = [*similar, *(other for other in others if other not in similar)]
    more = len(named) - NAMED
    return (", ".join(named[:NAMED]) or "none") + (f" and {more} more" if more > 0 else "")


def no_tasks_beside(group: str, configured: Iterable[str]) -> str:
    """Message for a group without tasks, whose name may be misspelt: it lists configured groups."""
    return (
        f"group {group!r} has no tasks; configured groups: {there_are(group, configured)}; "
        f"muster config set {as_option('--group', group)} --tasks FILE gives it some"
    )


def instead_of(key: str, keys: Collection[str]) -> str:
    """What to use instead of an unknown setting, for example a broker's key, which has a prefix."""
    bare = next((known for known in keys if key.endswith(f".{known}")), None)
    if bare is not None:
        return f"the key {bare}, without what is before it"
    return ELSEWHERE.get(key) or nearest_of(key, keys)


def nearest_of(key: str, keys: Collection[str]) -> str:
    """The setting that an unknown key most resembles; without one, where all are listed."""
    near = get_close_matches(key, keys, n=1)
    return f"did you mean {near[0]}?" if near else "muster config describe lists all settings"
