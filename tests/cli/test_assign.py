"""`muster assign`: problems from a file and from standard input, valid and invalid."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.cli.main import main

PROBLEM: dict[str, Any] = {
    "assignor": "sticky",
    "tasks": [{"subtopology": "0", "partitions": 4, "stateful": True}],
    "members": [
        {"id": "P1", "active": ["0_0", "0_1", "0_2", "0_3"]},
        {"id": "P2", "standby": ["0_3"], "lag": {"0_3": 5}},
    ],
}


def answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], problem: object, *options: str
) -> Any:
    """The parsed output of the command for a problem."""
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(problem))
    assert main(["assign", str(path), *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_output_is_the_documented_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output has every documented key; the standby becomes active, the move has a reason."""
    printed = answer(tmp_path, capsys, PROBLEM)
    reason = printed["moves"][0].pop("reason")
    assert reason
    assert printed == {
        "members": {
            "P1": {"active": ["0_0", "0_1"], "standby": [], "learner": [], "revoked": []},
            "P2": {"active": ["0_2", "0_3"], "standby": [], "learner": [], "revoked": []},
        },
        "unassigned": [],
        "followup_ms": None,
        "delay_ms": 0,
        "moves": printed["moves"],
        "score": {"moved": 2, "imbalance": 0, "cross_rack": 0, "cost": 0, "cost_lower_bound": 0},
    }
    assert [(m["task"], m["role"], m["from"], m["to"]) for m in printed["moves"]] == [
        ("0_2", "active", "P1", "P2"),
        ("0_3", "active", "P1", "P2"),
    ]


def test_members_may_come_in_any_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The order of the members in the file does not change the answer."""
    shuffled = {**PROBLEM, "members": PROBLEM["members"][::-1]}
    assert answer(tmp_path, capsys, PROBLEM) == answer(tmp_path, capsys, shuffled)


def test_default_assignor_is_high_availability(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a name the assignor is high-availability: P2 first learns a task that it lacks."""
    unnamed = {key: value for key, value in PROBLEM.items() if key != "assignor"}
    named = {**unnamed, "assignor": "high-availability"}
    printed = answer(tmp_path, capsys, unnamed)
    assert printed == answer(tmp_path, capsys, named)
    assert printed["members"]["P2"]["learner"]


def test_repeat_adds_the_time_and_changes_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--repeat adds a positive `elapsed_us` and changes nothing else."""
    timed = answer(tmp_path, capsys, PROBLEM, "--repeat", "3")
    assert timed.pop("elapsed_us") > 0
    assert timed == answer(tmp_path, capsys, PROBLEM)


def test_table_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--format table prints the same answer as tables with upper-case headings."""
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(PROBLEM))
    assert main(["assign", str(path), "--format", "table"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["MEMBER", "ACTIVE", "STANDBY", "LEARNER", "REVOKED"]
    assert lines[1].split() == ["P1", "0_0,0_1", "-", "-", "-"]
    assert "TASK ROLE   FROM TO REASON" in lines


def test_lines_answers_in_order_errors_among_them() -> None:
    """--lines answers one problem a line, in order; a bad line is answered with an error."""
    bad = {**PROBLEM, "members": [{"id": "P1", "capacity": 0}]}
    text = "\n".join([json.dumps(PROBLEM), "{nonsense", json.dumps(bad), json.dumps(PROBLEM)])
    run = subprocess.run(
        [sys.executable, "-m", "muster.cli.main", "assign", "-", "--lines"],
        input=text.encode(),
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    first, broken, refused, last = map(json.loads, run.stdout.splitlines())
    assert first == last
    assert list(broken) == ["error"]
    assert refused == {"error": "members[0].capacity: 0; expected a whole number, 1 or more"}


def test_warnings_go_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings go to standard error, and the output stays as documented."""
    path = tmp_path / "problem.json"
    problem = {
        "assignor": "static",
        "tasks": [{"connector": "c", "tasks": 1}],
        "members": [{"id": "w", "static": ["c-0"]}],
    }
    path.write_text(json.dumps(problem))
    assert main(["assign", str(path)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["unassigned"] == ["c"]
    assert printed.err.startswith("muster assign: 1 jobs are named by no worker")


def test_deleted_connectors_are_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A worker that runs a connector the group does not have gets it revoked."""
    problem = {
        "assignor": "cooperative",
        "tasks": [{"connector": "c1", "tasks": 1}],
        "members": [{"id": "w", "active": ["c9", "c9-0", "c1", "c1-0"]}],
    }
    held = answer(tmp_path, capsys, problem)["members"]["w"]
    assert (held["active"], held["revoked"]) == (["c1", "c1-0"], ["c9", "c9-0"])


def test_start_previous_optimises_racks_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """EX-R3, EX-R4: `start: previous` keeps the counts and reaches the proven optimal cost."""
    replicas = [[["r0", "r1"], ["r1", "r2"]], [["r0", "r2"], ["r1", "r3"]]]
    problem = {
        "start": "previous",
        "config": {"rack.aware.assignment.strategy": "min_traffic"},
        "tasks": [
            {"subtopology": str(n), "partitions": 2, "stateful": True, "source_racks": racks}
            for n, racks in enumerate(replicas)
        ],
        "members": [
            {"id": "P1", "rack": "r0", "active": ["0_1", "1_1"]},
            {"id": "P2", "rack": "r1", "active": ["1_0"]},
            {"id": "P3", "rack": "r2", "active": ["0_0"]},
        ],
    }
    printed = answer(tmp_path, capsys, problem)
    held = {name: member["active"] for name, member in printed["members"].items()}
    assert held == {"P1": ["0_0", "1_0"], "P2": ["1_1"], "P3": ["0_1"]}
    assert (printed["score"]["cost"], printed["score"]["cost_lower_bound"]) == (4, 4)


def test_start_previous_gives_up_what_may_not_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copies of stateless tasks and holdings outside `topics` are dropped; the rest stays."""
    problem = {
        "start": "previous",
        "tasks": [
            {"subtopology": "0", "partitions": 2, "stateful": True},
            {"subtopology": "1", "partitions": 2, "stateful": True},
            {"subtopology": "2", "partitions": 1, "stateful": False},
        ],
        "members": [
            {"id": "P1", "active": ["0_0", "1_0"], "standby": ["1_1", "2_0"], "topics": ["0"]},
            {"id": "P2", "active": ["1_1", "2_0"], "learner": ["0_1"], "topics": ["1", "2"]},
            {"id": "P3", "active": ["0_1"], "standby": ["0_0"]},
        ],
    }
    printed = answer(tmp_path, capsys, problem)
    held = {name: (row["active"], row["standby"]) for name, row in printed["members"].items()}
    assert held == {
        "P1": (["0_0"], []),
        "P2": (["1_1", "2_0"], []),
        "P3": (["0_1"], ["0_0"]),
    }
    assert [row["learner"] for row in printed["members"].values()] == [[], [], []]
    reason = "P1 does not take it any more; nothing is placed anew"
    gone = {"task": "1_0", "role": "active", "from": "P1", "to": None, "reason": reason}
    assert (printed["unassigned"], printed["moves"]) == (["1_0"], [gone])


@pytest.mark.parametrize(
    ("members", "verdict"),
    [
        ({"P1": {"active": ["0_0"]}, "P2": {}}, {"valid": True}),
        (
            {"P1": {"active": ["9_9"]}, "P2": {}},
            {"valid": False, "error": "UNKNOWN_TASK_ID", "task": "9_9"},
        ),
        (
            {"P1": {"active": ["0_0"]}, "P2": {"active": ["0_0"]}},
            {
                "valid": False,
                "error": "ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES",
                "task": "0_0",
                "member": "P2",
            },
        ),
        (
            {"P1": {"active": ["0_0"], "standby": ["0_0"]}, "P2": {}},
            {
                "valid": False,
                "error": "ACTIVE_AND_STANDBY_TASK_ASSIGNED_TO_SAME_KAFKASTREAMS",
                "task": "0_0",
                "member": "P1",
            },
        ),
        ({"P1": {}}, {"valid": False, "error": "MISSING_PROCESS_ID", "member": "P2"}),
        (
            {"P1": {}, "P2": {}, "P3": {}},
            {"valid": False, "error": "UNKNOWN_PROCESS_ID", "member": "P3"},
        ),
    ],
)
def test_validate_checks_an_answer(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    members: dict[str, Any],
    verdict: dict[str, Any],
) -> None:
    """A given answer is judged with the error names of KIP-924."""
    problem = {**PROBLEM, "validate": {"members": members}}
    assert answer(tmp_path, capsys, problem) == verdict


def test_a_refused_answer_names_its_assignor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a plug-in that leaves a member out, the error says so, and what would be right."""
    (tmp_path / "forgetful_assignor.py").write_text(
        "from muster.assignor.api import TaskAssignment, TaskAssignor, identity_assignment\n"
        "class Forgetful(TaskAssignor):\n"
        "    def assign(self, state):\n"
        "        return TaskAssignment(list(identity_assignment(state).values())[:1])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "problem.json"
    path.write_text(json.dumps({**PROBLEM, "assignor": "forgetful_assignor:Forgetful"}))
    assert main(["assign", str(path)]) == 1
    assert capsys.readouterr().err == (
        "muster assign: the answer of assignor forgetful_assignor:Forgetful is refused:"
        " MISSING_PROCESS_ID member P2: an answer has an entry for each member of the group, if"
        " only an empty one\n"
    )


def test_standard_input_is_a_dash(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`-` reads the problem from standard input."""
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(PROBLEM))
    with path.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main(["assign", "-"]) == 0
    assert list(json.loads(capsys.readouterr().out)["members"]) == ["P1", "P2"]
