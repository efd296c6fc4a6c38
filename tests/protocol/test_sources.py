"""Topics of Kafka in a group's task list: what is accepted, and what a fault says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from support.protocol import wire
from support.suite.examples import examples

from muster.protocol.declared_and_found_tasks import declared, fitting, together
from muster.protocol.errors import ConfigError
from muster.protocol.sources import Found, Source, source_from, source_json
from muster.protocol.tasks import Connector, Subtopology, TaskTable


@settings(max_examples=examples(80), deadline=None)
@given(wire.sources)
def test_a_source_is_read_as_it_was_written(source: Source) -> None:
    """JSON and back."""
    assert source_from(source_json(source)) == source


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "one of 'topic', 'topics' and 'pattern'"),
        ({"topic": "a", "pattern": "b"}, "one of 'topic', 'topics' and 'pattern'"),
        ({"topic": "a b"}, "a topic's name: letters, digits, . _ -"),
        ({"topics": ["a", "a"]}, "a list of topics, each once"),
        ({"topics": "a"}, "a list of topics, each once"),
        ({"topic": "a", "partition": 3}, "one of the keys topic, topics"),
        ({"pattern": ""}, "a regular expression of at most 1000 characters"),
        ({"pattern": "a" * 1001}, "a regular expression of at most 1000 characters"),
        ({"topic": "a", "weight": "size"}, "a number, or one of bytes, records, lag"),
        ({"topic": "a", "weight": -1}, "a number, 0 to 1e+15"),
        ({"topic": "a", "stateful": 1}, "true or false"),
        ({"topic": "a", "racks": "all"}, "'replicas' or 'leader'"),
        ({"pattern": "a", "co_partitioned": True}, "a name for the tasks"),
        ({"topic": "a", "name": "b"}, "no name: units are called as the topics"),
    ],
)
def test_bad_sources(row: dict, said: str) -> None:
    """One line that names the key and says what would be right."""
    with pytest.raises(ConfigError) as raised:
        source_from(row)
    assert said in str(raised.value)


def test_clashes() -> None:
    """The list wins, then the first source; a unit whose task prints as a connector is left out."""
    one, two = Source(topics=("a",)), Source(pattern=".*")
    units = (Subtopology("a", 1), Subtopology("b", 1), Subtopology("c", 2), Subtopology("d", 1))
    tasks = (Subtopology("b", 9), Connector("c_1", 0))
    kept = fitting(tasks, (one, two), [Found(two, units), Found(one, units[:1])])
    assert [[unit.name for unit in each.units] for each in kept] == [["a"], ["d"]]
    table = TaskTable(together(tasks, kept))
    assert set(declared(table.units, kept)) == set(tasks)
