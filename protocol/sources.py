"""Sources of tasks in Kafka: how a config declares them, and what was found for them.

A `Source` stands in a config beside the list of tasks: a topic, several topics, or a pattern. The
coordinator never asks Kafka. A process beside it does, and writes what it found as an event
(`TopicsFound`), so a generation has its cause and a replay needs no Kafka of that time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster.protocol.errors import ConfigError
from muster.protocol.tasks import WEIGHT_MAX, Subtopology

MEASURES = ("bytes", "records", "lag")
"""What a partition's weight may be measured by."""
KEYS = ("topic", "topics", "pattern", "co_partitioned", "name", "stateful", "weight", "racks")
SOURCES_MAX = 1_000
PATTERN_CHARS_MAX = 1_000
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Source:
    """Topics whose partitions are tasks.

    Attributes:
        topics: their names; empty = by `pattern`.
        pattern: a regular expression that matches whole names; `source_from` does not compile it.
        co_partitioned: partition n of all of them is one task; else each topic is a unit.
        name: name of the unit, if co-partitioned.
        stateful: whether the tasks have state.
        weight: load of each task, where it is not measured.
        measure: one of `MEASURES`; empty = not measured.
        racks: ``replicas`` = a member in the rack of any replica is near; ``leader`` = only the
            leader's rack is.
    """

    topics: tuple[str, ...] = ()
    pattern: str = ""
    co_partitioned: bool = False
    name: str = ""
    stateful: bool = False
    weight: float = 1
    measure: str = ""
    racks: str = "replicas"

    @property
    def unit(self) -> str:
        """Name of the unit of a co-partitioned source."""
        return self.name or "+".join(self.topics)


@dataclass(frozen=True, slots=True)
class Found:
    """What was found for a source.

    Attributes:
        source: as declared.
        units: sorted by name.
        ids: (topic, topic id), sorted; a topic that was deleted and made again has another id.
    """

    source: Source
    units: tuple[Subtopology, ...]
    ids: tuple[tuple[str, str], ...] = ()


def source_json(source: Source) -> dict[str, Any]:
    """A source as users write it, without defaults."""
    row: dict[str, Any] = {}
    if source.pattern:
        row["pattern"] = source.pattern
    elif len(source.topics) == 1 and not source.co_partitioned:
        row["topic"] = source.topics[0]
    else:
        row["topics"] = list(source.topics)
    given = {key: getattr(source, key) for key in ("co_partitioned", "name", "stateful")}
    row |= {key: value for key, value in given.items() if value}
    if source.measure or source.weight != 1:
        row["weight"] = source.measure or source.weight
    if source.racks != "replicas":
        row["racks"] = source.racks
    return row


def is_source(row: object) -> bool:
    """Whether an entry of a task list is a source and no unit."""
    return isinstance(row, Mapping) and bool({"topic", "topics", "pattern"} & row.keys())


def source_from(row: object, place: str = "tasks") -> Source:
    """Read a source.

    Raises:
        ConfigError: names the place and says what would be right.
    """
    if not isinstance(row, Mapping) or sum(key in row for key in KEYS[:3]) != 1:
        raise ConfigError(place, row, "one of 'topic', 'topics' and 'pattern'")
    unknown = sorted(row.keys() - set(KEYS))
    if unknown:
        raise ConfigError(place, unknown[0], f"one of the keys {', '.join(KEYS)}")
    topics = _topics(row, place)
    source = Source(
        topics=topics,
        pattern=_pattern(row.get("pattern"), place),
        co_partitioned=_flag(row, "co_partitioned", place),
        name=_unit_name(row.get("name", ""), place),
        stateful=_flag(row, "stateful", place),
        weight=_weight(row.get("weight", 1), place),
        measure=row["weight"] if isinstance(row.get("weight"), str) else "",
        racks=row.get("racks", "replicas"),
    )
    if source.racks not in ("replicas", "leader"):
        raise ConfigError(f"{place}.racks", source.racks, "'replicas' or 'leader'")
    if source.co_partitioned and source.pattern and not source.name:
        raise ConfigError(f"{place}.name", "", "a name for the tasks of a co-partitioned pattern")
    if source.name and not source.co_partitioned:
        raise ConfigError(f"{place}.name", source.name, "no name: units are called as the topics")
    return source


def _topics(row: Mapping[str, Any], place: str) -> tuple[str, ...]:
    if "pattern" in row:
        return ()
    key = "topic" if "topic" in row else "topics"
    names = [row["topic"]] if key == "topic" else row["topics"]
    if not isinstance(names, list) or not names or len(names) != len(set(map(str, names))):
        raise ConfigError(f"{place}.{key}", names, "a list of topics, each once")
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(f"{place}.{key}", name, "a topic's name: letters, digits, . _ -")
    return tuple(names)


def _pattern(pattern: object, place: str) -> str:
    if pattern is None:
        return ""
    if not isinstance(pattern, str) or not 0 < len(pattern) <= PATTERN_CHARS_MAX:
        accepted = f"a regular expression of at most {PATTERN_CHARS_MAX} characters"
        raise ConfigError(f"{place}.pattern", pattern, accepted)
    return pattern


def _flag(row: Mapping[str, Any], key: str, place: str) -> bool:
    flag = row.get(key, False)
    if not isinstance(flag, bool):
        raise ConfigError(f"{place}.{key}", flag, "true or false")
    return flag


def _unit_name(name: object, place: str) -> str:
    if not isinstance(name, str) or not name.isprintable() or len(name) > 249:
        raise ConfigError(f"{place}.name", name, "a name of at most 249 characters")
    return name


def _weight(weight: object, place: str) -> float:
    if isinstance(weight, str) and weight in MEASURES:
        return 1
    if not isinstance(weight, int | float) or isinstance(weight, bool):
        raise ConfigError(f"{place}.weight", weight, f"a number, or one of {', '.join(MEASURES)}")
    if not 0 <= weight <= WEIGHT_MAX:
        raise ConfigError(f"{place}.weight", weight, f"a number, 0 to {WEIGHT_MAX:g}")
    return weight
