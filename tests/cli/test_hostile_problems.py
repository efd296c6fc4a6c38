"""Any problem file gets an answer or an error of one line: no traceback, no hang.

Valid problems are damaged at random: an odd value replaces another, or a key is lost, renamed,
repeated or copied elsewhere. A refusal says why in one printable line.
"""

from __future__ import annotations

import copy
import json
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.suite.examples import examples

from muster.cli.assign import solve
from muster.cli.main import main
from muster.documents.json_files import parsed
from muster.output import one_line
from muster.protocol.errors import MusterError

ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 3, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**30, 0.5, -0.0, 1e308),
    *(
        float("nan"),
        float("inf"),
        "",
        " ",
        "0",
        "0_0",
        "c1",
        "c1-0",
        "c1-00",
        "-",
        "_",
        "1e3",
        "NaN",
    ),
    *("\x00", "a\nb", "\u2028", "\u0663", "x" * 70_000, "ééé", "|", "eager", "learner"),
    *("sticky", "os:path", "json:loads", "::", "x:", "previous", "min_traffic"),
    *([], [[]], [None], [1], ["0_0"], ["0_0", "0_0"], [["r0"]], [["r0"], "r0"]),
    *({}, {"": ""}, {"a": 1}, {"id": "P1"}, {"members": {}}),
]

GOOD: list[dict[str, Any]] = [
    {
        "assignor": "high-availability",
        "config": {
            "num.standby.replicas": 1,
            "acceptable.recovery.lag": 100,
            "rack.aware.assignment.strategy": "min_traffic",
            "rack.aware.assignment.tags": ["zone"],
        },
        "tasks": [
            {
                "subtopology": "0",
                "partitions": 3,
                "stateful": True,
                "weight": 1,
                "source_racks": [["r0", "r1"], ["r1"], [["r1"], ["r0"]]],
                "changelog_racks": [["r1"], ["r0"], ["r1"]],
            },
            {"subtopology": "1", "partitions": 2},
        ],
        "members": [
            {
                "id": "P1",
                "capacity": 1,
                "rack": "r0",
                "tags": {"zone": "a"},
                "active": ["0_0"],
                "standby": ["0_1"],
                "learner": ["0_2"],
                "ready": ["0_2"],
                "lag": {"0_1": 10},
                "draining": False,
                "topics": ["0"],
            },
            {"id": "P2", "rack": "r1", "tags": {"zone": "b"}},
        ],
        "now_ms": 0,
    },
    {
        "assignor": "cooperative",
        "config": {"scheduled.rebalance.max.delay.ms": 300},
        "tasks": [
            {"connector": "c1", "tasks": 4, "weight": 2, "connector_weight": 1},
            {"connector": "c-2", "tasks": 0},
        ],
        "members": [
            {"id": "w1", "capacity": 1, "active": ["c1", "c1-2", "c9-0"], "protocols": ["eager"]},
            {"id": "w2"},
        ],
    },
    {
        "assignor": "static",
        "tasks": [{"connector": "c1", "tasks": 4}],
        "members": [
            {"id": "w1", "static": ["c1", "c1-0"], "protocols": ["static"]},
            {"id": "w2", "protocols": ["static"]},
        ],
    },
    {
        "assignor": "learner",
        "tasks": [{"subtopology": "0", "partitions": 4, "stateful": True}],
        "members": [
            {"id": "P1", "active": ["0_0", "0_1", "0_2"]},
            {"id": "P2", "learner": ["0_0"], "ready": ["0_0"]},
        ],
    },
    {
        "tasks": [{"subtopology": "0", "partitions": 2}],
        "members": [{"id": "P1", "active": ["0_0"]}],
        "validate": {"members": {"P1": {"active": ["0_0"], "standby": []}}},
    },
    {
        "start": "previous",
        "config": {"rack.aware.assignment.strategy": "balance_subtopology"},
        "tasks": [{"subtopology": "0", "partitions": 2, "source_racks": [["r0"], ["r1"]]}],
        "members": [
            {"id": "P1", "rack": "r0", "active": ["0_0"]},
            {"id": "P2", "rack": "r1", "active": ["0_1"]},
        ],
    },
]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict | list):
        inside = value if isinstance(value, dict) else range(len(value))
        for key in list(inside):
            yield from _paths(value[key], (*path, key))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def damaged(rng: random.Random) -> Any:
    """A valid problem with one to three faults."""
    problem = copy.deepcopy(rng.choice(GOOD))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        paths = list(_paths(problem))
        if not paths:
            break
        *way, last = rng.choice(paths)
        place = _at(problem, tuple(way))
        match rng.choice(("odd", "odd", "odd", "lost", "twice", "renamed", "elsewhere")):
            case "odd":
                place[last] = copy.deepcopy(rng.choice(ODD))
            case "lost":
                del place[last]
            case "twice" if isinstance(place, list):
                place.append(copy.deepcopy(place[last]))
            case "renamed" if isinstance(place, dict):
                place[str(rng.choice(ODD))[:60]] = place.pop(last)
            case _:
                place[last] = copy.deepcopy(_at(problem, rng.choice(paths)))
    return problem


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(0, 2**40))
@example(0)
def test_a_damaged_problem_is_answered_or_refused_in_one_line(seed: int) -> None:
    """The answer can be written as JSON, or the error is one printable line that says something."""
    text = json.dumps(damaged(random.Random(seed))).encode()
    try:
        answer = solve(parsed(text, "line"))
    except MusterError as error:
        message = one_line(str(error))
        assert message.isprintable()
        assert 10 < len(message) < 3_000
    else:
        json.dumps(answer, ensure_ascii=False).encode()


REFUSED = {
    "half a character": (
        '{"tasks": [], "members": [{"id": "\\ud800"}]}',
        "expected whole characters",
    ),
    "a line in a name": (
        '{"tasks": [{"subtopology": "a\\nb", "partitions": 1}],'
        ' "members": [{"id": "P", "active": ["x"]}]}',
        "there are a\\nb_0 to a\\nb_0",
    ),
    "an endless name": (
        json.dumps({"tasks": [], "members": [{"id": "P", "protocols": ["x" * 10**6]}]}),
        "expected one of static",
    ),
    "an endless setting": (
        json.dumps({"tasks": [], "members": [], "config": {"num.standby.replicas": "9" * 10**6}}),
        "is not accepted; expected",
    ),
    "a hundred thousand keys": (
        "{" + ",".join(f'"k{n}": 0' for n in range(100_000)) + ', "k99999": 1}',
        "key 'k99999' is there twice",
    ),
    "a key twice, far inside": (
        '{"tasks": [], "members": [{"id": "P"}, {"id": "Q", "tags": {"zone": "a", "zone": "b"}}]}',
        ": members[1].tags: key 'zone' is there twice in one object",
    ),
    "half a character, far inside": (
        '{"tasks": [{"subtopology": "0", "partitions": 1, "source_racks": [["\\udc00"]]}],'
        ' "members": []}',
        ": tasks[0].source_racks[0][0]: '\\udc00' in a text",
    ),
    "an assignor that does not exist, at the start": (
        '{"tasks": [], "members": [], "assignor": "nope", "start": "previous"}',
        "assignor: no assignor is called 'nope'",
    ),
    "an assignor that does not exist, to check": (
        '{"tasks": [], "members": [], "assignor": "nope", "validate": {"members": {}}}',
        "assignor: no assignor is called 'nope'",
    ),
    "racks of Connect": (
        '{"tasks": [], "members": [], "assignor": "cooperative", "start": "previous"}',
        "start: cooperative knows no racks",
    ),
    "an answer with more": (
        '{"tasks": [], "members": [], "validate": {"members": {}, "zzz": 1}}',
        "validate: unknown key 'zzz'; known: members, unassigned,",
    ),
    "a number of Python's": (
        '{"tasks": [], "members": [], "config": {"num.standby.replicas": "1_0"}}',
        "num.standby.replicas: '1_0' is not accepted",
    ),
    "a number in other digits": (
        '{"tasks": [], "members": [], "config": {"stream.imbalance.percentage": "\\u0661"}}',
        "stream.imbalance.percentage: ",
    ),
    "a tag that is no text": (
        '{"tasks": [], "members": [], "config": {"rack.aware.assignment.tags": [null]}}',
        "rack.aware.assignment.tags: [None] is not accepted",
    ),
    "too large a capacity": (
        '{"tasks": [], "members": [{"id": "P", "capacity": 2147483648}]}',
        "members[0].capacity: 2147483648; expected a whole number, 1 to 2147483647",
    ),
    "too late a time": (
        json.dumps({"tasks": [], "members": [], "now_ms": 2**62}),
        "now_ms: expected a whole number of milliseconds, 0 to 4611686018427387903",
    ),
    "ready twice": (
        '{"tasks": [{"subtopology": "0", "partitions": 1, "stateful": true}],'
        ' "members": [{"id": "P", "learner": ["0_0"], "ready": ["0_0", "0_0"]}]}',
        "members[0].ready[1]: 0_0 is twice",
    ),
    "a stranger twice": (
        '{"assignor": "cooperative", "tasks": [], "members": [{"id": "P", "active": ["c", "c"]}]}',
        "members[0].active: 'c' is twice",
    ),
    "a path that cannot be": ("", "cannot be read"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_one_short_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """A refused problem gives exit code 2 and one line that names the fault."""
    text, message = REFUSED[case]
    path = tmp_path / "problem.json"
    path.write_text(text)
    assert main(["assign", str(path) if text else "a\x00b"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert message in printed.err
    assert len(printed.err) < 1_000


SCENARIOS_REFUSED = {
    "null": ("null", "scenario: expected an object"),
    "a lag beyond every offset": (
        '{"group": {"tasks": [{"subtopology": "0", "partitions": 1, "stateful": true}]}, "events":'
        ' [{"at_ms": 0, "join": {"id": "W"}}, {"at_ms": 1, "lag": {"member": "W", "0_0": 1e99}},'
        ' {"at_ms": 1, "lag": {"member": "W", "0_0": 9223372036854775808}}]}',
        "events[1].lag.0_0: 1e+99; expected a whole number",
    ),
    "no member ever joins": (
        '{"group": {}, "events": [{"at_ms": 0, "undelivered": ["W1", "W2"]},'
        ' {"at_ms": 1, "join": {"id": "W1"}}]}',
        "events[0].undelivered[1]: 'W2'; expected a member that joins",
    ),
}


@pytest.mark.parametrize("case", SCENARIOS_REFUSED)
def test_what_is_refused_of_a_scenario_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """A refused scenario gives exit code 2 and one line that names the fault."""
    text, message = SCENARIOS_REFUSED[case]
    path = tmp_path / "scenario.json"
    path.write_text(text)
    assert main(["simulate", str(path)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert message in printed.err


def test_an_empty_rack_is_none() -> None:
    """An empty rack means no rack, as an empty `client.rack` does in Kafka."""
    unit = {"subtopology": "0", "partitions": 1, "source_racks": [["r"]]}
    placements = [
        solve({"tasks": [unit], "members": [{"id": "P", "rack": rack}]}) for rack in ("", None)
    ]
    assert placements[0] == placements[1]
    assert placements[0]["score"]["cross_rack"] == 0


STREAMS = ("high-availability", "sticky", "fallback", "learner")
CAPACITIES = [(2**31 - 1, 1), (2**31 - 1, 2**31 - 2, 3), (1_000_003, 999_983, 7, 1)]


@pytest.mark.parametrize("capacities", CAPACITIES)
@pytest.mark.parametrize("assignor", [*STREAMS, "cooperative"])
def test_no_capacity_is_too_much(assignor: str, capacities: tuple[int, ...]) -> None:
    """Any capacities are placed, with memory for the tasks and not for the capacities."""
    connect = assignor == "cooperative"
    unit = {"connector": "c", "tasks": 9}
    if not connect:
        unit = {"subtopology": "0", "partitions": 9, "stateful": True}
    members = [{"id": f"m{n}", "capacity": c} for n, c in enumerate(capacities)]
    config = {} if connect else {"num.standby.replicas": 1}
    tracemalloc.start()
    try:
        answer = solve(
            {"assignor": assignor, "config": config, "tasks": [unit], "members": members}
        )
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    held = [len(answer["members"][member["id"]]["active"]) for member in members]
    assert (sum(held), held[0]) == (9 + connect, max(held))
    assert most < 50_000_000


def test_prices_that_cannot_be_added_up_are_refused() -> None:
    """Rack costs whose sum would overflow are refused; the error names the settings."""
    keys = ("rack.aware.assignment.traffic_cost", "rack.aware.assignment.non_overlap_cost")
    unit = {"subtopology": "0", "partitions": 80, "stateful": True}
    problem = {
        "assignor": "sticky",
        "config": {
            "rack.aware.assignment.strategy": "min_traffic",
            "num.standby.replicas": 2,
            **dict.fromkeys(keys, 2**31 - 1),
        },
        "tasks": [{**unit, "source_racks": [["a"]] * 80, "changelog_racks": [["b"]] * 80}],
        "members": [{"id": f"P{n}", "rack": "abc"[n % 3]} for n in range(30)],
    }
    with pytest.raises(MusterError, match=r"expected smaller values of rack\.aware"):
        solve(problem)
