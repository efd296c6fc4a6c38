"""Tags of a member (``client.tag.<key>=<value>``) and Kafka's limits for them (KIP-708, T-01).

The group's setting `rack.aware.assignment.tags` names the tags in which the copies of a task should
differ; a member may have other tags too.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.protocol.errors import ConfigError

GOVERNED = ("governed", "kafka")
"""Tag of a member that `muster adopt` speaks for: Kafka's session decides what it may run."""
TAGS_MAX = 5
KEY_CHARS_MAX = 20
VALUE_CHARS_MAX = 30


def tags_fault(tags: Mapping[str, str]) -> str | None:
    """What would be right, if the tags are not accepted; None if they are."""
    if len(tags) > TAGS_MAX:
        return f"at most {TAGS_MAX} tags, not {len(tags)}"
    for key, value in tags.items():
        if not 1 <= len(key) <= KEY_CHARS_MAX:
            return f"keys of 1 to {KEY_CHARS_MAX} characters, not {key[:40]!r}"
        if len(value) > VALUE_CHARS_MAX:
            return f"values of at most {VALUE_CHARS_MAX} characters, not {value[:40]!r} of {key!r}"
    return None


def checked_tags(tags: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """A member's tags, sorted by key.

    Raises:
        ConfigError: there are too many tags, or a key or value is too long.
    """
    fault = tags_fault(tags)
    if fault is not None:
        raise ConfigError("tags", dict(tags), fault)
    return tuple(sorted(tags.items()))
