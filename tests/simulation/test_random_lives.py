"""Random lives keep every promise; and cases that only such lives show.

==================  ==================================================
MUSTER_LIVES        how many the long run plays (`make lives`: 20,000)
MUSTER_LIVES_SEED   of its first life; the others follow
==================  ==================================================
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from exploration.model import Scenario
from exploration.mutants import Mutant, break_rule
from support.suite.examples import ALL

from muster.assignor import registry
from muster.assignor.high_availability_assignor import HighAvailability
from muster.assignor.model import GroupView, Placement, no_pairs
from muster.cli.main import main
from muster.documents.scenario import parse_scenario
from muster.protocol.ids import Role
from muster.protocol.records import GroupSnapshot
from muster.random_lives import lives, smallest
from muster.random_lives.lives import Life, Tally
from muster.random_lives.random_scenario import random_scenario
from muster.simulation.promises import Promises
from muster.simulation.scenario_player import SimulatedGroup

LIVES = int(os.environ.get("MUSTER_LIVES", "200"))
SEED = int(os.environ.get("MUSTER_LIVES_SEED", "1000000"))


def all_kept(played: list[Life]) -> Tally:
    """Fail with the lives that broke a promise, and the first of them shrunk."""
    tally = Tally()
    for life in played:
        tally.add(life)
    if tally.broken:
        broken = [str(life) for life in tally.broken]
        pytest.fail("\n".join([*broken, smallest.smallest(tally.broken[0])]), pytrace=False)
    return tally


@pytest.mark.parametrize("part", range(2 if ALL else 1))
def test_random_lives_come_to_rest(part: int) -> None:
    """Ten lives keep every promise of `promises`; tasks move in them."""
    tally = all_kept([lives.live(seed) for seed in range(part * 10, part * 10 + 10)])
    assert len(tally.lives) >= 3, tally
    assert tally.moved > 25


@pytest.mark.parametrize(
    "seed",
    [
        1_000_561,  # a copy was given up in the very batch that gave its task to its member
        1_002_384,  # a task went back to the member that had just stopped it: it never was asked
        1_003_160,  # a static member came back as another process, and its old word still counted
        2_000_804,  # a task went to a member that was just giving its copy up, so it started cold
        2_002_557,  # the same
        3_000_514,  # a task went to a member that had lost its copy; its owner was stopping
        7_200_814,  # a member stopped a task as asked, and was to get it back: the checker's fault
        7_001_824,  # what a report said of its member's disk ended with the task that it released
        2_002_543,  # one stateless task, two members without a task: stateful ones left no fair sum
    ],
)
def test_lives_that_once_broke_a_promise(seed: int) -> None:
    """They keep it now."""
    assert lives.live(seed).broken == ()


@pytest.mark.parametrize(
    "seed",
    [
        7_202_236,  # a fenced member's task started cold, and a copy had caught up before it did
        7_202_719,  # tasks were deleted and declared again in one batch: the checker's fault
        7_300_430,  # a copy that its member was asked to drop counted: the checker's fault
    ],
)
def test_changed_lives_that_once_broke_a_promise(seed: int) -> None:
    """They keep it now."""
    assert lives.live(seed, changes=True).broken == ()


@pytest.mark.slow
@pytest.mark.timeout(600 + LIVES * 4)
def test_thousands_of_random_lives(capsys: pytest.CaptureFixture[str]) -> None:
    """Play `MUSTER_LIVES` lives; print the sums."""
    tally = all_kept(list(lives.lives(SEED, LIVES, processes=os.cpu_count() or 1)))
    with capsys.disabled():
        print(f"\n{tally}")
    assert tally.lives.total() == LIVES


def test_a_member_that_stops_too_slowly_is_fenced() -> None:
    """Ticks come at the times that the group publishes, whichever members heartbeat meanwhile.

    Without a tick the time of the demand never begins. The group's other members heartbeat at
    different times, so each heartbeat asked for a later tick.
    """
    events = [
        {"at_ms": at_ms, "join": {"id": name, "ack_ms": 1_000_000 if name == "W2" else 100}}
        for at_ms, name in ((0, "W1"), (1_000, "W2"), (4_000, "W3"), (20_000, "W4"))
    ]
    raw = scenario(events, **{"rebalance.timeout.ms": 60_000})
    world = SimulatedGroup()
    world.play(parse_scenario({**raw, "until_ms": 200_000}))
    stories = [record.cause for record in world.records if isinstance(record, GroupSnapshot)]
    assert any("within 60000 ms (rebalance.timeout.ms); W2 fenced" in story for story in stories)
    assert last(world)["W4"]["active"]  # what W2 did not stop


def test_two_that_join_three_get_their_tasks() -> None:
    """Six stateful tasks with standbys, on members that have copies at once: each runs some."""
    events = [{"at_ms": 0, "join": {"id": f"W{n}"}} for n in (1, 2, 3)]
    events += [{"at_ms": 60_000, "join": {"id": f"W{n}"}} for n in (4, 5)]
    raw = scenario(events, **{"num.standby.replicas": 1})
    assert lives.checked(raw).broken == ()
    world = SimulatedGroup()
    world.play(parse_scenario(raw))
    assert world.timeline.changed_ms == 60_000
    counts = [len(held["active"]) for held in last(world).values()]
    assert sorted(counts) == [1, 1, 1, 1, 2]


def test_a_task_on_its_way_to_a_cold_member_starts_where_a_copy_has_caught_up() -> None:
    """M4 releases one task before it takes another; until then M5 restores what M4 waits for."""
    units = [("0", 3, True), ("1", 2, True), ("2", 1, False)]
    tasks = [{"subtopology": u, "partitions": n, "stateful": kept} for u, n, kept in units]
    events = [
        {"at_ms": 0, "join": {"id": "M2", "topics": ["1", "2"]}},
        {"at_ms": 0, "join": {"id": "M4", "restore_ms": 45_000, "ack_ms": 3_000}},
        {"at_ms": 120_000, "crash": "M4"},
        {"at_ms": 210_000, "return": "M4"},
        {"at_ms": 213_000, "join": {"id": "M5"}},
        {"at_ms": 216_000, "leave": "M2"},
        {"at_ms": 216_500, "return": "M2"},
    ]
    raw = scenario(events, **{"num.standby.replicas": 1, "probing.rebalance.interval.ms": 600_000})
    raw["group"]["tasks"] = tasks
    raw["until_ms"] = 6_216_500
    assert lives.checked(raw).broken == ()
    world = SimulatedGroup()
    world.play(parse_scenario(raw))
    early = [entry for entry in world.timeline.entries if entry.at_ms < 216_500]
    moves = [(m.task, m.role, m.to_member, m.reason) for entry in early for m in entry.moves]
    to_m5 = [move for move in moves if move[1:3] == (Role.ACTIVE, "M5")]
    assert to_m5[-1] == ("1_1", Role.ACTIVE, "M5", "M4 would restore it first; copy caught up")
    assert moves[-1] == ("1_1", Role.STANDBY, "M4", "M5 runs the task now")


def scenario(events: list[dict[str, Any]], **config: object) -> dict[str, Any]:
    """A life of six stateful tasks."""
    tasks = [{"subtopology": "0", "partitions": 6, "stateful": True}]
    values = {"probing.rebalance.interval.ms": 60_000, **config}
    group = {"assignor": "high-availability", "config": values, "tasks": tasks}
    until_ms = events[-1]["at_ms"] + 600_000
    return {"group": group, "events": events, "until_ms": until_ms}


def last(world: SimulatedGroup) -> dict[str, dict[str, list[str]]]:
    """Member → role → what it holds at the end."""
    members = world.timeline.entries[-1].members
    return {
        name: {role.name.lower(): list(tasks) for role, tasks in held.items()}
        for name, held in members.items()
    }


# ------------------------------------------------------------------- the harness itself can fail


class Swapping:
    """Spoils the placements of `high-availability`."""

    name = "high-availability"

    def __init__(self, change: str) -> None:
        self.change = change

    def assign(self, view: GroupView) -> Placement:
        """The real placement, spoilt."""
        real = registry.get(self.name).assign(view)
        none = no_pairs()
        if self.change == "no standbys":
            end = real.destination
            return replace(real, active=end, standby=none, learner=none, followup_ms=None)
        if self.change == "all to one":
            end = real.active * 0
            real = replace(real, active=end, destination=end, followup_ms=None)
            return replace(real, standby=none, learner=none)
        if self.change == "cold":
            return replace(real, active=real.destination, learner=no_pairs())
        return replace(real, followup_ms=3_600_000)


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ("no standbys", "copies"),
        ("all to one", "balanced"),
        ("cold", "cold"),
        ("a wish without end", "settled"),
    ],
)
def test_a_broken_promise_is_seen(change: str, law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An assignor that breaks one promise is reported for that one."""
    broken = [text.partition(":")[0] for text in lives.checked(spoilt(change, monkeypatch)).broken]
    assert law in broken


def test_a_broken_life_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shrunk life breaks the same promise with fewer tasks and no more events."""
    raw = spoilt("a wish without end", monkeypatch)
    small = smallest.small(raw, "settled")
    assert len(small["events"]) <= 3
    assert small["group"]["tasks"][0]["partitions"] < 6
    assert lives.checked(json.loads(smallest.as_scenario(small))).broken


def test_a_follow_up_without_end_of_the_real_assignor_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`high-availability` with standbys that asks again although nothing is unfinished."""
    rule = Mutant(
        "a follow-up is wanted while something is unfinished",
        HighAvailability.assign,
        " if unfinished else None",
        "",
        Scenario(("A",), 1),
    )
    break_rule(rule, monkeypatch)
    broken = [text for seed in range(4) for text in lives.live(seed).broken]
    assert any(text.startswith("settled") for text in broken)


def spoilt(change: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A life whose assignor breaks a promise."""
    assignor = Swapping(change)
    monkeypatch.setattr("muster.plugins.get", lambda name: assignor)
    events = [
        {"at_ms": 0, "join": {"id": "W1", "restore_ms": 5_000}},
        {"at_ms": 0, "join": {"id": "W2", "restore_ms": 5_000, "capacity": 1}},
        {"at_ms": 100_000, "join": {"id": "W3", "restore_ms": 5_000}},
    ]
    return scenario(events, **{"num.standby.replicas": 1})


def test_jobs_that_are_not_dealt_evenly_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of `eager` keeps its promise; with all jobs on one worker it does not."""
    events = [{"at_ms": 0, "join": {"id": name}} for name in ("W1", "W2")]
    raw = scenario(events)
    raw["group"]["assignor"] = "eager"
    raw["group"]["tasks"] = [{"connector": "c", "tasks": 3}]
    assert lives.checked(raw).broken == ()
    real = registry.get("eager")

    class OnOne:
        """Deals all jobs to the first worker."""

        name = "eager"

        def assign(self, view: GroupView) -> Placement:
            active = real.assign(view).active * 0
            return Placement(active=active, destination=active)

    monkeypatch.setattr("muster.plugins.get", lambda _: OnOne())
    (broken,) = lives.checked(raw).broken
    assert broken == "balanced: the jobs are not dealt evenly (W1 4, W2 0)"


def test_a_life_is_the_same_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    """The same seed gives the same life; the command also plays it for the user's own group."""
    assert random_scenario(7) == random_scenario(7) != random_scenario(8)
    assert main(["simulate", "--lives", "2", "--seed", "7", "--processes", "1"]) == 0
    assert capsys.readouterr().out.startswith("2 of 2 lives kept every promise")


def test_changes_follow_the_first_events() -> None:
    """Without them a seed gives the first events of the same life; every kind of change comes."""
    kinds: Counter[str] = Counter()
    for seed in range(60):
        first = random_scenario(seed)["events"]
        events = random_scenario(seed, changes=True)["events"]
        assert events[: len(first)] == first
        kinds.update(key for event in events[len(first) :] for key in event)
    assert {"config", "assignor", "tasks", "drain", "undrain", "join", "return"} <= {*kinds}


@pytest.mark.parametrize("assignor", ["cooperative", "sticky"])
def test_invented_members_keep_the_sessions_of_the_users_group(assignor: str) -> None:
    """Their heartbeats are as frequent as the group's session timeout asks for."""
    connect = assignor == "cooperative"  # its session timeout is 10 s by default
    tasks = {"connector": "c", "tasks": 2} if connect else {"subtopology": "c", "partitions": 2}
    config = {} if connect else {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}
    group = {"assignor": assignor, "config": config, "tasks": [tasks]}
    raw = random_scenario(1, {"group": group})
    joins = [event["join"]["heartbeat_ms"] for event in raw["events"] if "join" in event]
    assert {ms <= (10_000 if connect else 6_000) / 3 for ms in joins} == {True}
    assert random_scenario(1)["events"][0]["join"]["heartbeat_ms"] == 15_000


def test_members_come_back_with_their_disks() -> None:
    """A member that reports lags returns with copies as old as its absence; no task starts cold."""
    lag = {"tells": "lag", "restore_ms": 60_000, "ack_step_ms": 100}
    events = [
        {"at_ms": 0, "join": {"id": "W1", **lag}},
        {"at_ms": 0, "join": {"id": "W2", **lag}},
        {"at_ms": 100_000, "crash": "W1"},
        {"at_ms": 200_000, "return": "W1"},
    ]
    raw = scenario(events, **{"acceptable.recovery.lag": 200_000})
    promises = Promises()
    world = SimulatedGroup(promises=promises)
    world.play(parse_scenario(raw))
    joins = [e for batch in world.log for e in batch if type(e).__name__ == "Join"]
    assert {offsets for _, offsets in joins[-1].lags} == {100_000}
    assert promises.broken == []
    assert [len(held["active"]) for held in last(world).values()] == [3, 3]
