"""`muster simulate` reproduces the learner examples (EX-L)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.cli.main import main
from muster.cli.simulate import as_json, play
from muster.errors import BadInput

FIVE = [{"subtopology": "0", "partitions": 5, "stateful": True}]
FOUR = [{"subtopology": "0", "partitions": 4, "stateful": True}]


def played(*events: dict[str, Any], tasks: object = FIVE, **config: object) -> list[Any]:
    """Generations under the learner assignor; no learner is ready until an event says so."""
    values = {key.replace("_", "."): value for key, value in config.items()}
    scenario = {
        "group": {"assignor": "learner", "config": values, "tasks": tasks},
        "defaults": {"restore_ms": None},
        "events": list(events),
        "until_ms": 40_000,
    }
    return as_json(play(scenario))[:-1]


def join(at_ms: int, name: str, *active: str) -> dict[str, Any]:
    """A member joins with the tasks that it runs."""
    return {"at_ms": at_ms, "join": {"id": name, "active": list(active)}}


def ready(at_ms: int, name: str, task: str) -> dict[str, Any]:
    """A member's learner has caught up."""
    return {"at_ms": at_ms, "ready": {"member": name, "task": task}}


def shape(generation: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """(actives, learners) of each member."""
    return {m: (len(h["active"]), len(h["learner"])) for m, h in generation["members"].items()}


def learns(generation: dict[str, Any], member: str) -> str:
    """The only task that a member learns."""
    (task,) = generation["members"][member]["learner"]
    return str(task)


START = [join(0, "S1", "0_0", "0_1"), join(0, "S2", "0_2", "0_3"), join(0, "S3", "0_4")]


def test_ex_l1_scale_up_two_joins() -> None:
    """Owners keep running until their successors have learned; each handover is one generation."""
    both = [*START, join(1_000, "S4"), join(2_000, "S5")]
    at_first = played(*both)
    assert shape(at_first[1]) == {"S1": (2, 0), "S2": (2, 0), "S3": (1, 0), "S4": (0, 1)}
    first, second = learns(at_first[2], "S4"), learns(at_first[2], "S5")
    assert {first, second} & {"0_0", "0_1"}
    assert {first, second} & {"0_2", "0_3"}
    records = played(*both, ready(3_000, "S4", first), ready(4_000, "S5", second))
    assert shape(records[2]) == {**shape(at_first[1]), "S5": (0, 1)}
    assert shape(records[3]) == {**shape(records[2]), "S1": (1, 0), "S4": (1, 0)}
    assert shape(records[4]) == {f"S{n}": (1, 0) for n in range(1, 6)}
    assert records[3]["cause"] == f"learner of {first} on S4 ready"
    assert records[3]["members"]["S4"]["active"] == [first]


def test_ex_l2_scale_up_from_an_empty_group() -> None:
    """The first member runs all; the next two learn their shares, then run them."""
    joins = [join(0, "S1"), join(1_000, "S2"), join(1_000, "S3")]
    first, second = played(*joins)
    assert shape(first) == {"S1": (5, 0)}
    assert sorted(shape(second).values()) == [(0, 1), (0, 2), (5, 0)]
    learned = {name: second["members"][name]["learner"] for name in ("S2", "S3")}
    caught_up = [ready(2_000, name, task) for name, tasks in learned.items() for task in tasks]
    assert sorted(shape(played(*joins, *caught_up)[-1]).values()) == [(1, 0), (2, 0), (2, 0)]


def test_ex_l3_scale_down() -> None:
    """A draining member keeps a task until another has learned it, and ends empty."""
    drain = {"at_ms": 1_000, "drain": "S2"}
    records = played(*START, drain)
    assert shape(records[1]) == {"S1": (2, 1), "S2": (2, 0), "S3": (1, 1)}
    learning = {m: learns(records[1], m) for m in ("S1", "S3")}
    assert sorted(learning.values()) == ["0_2", "0_3"]
    records = played(
        *START, drain, ready(2_000, "S3", learning["S3"]), ready(3_000, "S1", learning["S1"])
    )
    assert shape(records[2]) == {"S1": (2, 1), "S2": (1, 0), "S3": (2, 0)}
    assert shape(records[3]) == {"S1": (3, 0), "S2": (0, 0), "S3": (2, 0)}


def test_ex_l3c_scale_down_timeout() -> None:
    """After `scale.down.timeout.ms` learners take over, ready or not."""
    _, drained, *_, last = played(
        *START, {"at_ms": 1_000, "drain": "S2"}, scale_down_timeout_ms=5_000
    )
    assert (last["at_ms"], shape(last)) == (6_000, {"S1": (3, 0), "S2": (0, 0), "S3": (2, 0)})
    for name in ("S1", "S3"):
        assert learns(drained, name) in last["members"][name]["active"]
    assert last["members"]["S1"]["active"][:2] == ["0_0", "0_1"]


def test_ex_l4_leader_crash_during_scaling() -> None:
    """When an owner leaves, its learner takes over unready; members with room get the rest."""
    records = played(*START, join(1_000, "S4"))
    task = learns(records[1], "S4")
    records = played(*START, join(1_000, "S4"), {"at_ms": 2_000, "leave": "S1"})
    assert task in records[-1]["members"]["S4"]["active"]
    assert sorted(shape(records[-1]).values()) == [(1, 0), (2, 0), (2, 0)]


@pytest.mark.parametrize(("partial", "generations"), [(True, 4), (False, 3)])
def test_ex_l6_partial_or_together(partial: bool, generations: int) -> None:
    """Two learners of one member take over one by one, or both in one generation."""
    start = [join(0, "S1", "0_0", "0_1", "0_2", "0_3"), join(1_000, "S2")]
    first = played(*start, tasks=FOUR, learner_partial_rebalance=partial)
    one, two = first[1]["members"]["S2"]["learner"]
    records = played(
        *start,
        ready(2_000, "S2", one),
        ready(3_000, "S2", two),
        tasks=FOUR,
        learner_partial_rebalance=partial,
    )
    assert len(records) == generations
    assert shape(records[-1]) == {"S1": (2, 0), "S2": (2, 0)}


def test_lag_promotes_like_a_report() -> None:
    """A lag within the acceptable one makes a learner ready, as a report does."""
    start = [*START, join(1_000, "S4")]
    task = learns(played(*start)[1], "S4")
    far = {"at_ms": 2_000, "lag": {"member": "S4", task: 20_000}}
    near = {"at_ms": 3_000, "lag": {"member": "S4", task: 10_000}}
    records = played(*start, far, near)
    assert [g["at_ms"] for g in records] == [0, 1_000, 3_000]
    assert shape(records[2])["S4"] == (1, 0)


def test_an_error_in_a_scenario_names_its_place() -> None:
    """The error names the place of the fault."""
    for events, place in (
        ([{"at_ms": 0, "leave": "W9"}], "events[0].leave"),
        ([{"at_ms": 0, "jon": {"id": "W1"}}], "unknown key 'jon'"),
        ([{"at_ms": -1, "leave": "W1"}], "events[0].at_ms"),
    ):
        with pytest.raises(BadInput, match=place.replace("[", r"\[").replace("]", r"\]")):
            play({"group": {"tasks": FIVE}, "events": events})


def test_lines_and_seeds(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    """--lines gives one answer a line; a seed gives the same life every time."""
    scenario = {"group": {"tasks": FIVE}, "events": [join(0, "W1")], "until_ms": 1_000}
    file = tmp_path / "lines"
    file.write_text(f"{json.dumps(scenario)}\n{{}}\n")
    assert main(["simulate", str(file), "--lines"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert json.loads(first)[-1]["generations"] == 1
    assert json.loads(second) == {"error": "group: missing; a scenario needs a group with tasks"}
    lives = []
    for _ in range(2):
        assert main(["simulate", "--seed", "7"]) == 0
        lives.append(capsys.readouterr().out)
    assert lives[0] == lives[1]
    assert json.loads(lives[0])[-1]["converged_at_ms"] is not None


def test_a_drain_is_undone_and_the_assignor_changes() -> None:
    """`undrain` gives the member its share again; `assignor` opens a generation."""
    drain, undrain = {"at_ms": 5_000, "drain": "W1"}, {"at_ms": 10_000, "undrain": "W1"}
    tasks = [{"subtopology": "0", "partitions": 4}]
    more = [drain, undrain, {"at_ms": 15_000, "assignor": "sticky"}]
    generations = played(join(0, "W1"), join(0, "W2"), *more, tasks=tasks)
    causes = ["W1, W2 joined", "W1 draining", "W1 no longer draining", "assignor learner → sticky"]
    assert [each["cause"] for each in generations] == causes
    counts = [shape(each)["W1"][0] for each in generations]
    assert counts == [2, 0, 2, 2]


@pytest.mark.parametrize(
    ("name", "message"),
    [(5, r"events\[0\]\.assignor: expected a name"), ("none", r"events\.assignor: .*none")],
)
def test_an_assignor_that_is_not_there(name: object, message: str) -> None:
    """A scenario that changes to it is refused before it is played."""
    with pytest.raises(BadInput, match=message):
        played({"at_ms": 5_000, "assignor": name})


def test_a_timeline_for_people(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    """The table shows time, cause, holdings and moves with reasons, and the summary last."""
    scenario = {
        "group": {"assignor": "learner", "tasks": [{**FOUR[0], "partitions": 2}]},
        "defaults": {"restore_ms": 5_000},
        "events": [join(0, "W1"), join(1_000, "W2")],
        "until_ms": 40_000,
    }
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(scenario))
    assert main(["simulate", str(file), "--format", "table"]) == 0
    assert capsys.readouterr().out.splitlines()[7:] == [
        "1,000 ms  generation 2: W2 joined",
        "  MEMBER ACTIVE  STANDBY LEARNER REVOKED",
        "  W1     0_0,0_1 -       -       -",
        "  W2     -       -       0_1     -",
        "  0_1 learner: no member → W2 (balance 2/0 -> 1/1; restores before it takes over from W1)",
        "  then Stable",
        "",
        "6,000 ms  generation 3: learner of 0_1 on W2 ready",
        "  MEMBER ACTIVE STANDBY LEARNER REVOKED",
        "  W1     0_0    -       -       0_1",
        "  W2     0_1    -       -       -",
        "  0_1 active: W1 → W2 (balance 2/0 -> 1/1; learner ready)",
        "  then Stable",
        "",
        "converged_at_ms: 6000",
        "generations: 3",
        "tasks_moved: 1",
        "task_downtime_ms: 0",
    ]


def test_a_crashed_member_is_shown_with_what_it_held() -> None:
    """A generation shows the tasks of a member that crashes later."""
    records = played(join(0, "S1"), {"at_ms": 20_000, "crash": "S1"}, tasks=FOUR)
    assert shape(records[0]) == {"S1": (4, 0)}
