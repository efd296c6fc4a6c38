"""What `muster config set` reads from files and options, and how a group prints."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from muster.cli.config import as_text, change_from
from muster.cli.options import key_values
from muster.documents.group_config import Change, as_json, merged
from muster.documents.json_files import load
from muster.documents.units import parse_tasks, tasks_json
from muster.errors import BadInput
from muster.protocol.errors import ConfigError
from muster.protocol.events import GroupConfig
from muster.protocol.ids import GroupId
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Connector, Subtopology

G = GroupId("g")
NOTHING = Change(None, {}, None)
TASKS = [
    {
        "subtopology": "0",
        "partitions": 2,
        "stateful": True,
        "weight": 2.5,
        "source_racks": [["a", "b"], [["a"], ["b", "c"]]],
    },
    {"connector": "c", "tasks": 1, "weight": 3, "connector_weight": 2},
]
UNITS = (
    Subtopology(
        "0", 2, stateful=True, weight=2.5, source_racks=((("a", "b"),), (("a",), ("b", "c")))
    ),
    Connector("c", 1, weight=3, connector_weight=2),
)


def test_tasks_read_and_written() -> None:
    """Every key of a task survives reading and writing."""
    assert parse_tasks(TASKS) == UNITS
    assert tasks_json(UNITS) == TASKS


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ({}, "tasks: expected a list of subtopologies and connectors"),
        ([1], "tasks[0]: expected an object with either 'subtopology' or 'connector'"),
        (
            [{"subtopology": "0", "connector": "c"}],
            "tasks[0]: expected an object with either 'subtopology' or 'connector'",
        ),
        ([{"subtopology": "0"}], "tasks[0].partitions: expected a whole number, 1 or more"),
        (
            [{"subtopology": "0", "partitions": True}],
            "tasks[0].partitions: expected a whole number, 1 or more",
        ),
        ([{"subtopology": "", "partitions": 1}], "tasks[0].subtopology: expected a name"),
        (
            [{"connector": "c", "tasks": 1, "partitions": 1}],
            "tasks[0]: unknown key 'partitions'; known: connector, tasks, weight, connector_weight",
        ),
        ([{"connector": "c", "tasks": -1}], "tasks[0].tasks: expected a whole number, 0 or more"),
        (
            [{"connector": "c", "tasks": 1, "weight": float("inf")}],
            "tasks[0].weight: expected a number, 0 to 1e+15",
        ),
        (
            [{"subtopology": "0", "partitions": 1, "stateful": 1}],
            "tasks[0].stateful: expected true or false",
        ),
        (
            [{"subtopology": "0", "partitions": 2, "source_racks": [["a"]]}],
            "tasks[0].source_racks: expected a list with one entry per partition (2)",
        ),
        (
            [{"subtopology": "0", "partitions": 1, "changelog_racks": ["a"]}],
            "tasks[0].changelog_racks[0]: expected a list of racks, "
            "or a list of such lists, one per topic",
        ),
    ],
)
def test_a_fault_in_tasks_names_its_place(tasks: object, said: str) -> None:
    """The error says where the fault is and what is expected."""
    with pytest.raises(BadInput) as error:
        parse_tasks(tasks)
    assert str(error.value) == said


def group(assignor: str, **config: object) -> GroupConfig:
    """A configured group; __ in a key means a dot."""
    values = {key.replace("__", "."): value for key, value in config.items()}
    return GroupConfig(
        group=G, assignor=assignor, settings=parse_settings(values, assignor), tasks=UNITS
    )


@pytest.mark.parametrize(
    ("old", "change", "expected"),
    [
        (group("sticky", session__timeout__ms=12_000), NOTHING, None),
        (
            group("sticky", session__timeout__ms=12_000),
            Change(None, {"num.standby.replicas": "1"}, None),
            group("sticky", session__timeout__ms=12_000, num__standby__replicas=1),
        ),
        (
            group("sticky", session__timeout__ms=12_000, num__standby__replicas=1),
            Change(None, {"num.standby.replicas": ""}, None),
            group("sticky", session__timeout__ms=12_000),
        ),
        (
            group("sticky", group__max__size=5),
            Change("cooperative", {}, None),
            group("cooperative", group__max__size=5),
        ),
    ],
    ids=["nothing", "one more", "back to default", "another assignor"],
)
def test_what_is_not_given_stays(
    old: GroupConfig, change: Change, expected: GroupConfig | None
) -> None:
    """A change touches only what it names; a new assignor brings its own defaults."""
    assert merged(G, old, change) == (expected or old)


def test_a_new_group_starts_from_defaults() -> None:
    """A new group has the default assignor, default settings and no tasks."""
    assert merged(G, None, NOTHING) == GroupConfig(
        group=G, assignor="high-availability", settings=parse_settings({}), tasks=()
    )


def test_nonsense_is_refused() -> None:
    """Unknown assignors, unknown settings and duplicate tasks are errors."""
    for unknown in ("best", ":", "my.module:", ":Class"):
        said = f"assignor '{unknown}': expected module:Class or one of eager, cooperative"
        with pytest.raises(BadInput, match=said):
            merged(G, None, Change(unknown, {}, None))
    with pytest.raises(ConfigError, match="no\\.such"):
        merged(G, None, Change(None, {"no.such": ""}, None))
    with pytest.raises(ConfigError, match="named once"):
        merged(G, None, Change(None, {}, (UNITS[0], UNITS[0])))
    assert merged(G, None, Change("my.module:Class", {}, None)).assignor == "my.module:Class"


@pytest.mark.parametrize(
    ("assignor", "values", "is_accepted"),
    [
        ("sticky", {"heartbeat.interval.ms": "22499"}, True),
        ("sticky", {"heartbeat.interval.ms": "22500"}, False),
        ("sticky", {"session.timeout.ms": "10000"}, False),
        ("cooperative", {"session.timeout.ms": "6001"}, True),
        ("cooperative", {"session.timeout.ms": "6000"}, False),
    ],
)
def test_settings_that_do_harm_together(
    assignor: str, values: dict[str, object], is_accepted: bool
) -> None:
    """Two heartbeat intervals fit into a session; the error gives the reason and both figures."""
    change = Change(assignor, values, None)
    if is_accepted:
        assert merged(G, None, change).assignor == assignor
        return
    with pytest.raises(ConfigError, match=r"less than half of session.timeout.ms \(\d+\): other"):
        merged(G, None, change)


def arguments(**given: object) -> argparse.Namespace:
    """Arguments of `config set`."""
    return argparse.Namespace(
        topic=[],
        pattern=[],
        **{"file": None, "tasks": None, "assignor": None, "config": [], **given},
    )


def test_options_win_over_the_file(tmp_path: Path) -> None:
    """The group file gives all values; the tasks file and the options replace what they name."""
    whole = tmp_path / "group.json"
    config = {"group.max.size": 5, "session.timeout.ms": 12000}
    whole.write_text(json.dumps({"assignor": "sticky", "config": config, "tasks": []}))
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps({"tasks": TASKS}))
    assert change_from(arguments(file=str(whole))) == Change("sticky", config, ())
    assert change_from(
        arguments(file=str(whole), tasks=str(tasks), assignor="eager", config=["group.max.size=6"])
    ) == Change("eager", {"group.max.size": "6", "session.timeout.ms": 12000}, UNITS)
    assert change_from(arguments()) == NOTHING


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "expected an object with assignor, config, tasks"),
        ('{"asignor": "sticky"}', "unknown key 'asignor'; known: assignor, config, tasks"),
        ('{"config": []}', "config: expected an object of settings"),
        ('{"assignor": 1}', "assignor: expected a name"),
        ('{"assignor": ""}', "assignor: expected a name"),
        ('{"config": }', "not JSON (Expecting value at line 1, column 12)"),
        ("\xff", "not JSON (Expecting value at line 1, column 1)"),
    ],
)
def test_a_bad_file_is_named(text: str, said: str, tmp_path: Path) -> None:
    """The error names the file and the fault."""
    file = tmp_path / "group.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput) as error:
        change_from(arguments(file=str(file)))
    assert str(error.value) == f"{file}: {said}"


def test_tasks_that_are_null_are_no_tasks(tmp_path: Path) -> None:
    """A tasks file with null is refused, because null could mean that the tasks stay."""
    (tmp_path / "tasks.json").write_text("null")
    with pytest.raises(BadInput, match="tasks: expected a list"):
        change_from(arguments(tasks=str(tmp_path / "tasks.json")))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """The error names a missing file and a file that is not UTF-8."""
    with pytest.raises(BadInput, match="nowhere: cannot be read"):
        load(str(tmp_path / "nowhere"))
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(BadInput, match="bytes: not UTF-8"):
        load(str(tmp_path / "bytes"))


def test_key_value_arguments() -> None:
    """A value may hold =, the last value of a key wins, and a word without = is an error."""
    assert key_values(["a=1", "b=x=y", "a=2", "c="], "--config") == {"a": "2", "b": "x=y", "c": ""}
    for wrong in ("a", "=1"):
        with pytest.raises(BadInput, match="expected KEY=VALUE"):
            key_values([wrong], "--config")


def test_how_a_group_prints() -> None:
    """JSON has only the values that were set; the table marks them among all settings."""
    shown = group("sticky", num__standby__replicas=1, rack__aware__assignment__tags="zone,cluster")
    assert json.loads(json.dumps(as_json(shown))) == {
        "assignor": "sticky",
        "config": {"num.standby.replicas": 1, "rack.aware.assignment.tags": ["zone", "cluster"]},
        "tasks": TASKS,
    }
    text = as_text(shown).splitlines()
    assert text[:2] == ["GROUP ASSIGNMENT-STRATEGY #TASKS", "g     sticky              4"]
    marked = {line.split()[0]: line.split()[1:] for line in text if line.endswith(" set")}
    assert marked == {
        "num.standby.replicas": ["1", "set"],
        "rack.aware.assignment.tags": ["zone,cluster", "set"],
    }
    assert text[-3:] == [
        "NAME KIND        #TASKS STATEFUL WEIGHT",
        "0    subtopology 2      true     2.5",
        "c    connector   2      -        3",
    ]
