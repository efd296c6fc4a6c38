"""Tasks, task tables and task sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from support.protocol import wire
from support.suite.examples import examples

import muster
from muster.protocol.errors import ConfigError
from muster.protocol.ids import CONNECTOR_ITSELF, Task, parse_task
from muster.protocol.tasks import EMPTY, Connector, Subtopology, TaskSet, TaskTable

quick = settings(max_examples=examples(60), deadline=None)
UNITS = (
    Connector("c2", 2, 1, 4),
    Subtopology("10", 2, True, 3),
    Subtopology("topic", 1),
    Subtopology("9", 1),
    Connector("c1", 0),
)
PRINTED = ["9_0", "10_0", "10_1", "topic_0", "c1", "c2", "c2-0", "c2-1"]


def test_what_users_import() -> None:
    """A task read from its id has its partition under either name; a role prints as a word."""
    task = muster.parse_task("orders_3")
    assert (task, task.partition, str(task)) == (muster.Task("orders", 3), 3, "orders_3")
    assert [f"{role} {role!s}" for role in muster.Role] == [
        *("active active", "standby standby", "learner learner")
    ]
    assert set(muster.__all__) <= set(dir(muster))
    assert all(getattr(muster, name) for name in muster.__all__)


def test_a_table_orders_tasks_as_kafka_does() -> None:
    """Subtopologies by number, then by name, then connectors, each before its tasks."""
    table = TaskTable(UNITS)
    assert [str(table.task(i)) for i in range(len(table))] == PRINTED
    assert table.start.tolist() == [0, 1, 3, 4, 5, 8]
    assert table.stateful.tolist() == [False, True, True, *[False] * 5]
    assert table.weight.tolist() == [1, 3, 3, 1, 1, 4, 1, 1]
    assert table.is_connector.tolist() == [False] * 4 + [True, True, False, False]
    assert (table, hash(table)) == (TaskTable(UNITS[::-1]), hash(TaskTable(UNITS[::-1])))
    assert table != TaskTable(UNITS[1:])


def test_a_table_finds_what_it_prints() -> None:
    """Every printed id resolves to its index; unknown ids do not."""
    table = TaskTable(UNITS)
    assert [table.index(text) for text in PRINTED] == list(range(8))
    strangers = ["9_1", "c1-0", "c2-2", "c3", "topic", "10_-1", ""]
    assert [table.index(text) for text in strangers] == [None] * 7


def test_a_table_refuses_what_prints_alike() -> None:
    """A repeated name, and a connector that prints as a task of another unit."""
    for units in (
        (Subtopology("0", 1), Subtopology("0", 2)),
        (Subtopology("0", 5), Connector("0_3", 1)),
        (Connector("c", 5), Connector("c-3", 1)),
    ):
        with pytest.raises(ConfigError, match="tasks"):
            TaskTable(units)


def test_unit_names_of_thousands_of_digits() -> None:
    """Unit names of thousands of digits are ordered; a task number has 31 bits."""
    names = ["7", "07", "9" * 5000, "1" + "0" * 5000, "x"]
    assert [unit.name for unit in TaskTable(Subtopology(n, 1) for n in names[::-1]).units] == [
        *("07", "7", "9" * 5000, "1" + "0" * 5000, "x"),
    ]
    assert parse_task(f"0_{'9' * 5000}") == Task(f"0_{'9' * 5000}", -1, connector=True)
    assert parse_task("0_2147483645") == Task("0", 2147483645)
    assert parse_task("0_2147483646") == Task("0_2147483646", -1, connector=True)


def test_sets_and_indexes() -> None:
    """Indexes become a set and back; tasks that the table lacks are returned apart."""
    table = TaskTable(UNITS)
    indexes = np.array([0, 2, 4, 7], dtype=np.int32)
    tasks = table.set_of(indexes)
    assert [str(task) for task in tasks] == ["9_0", "10_1", "c1", "c2-1"]
    strangers = TaskSet.of(["10_7", "c9"])
    known, unknown = table.indexes_of(tasks | strangers)
    assert (known.tolist(), unknown) == (indexes.tolist(), strangers)
    assert table.set_of(indexes[:0]) == EMPTY
    assert table.indexes_of(EMPTY)[0].tolist() == []


@quick
@given(wire.task_sets(), wire.task_sets())
def test_set_algebra_is_that_of_sets(one: TaskSet, other: TaskSet) -> None:
    """Union, difference, intersection, membership and size agree with Python's sets."""
    a, b = set(one), set(other)
    assert [set(one | other), set(one - other), set(one & other)] == [a | b, a - b, a & b]
    assert (len(one), one == other, hash(one) == hash(TaskSet.of(one))) == (len(a), a == b, True)
    assert all((task in one) == (task in a) for task in a | b)
    assert "0_0" not in one
    assert one != "0_0"


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("0_3", Task("0", 3)),
        ("a_b_12", Task("a_b", 12)),
        ("c1", Task("c1", CONNECTOR_ITSELF, connector=True)),
        ("c1-0", Task("c1", 0, connector=True)),
        ("a-b", Task("a-b", CONNECTOR_ITSELF, connector=True)),
        ("_3", Task("_3", CONNECTOR_ITSELF, connector=True)),
        ("x_y-2", Task("x_y", 2, connector=True)),
    ],
)
def test_printed_ids_read_back(text: str, task: Task) -> None:
    """Ids printed by Kafka are parsed to their task and print the same again."""
    assert (parse_task(text), str(task)) == (task, text)


def test_an_empty_id_is_refused() -> None:
    """A task must have a name."""
    with pytest.raises(ValueError, match="empty"):
        parse_task("")


def test_sets_print_their_tasks() -> None:
    """The repr of a set lists its tasks."""
    assert repr(TaskSet.of(["0_1", "c1"])) == "TaskSet(0_1, c1)"


def test_tasks_with_replicas_in_the_same_racks_are_a_class() -> None:
    """Classes are numbered by first task; units without racks have no class."""
    a, b = (("r1", "r2"),), (("r2",), ("r1",))
    table = TaskTable(
        [
            Subtopology("0", 3, source_racks=(a, b, a), changelog_racks=(b, b, b)),
            Connector("c", 1),
            Subtopology("1", 2),
            Subtopology("2", 1, source_racks=(b,)),
        ]
    )
    assert table.sources.class_of.tolist() == [0, 1, 0, -1, -1, 1, -1, -1]
    assert table.sources.racks == (a, b)
    assert table.changelogs.class_of.tolist() == [0, 0, 0, -1, -1, -1, -1, -1]
    assert table.changelogs.racks == (b,)
