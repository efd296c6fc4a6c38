"""What if: the console's plan is the plan of `muster plan`, drawn on the map."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.console.played import PREFIX, demo_life, fleet_of, play, scenario
from support.repository.sources import ROOT

from muster.console.plans import Question, commands, overlay, plan_json, plan_of, question, weighed
from muster.console.store import GroupKey, Store
from muster.errors import BadInput, NotFound
from muster.protocol.client_tags import GOVERNED
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot
from muster.whatif import planned, present


def newest(life: dict[str, Any]) -> GroupSnapshot:
    """The last record of a life."""
    store = Store([PREFIX])
    play(store, life)
    history = store.history(GroupKey(PREFIX, "g"))
    assert history is not None
    assert history.newest is not None
    return history.newest


DEMO = newest({**demo_life(), "until_ms": 15_000})
"""Four members, twelve tasks, all stable."""


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ([("remove", "W2")], {"remove": ["W2"]}),
        ([("add", '{"id": "W9", "capacity": 2}')], {"add": [{"id": "W9", "capacity": 2}]}),
        ([("add", "W9"), ("remove", "W1")], {"add": [{"id": "W9"}], "remove": ["W1"]}),
        ([("config", "num.standby.replicas=1"), ("assignor", "high-availability")],
         {"config": {"num.standby.replicas": "1"}, "assignor": "high-availability"}),
        ([("remove", ""), ("config", " ")], {}),
    ],
)  # fmt: skip
def test_it_is_the_plan_of_the_command_line(
    fields: list[tuple[str, str]], change: dict[str, Any]
) -> None:
    """The same change gives the same moves and figures as `muster plan`."""
    plan = planned(DEMO, **change)
    asked = question(fields)
    shown = plan_json(DEMO, asked, 0)
    assert plan_of(DEMO, asked) == plan
    assert shown["count"] == len(plan["moves"])
    assert [(m["task"], m["from"], m["to"], m["reason"]) for m in shown["moves"]] == [
        (m["task"], m["from"], m["to"], m["reason"]) for m in plan["moves"]
    ]
    assert shown["after"] == plan["score"]
    assert shown["before"] == present(DEMO)
    json.dumps(shown)


def test_the_map_shows_where_every_task_would_go() -> None:
    """Without W2 its tasks go to others; the map's targets are the plan's owners."""
    asked = Question(remove=("W2",))
    plan = plan_of(DEMO, asked)
    drawn = overlay(DEMO, asked, plan, 0)
    name = {slot: row[0] for slot, row in drawn.members.items()}
    target = {f"0_{task}": name[slot] for task, slot in enumerate(drawn.rows[:, 1].tolist())}
    assert target == {t: m for m, held in plan["members"].items() for t in held["active"]}
    arrows = drawn.rows[drawn.rows[:, 3] == 1]
    assert len(arrows) == 3
    assert drawn.head["plan"] is True


def test_an_added_member_has_a_column() -> None:
    """A member that would join is on the map with the tasks that it would get."""
    asked = Question(add=({"id": "W9", "rack": "r7"},))
    drawn = overlay(DEMO, asked, plan_of(DEMO, asked), 0)
    (slot,) = [slot for slot, row in drawn.members.items() if row[0] == "W9"]
    assert drawn.members[slot][1:4] == ["r7", 1, "new"]
    assert (drawn.rows[:, 1] == slot).sum() == 2


def test_another_capacity_keeps_what_the_member_has() -> None:
    """With twice the capacity W1 gets more and gives nothing away."""
    asked = question([("capacity", "W1=2")])
    plan = plan_of(DEMO, asked)
    index = {m.id: m.slot for m in DEMO.members}
    before = {f"0_{t}" for t, slot in enumerate(DEMO.holder.tolist()) if slot == index["W1"]}
    assert before < set(plan["members"]["W1"]["active"])
    assert {m["to"] for m in plan["moves"]} == {"W1"}


def test_another_weight_is_another_list_of_tasks() -> None:
    """Two units: heavier tasks of one spread anew; the command carries the whole list."""
    units = [{"subtopology": "0", "partitions": 4}, {"subtopology": "1", "partitions": 5}]
    two = newest(scenario(units, [*fleet_of(3)], until_ms=5_000))
    heavy = [units[0], {**units[1], "weight": 2.5}]
    shown = plan_json(two, question([("weight", "1=2.5")]), 0)
    plan = planned(two, tasks=heavy)
    assert [m["task"] for m in shown["moves"]] == [m["task"] for m in plan["moves"]]
    assert shown["after"] == plan["score"]
    command = f"printf %s '{json.dumps(heavy)}' | muster"
    assert shown["commands"] == [
        f"{command} plan --group g --tasks -",
        f"{command} config set --group g --tasks -",
    ]
    assert plan_json(two, question([("weight", "1=2")]), 0, is_shadowed=True)["commands"] == []


def test_a_group_that_is_only_looked_at_has_the_command_that_looks() -> None:
    """Kafka coordinates it: nothing of muster's could change it."""
    asked = question([("remove", "W1")])
    assert commands(DEMO, asked, is_shadowed=True) == ["muster shadow --group g --remove-member W1"]


def test_figures_before_are_those_of_the_group_as_it_is() -> None:
    """A group with 4, 4 and 0 tasks has a difference of 4 before, and less after."""
    uneven = newest(
        scenario(
            [{"subtopology": "0", "partitions": 8}],
            [
                *fleet_of(2),
                {
                    "at_ms": 5_000,
                    "join": {"id": "W3"},
                },
            ],
            until_ms=4_000,
        )
    )
    shown = plan_json(uneven, question([("add", "W3")]), 0)
    assert (shown["before"]["imbalance"], shown["after"]["imbalance"]) == (0, 1)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ([("remove", "W7")], NotFound),
        ([("config", "num.standby.replicas")], BadInput),
        ([("capacity", "W1=0")], BadInput),
        ([("capacity", "W1=x")], BadInput),
        ([("capacity", "W7=2")], BadInput),
        ([("weight", "0=-1")], BadInput),
        ([("weight", "0=nan")], BadInput),
        ([("weight", "0")], BadInput),
        ([("weight", "9=2")], BadInput),
        ([("add", '{"id": ')], BadInput),
        ([("add", '{"name": "W9"}')], BadInput),
        ([("add", "W1")], BadInput),
        ([("assignor", "no-such")], BadInput),
        ([("add", f"N{n}") for n in range(201)], BadInput),
    ],
)
def test_a_wrong_question_is_an_error(
    fields: list[tuple[str, str]], error: type[Exception]
) -> None:
    """What cannot be asked is refused with a message, as on the command line."""
    with pytest.raises(error):
        plan_json(DEMO, question(fields), 0)


def test_a_request_loads_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only who types the assignor in a shell may name any code; a page's request may not."""
    (tmp_path / "loaded_by_a_plan.py").write_text("def call():\n    raise SystemExit\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = question([("assignor", "loaded_by_a_plan:call")])
    with pytest.raises(BadInput, match="is not loaded"):
        plan_json(DEMO, asked, 0)
    assert "loaded_by_a_plan" not in sys.modules


def test_commands_can_be_copied_into_a_shell() -> None:
    """The commands that show and do the change, with hostile names quoted."""
    asked = question(
        [("remove", "W 2; rm"), ("config", "num.standby.replicas=1"), ("assignor", "sticky")]
    )
    assert commands(replace(DEMO, group=GroupId("a b")), asked) == [
        "muster plan --group 'a b' --remove-member 'W 2; rm' --assignor sticky "
        "--config num.standby.replicas=1",
        "muster drain --group 'a b' --member 'W 2; rm'",
        "muster config set --group 'a b' --assignor sticky --config num.standby.replicas=1",
    ]
    member = {
        "id": "-9", "rack": "r1", "capacity": 2, "tags": {"zone": "a b"}, "topics": ["0"],
        "static": ["c1"], "protocols": ["compatible", "eager"], "draining": True,
    }  # fmt: skip
    assert commands(DEMO, Question(add=(member,)), ["--bootstrap-server", "kafka:9"])[1:] == [
        "muster worker --group g --bootstrap-server kafka:9 --member-id=-9 --rack r1 "
        "--tag 'zone=a b' --capacity 2 --topic 0 --static c1 --connect-protocol compatible "
        "--exec './process-partition {task}'",
        "muster drain --group g --bootstrap-server kafka:9 --member=-9",
    ]


def test_a_member_that_starts_again_is_the_same_member() -> None:
    """Another capacity: its instance id, rack and tags stay; a governed group has no worker."""
    members = tuple(replace(m, instance_id="i1", tags=(("zone", "a"),)) for m in DEMO.members)
    again = "muster worker --group g --member-id W1 --instance-id i1 --rack r1 --tag zone=a "
    asked = question([("capacity", "W1=2")])
    assert commands(replace(DEMO, members=members), asked)[1:] == [
        f"{again}--capacity 2 --exec './process-partition {{task}}'"
    ]
    governed = tuple(replace(m, tags=(GOVERNED,)) for m in DEMO.members)
    assert commands(replace(DEMO, members=governed), asked)[1:] == []


NEW = {"id": "W9", "rack": "a'b", "tags": {"zone": "\\n$x"}, "capacity": 3}
TASKS = [{"subtopology": "0", "partitions": 12}, {"connector": "c'1", "tasks": 2}]


@pytest.mark.parametrize(
    "asked",
    [
        Question(
            remove=("W2",),
            config={"num.standby.replicas": "1", "session.timeout.ms": ""},
            assignor="high-availability",
        ),
        Question(add=(NEW,)),
        Question(add=(NEW, {"id": "W8"}), remove=("W3",)),
        Question(tasks=TASKS),
        Question(tasks=TASKS, add=(NEW,)),
        Question(capacity={"W1": 2}),
        Question(capacity={"W1": 2, "W4": 3}, weights={"0": 2.5}),
    ],
)
def test_the_first_command_prints_the_same_plan(asked: Question) -> None:
    """A shell runs it: `muster plan` reads the very change that the page was asked about."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    where = ["--bootstrap-server", "kafka:9", "--command-config", "c d", "--topic-prefix", "own"]
    shown = plan_json(DEMO, asked, 0, where=where)
    muster = f'muster() {{ {shlex.quote(sys.executable)} -c "$READ" "$@"; }}'
    ran = subprocess.run(
        [bash, "-c", f"{muster}\n{shown['commands'][0]}"],
        env={**os.environ, "READ": READ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    change, connection = json.loads(ran.stdout)
    assert connection == ["g", "kafka:9", "c d", "own"]
    assert planned(DEMO, **change) == plan_of(DEMO, weighed(DEMO, asked))


READ = """
import argparse, json, sys
from muster.cli import plan
from muster.cli.options import changes
from muster.documents.json_files import load

parser = argparse.ArgumentParser()
plan.configure(parser)
args = parser.parse_args(sys.argv[2:])
change = {**changes(args), "tasks": load(args.tasks) if args.tasks else None}
connection = [args.group, args.bootstrap_server, args.command_config, args.topic_prefix]
print(json.dumps([change, connection]))
"""
"""Prints what `muster plan` reads from its command line."""
