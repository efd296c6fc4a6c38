"""Problems and scenarios that are refused: exit code 2, no output, and one line that says why.

`tests/protocol/fuzz.py` damages valid problems at random.
"""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from muster.cli.assign import solve
from muster.cli.main import main
from muster.protocol.errors import MusterError

PROBLEM: dict[str, Any] = {
    "tasks": [{"subtopology": "0", "partitions": 4, "stateful": True}],
    "members": [{"id": "P1"}, {"id": "P2"}],
}
NOTHING: dict[str, Any] = {"tasks": [], "members": []}


def with_member(**about: object) -> dict[str, Any]:
    """The problem with another first member and no second one."""
    return {**PROBLEM, "members": [{"id": "P1", **about}]}


REFUSED: dict[str, tuple[object, str]] = {
    "no object": ([1], "expected an object with tasks and members, got a list"),
    "no tasks": ({"members": []}, "tasks: missing"),
    "unknown key": ({**PROBLEM, "member": []}, "unknown key 'member'"),
    "unknown key of a member": (with_member(rak="r"), "members[0]: unknown key 'rak'"),
    "unknown setting": (
        {**PROBLEM, "config": {"x": 1}},
        "no setting 'x': muster config describe lists all settings",
    ),
    "unknown assignor": ({**PROBLEM, "assignor": "best"}, "assignor: no assignor is called 'best'"),
    "unknown task": (with_member(active=["0_0", "9_9"]), "members[0].active[1]: no task '9_9'"),
    "unknown task's lag": (with_member(lag={"9_9": 1}), "members[0].lag.9_9: no task '9_9'"),
    "two members of one name": (
        {**PROBLEM, "members": [{"id": "A"}, {"id": "A"}]},
        "members[1].id: 'A' appears twice",
    ),
    "two owners": (
        {**PROBLEM, "members": [{"id": "A", "active": ["0_0"]}, {"id": "B", "active": ["0_0"]}]},
        "members[1].active[0]: 0_0 is active on A already",
    ),
    "two roles": (
        with_member(active=["0_1"], standby=["0_0", "0_1"]),
        "members[0].standby[1]: 0_1 is active here too",
    ),
    "task twice": (with_member(active=["0_1", "0_1"]), "members[0].active[1]: 0_1 is twice"),
    "ready but no learner": (
        with_member(ready=["0_1"]),
        "members[0].ready[0]: 0_1 is neither a learner nor",
    ),
    "negative capacity": (with_member(capacity=-1), "members[0].capacity: -1"),
    "negative lag": (with_member(lag={"0_0": -3}), "members[0].lag.0_0: -3"),
    "capacity is true": (with_member(capacity=True), "members[0].capacity: True"),
    "no such protocol": (with_member(protocols=["fast"]), "members[0].protocols[0]: 'fast'"),
    "no such topic": (with_member(topics=["7"]), "members[0].topics[0]: no subtopology '7'"),
    "no id": ({**PROBLEM, "members": [{}]}, "members[0].id: expected a name"),
    "bar in the id": ({**PROBLEM, "members": [{"id": "a|b"}]}, "members[0].id: member id 'a|b'"),
    "far too many tasks": (
        {**PROBLEM, "tasks": [{"subtopology": "0", "partitions": 10**12}]},
        "tasks: 1000000000000 tasks",
    ),
    "wrong start": ({**PROBLEM, "start": "now"}, "start: 'now'; expected 'previous'"),
    "negative time": ({**PROBLEM, "now_ms": -1}, "now_ms: expected a whole number"),
    "wrong validate": ({**PROBLEM, "validate": {"P1": {}}}, 'validate: expected an object with "'),
    # not JSON, or JSON that no document may be
    "empty": (b"", "…is empty; expected JSON"),
    "cut off": (b'{"tasks": [', "…not JSON"),
    "bytes": (b"\xff" * 5_000_000, "…not UTF-8"),
    "brackets": (b"[" * 5_000_000, "…nested too deep"),
    "text": (b"x" * 5_000_000, "…not JSON"),
    "endless number": (b'{"now_ms": ' + b"9" * 100_000 + b"}", "…not JSON"),
    "key twice": (b'{"tasks": [], "tasks": [], "members": []}', "…key 'tasks' appears twice"),
    "a hundred thousand keys": (
        b"{" + b",".join(b'"k%d": 0' % n for n in range(100_000)) + b', "k99999": 1}',
        "…key 'k99999' appears twice",
    ),
    "a key twice, far inside": (
        b'{"tasks": [], "members": [{"id": "P"}, {"id": "Q", "tags": {"z": "a", "z": "b"}}]}',
        "…: members[1].tags: key 'z' appears twice in one object",
    ),
    "half a character": (
        b'{"tasks": [], "members": [{"id": "\\ud800"}]}',
        "…expected whole characters",
    ),
    "half a character, far inside": (
        b'{"tasks": [{"subtopology": "0", "partitions": 1, "source_racks": [["\\udc00"]]}],'
        b' "members": []}',
        "…: tasks[0].source_racks[0][0]: '\\udc00' in a text",
    ),
    # values that are too long, too large or of other kinds
    "a line in a name": (
        {
            "tasks": [{"subtopology": "a\nb", "partitions": 1}],
            "members": [{"id": "P", "active": ["x"]}],
        },
        "…there are a\\nb_0 to a\\nb_0",
    ),
    "an endless name": (with_member(protocols=["x" * 10**6]), "…expected one of static"),
    "an endless setting": (
        {**NOTHING, "config": {"num.standby.replicas": "9" * 10**6}},
        "…is not accepted; expected",
    ),
    "a number of Python's": (
        {**NOTHING, "config": {"num.standby.replicas": "1_0"}},
        "num.standby.replicas: '1_0' is not accepted",
    ),
    "a number in other digits": (
        {**NOTHING, "config": {"stream.imbalance.percentage": "\u0661"}},
        "stream.imbalance.percentage: ",
    ),
    "a tag that is no text": (
        {**NOTHING, "config": {"rack.aware.assignment.tags": [None]}},
        "rack.aware.assignment.tags: [None] is not accepted",
    ),
    "too large a capacity": (
        with_member(capacity=2**31),
        "members[0].capacity: 2147483648; expected a whole number, 1 to 2147483647",
    ),
    "too late a time": (
        {**NOTHING, "now_ms": 2**62},
        "now_ms: expected a whole number of milliseconds, 0 to 4611686018427387903",
    ),
    "ready twice": (
        with_member(learner=["0_0"], ready=["0_0", "0_0"]),
        "members[0].ready[1]: 0_0 is twice",
    ),
    "a stranger twice": (
        {**NOTHING, "assignor": "cooperative", "members": [{"id": "P", "active": ["c", "c"]}]},
        "members[0].active: 'c' is twice",
    ),
    # what is asked for
    "unknown assignor, at the start": (
        {**NOTHING, "assignor": "nope", "start": "previous"},
        "assignor: no assignor is called 'nope'",
    ),
    "unknown assignor, to check": (
        {**NOTHING, "assignor": "nope", "validate": {"members": {}}},
        "assignor: no assignor is called 'nope'",
    ),
    "racks of Connect": (
        {**NOTHING, "assignor": "cooperative", "start": "previous"},
        "start: cooperative ignores racks",
    ),
    "an answer with more": (
        {**NOTHING, "validate": {"members": {}, "zzz": 1}},
        "validate: unknown key 'zzz'; known: members, unassigned,",
    ),
}


def refused(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, document: object, message: str
) -> None:
    """Expect an error of one short line about a document; `…` stands for any text before."""
    path = folder / "document.json"
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    path.write_bytes(text)
    assert main([command, str(path)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert len(printed.err) < 1_000
    assert printed.err.startswith(f"muster {command}: ")
    said = printed.err.removeprefix(f"muster {command}: ")
    assert message[1:] in said if message[0] == "…" else said.startswith(message)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_one_short_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """A refused problem gives exit code 2 and one line with the place and the fault."""
    refused(tmp_path, capsys, "assign", *REFUSED[case])


@pytest.mark.parametrize("path", ["a\x00b", "/nowhere/problem.json"])
def test_a_file_that_cannot_be_read(capsys: pytest.CaptureFixture[str], path: str) -> None:
    """A path that cannot be read gives exit code 2 and no traceback."""
    assert main(["assign", path]) == 2
    printed = capsys.readouterr().err
    assert ("cannot be read" in printed, printed.count("\n")) == (True, 1)


SCENARIOS_REFUSED: dict[str, tuple[object, str]] = {
    "null": (None, "…scenario: expected an object"),
    "a lag beyond every offset": (
        {
            "group": {"tasks": PROBLEM["tasks"]},
            "events": [
                {"at_ms": 0, "join": {"id": "W"}},
                {"at_ms": 1, "lag": {"member": "W", "0_0": 1e99}},
                {"at_ms": 1, "lag": {"member": "W", "0_0": 2**63}},
            ],
        },
        "…events[1].lag.0_0: 1e+99; expected a whole number",
    ),
    "no member ever joins": (
        {
            "group": {},
            "events": [
                {"at_ms": 0, "undelivered": ["W1", "W2"]},
                {"at_ms": 1, "join": {"id": "W1"}},
            ],
        },
        "…events[0].undelivered[1]: 'W2'; expected a member that joins",
    ),
}


@pytest.mark.parametrize("case", SCENARIOS_REFUSED)
def test_what_is_refused_of_a_scenario_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """A refused scenario gives exit code 2 and one line that names the fault."""
    refused(tmp_path, capsys, "simulate", *SCENARIOS_REFUSED[case])


@pytest.mark.parametrize("options", [["--seed", "3"], ["--lives", "1", "--processes", "1"]])
def test_random_members_need_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """Without tasks, the members that are invented would have no work: one line says so."""
    path = tmp_path / "document.json"
    path.write_text('{"group": {}}')
    assert main(["simulate", *options, str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("muster simulate: group.tasks: missing or empty; expected tasks")


def test_many_scenarios_and_many_lives_are_not_played_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--lines` beside `--lives` would go unnoticed: one line says to give one of them."""
    assert main(["simulate", "--lines", "--lives", "1", str(tmp_path / "scenarios.jsonl")]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("muster simulate: --lines reads many scenarios, --lives plays")


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
def test_the_largest_capacities_are_placed(assignor: str, capacities: tuple[int, ...]) -> None:
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
    """Rack costs whose sum would not fit 64 bits are refused; the error names the settings."""
    keys = ("rack.aware.assignment.traffic_cost", "rack.aware.assignment.non_overlap_cost")
    unit = {"subtopology": "0", "partitions": 80, "stateful": True}
    problem = {
        "assignor": "sticky",
        "config": {
            "rack.aware.assignment.strategy": "min_traffic",
            "num.standby.replicas": 2,
            **dict(zip(keys, (2**31 - 1, 2**31 - 2), strict=True)),
        },
        "tasks": [{**unit, "source_racks": [["a"]] * 80, "changelog_racks": [["b"]] * 80}],
        "members": [{"id": f"P{n}", "rack": "abc"[n % 3]} for n in range(30)],
    }
    with pytest.raises(MusterError, match=r"expected smaller values of rack\.aware"):
        solve(problem)
