"""A group's life in numbers: muster beside Kafka's rules.

python bench/life.py [--short] [--no-java]

The muster side is the real coordinator (`advance`), played by `muster.simulation` with members that
behave. Each change of an owner adds `PUSH_MS`, the time from an event to the record read
(`latency.py`). Kafka's side plays its rules: when members hear of a change (heartbeats), which
members a rebalance stops, and when a warm-up is checked (the probing interval). Kafka's released
classes (`harness.py`) decide where tasks go and how many intervals that takes. Without Java there
are only bounds: the fewest moves that balance, and two warm-ups an interval. Rules: KIP-441 and
KIP-848 as released with 4.3.1, KIP-429 (cooperative) and the classic protocol. Kafka is charged
nothing for requests under way, for its assignors, or for the session timeout of a member that does
not leave.

On both sides a member takes `STOP_MS` to stop a task. A task is down from the moment its old owner
has stopped it until the new owner may start it.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from harness import Kafka
from problems import history
from quality import after, holders, life

from muster.protocol.events import Join
from muster.protocol.ids import MemberId, Role, Task
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology
from muster.simulation.member import SimulatedMember
from muster.simulation.scenario import Configured, Joins, Leaves, Scenario, ScenarioEvent
from muster.simulation.scenario_player import GROUP, SimulatedGroup
from muster.simulation.timeline import Timeline
from muster.state.group import Group

PUSH_MS = 150
STOP_MS = 1_000
PROBING_MS = 600_000
CLASSIC_HEARTBEAT_MS = 3_000
GROUP_HEARTBEAT_MS = 5_000
Place = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table; `theirs` is by the name of the rules. Less is better."""

    what: str
    unit: str
    ours: float
    theirs: dict[str, float]


# ---------------------------------------------------------------- the muster side


@dataclass(slots=True)
class Watched(Timeline):
    """A timeline that also counts the moves and the cold starts of tasks.

    Attributes:
        cold: starts of a task on a member that has not caught up while another member has.
        moves: how often each task has changed its owner.
    """

    cold: int = 0
    moves: Counter[Task] = field(default_factory=Counter)
    _warm: dict[Task, set[str]] = field(default_factory=dict)
    _owner_seen: dict[Task, str] = field(default_factory=dict)

    def observe(self, at_ms: int, group: Group, members: Mapping[str, SimulatedMember]) -> None:
        """Note which member runs each task now, and which members have caught up with it."""
        # `super()` without arguments does not know a class with slots.
        Timeline.observe(self, at_ms, group, members)
        alive = {m.id: m for m in members.values() if m.alive}
        running = {task: m for m in alive for task in alive[m].held[Role.ACTIVE]}
        for task, member in running.items():
            if self._owner_seen.get(task, member) != member:
                self.moves[task] += 1
                could = self._warm.get(task, set()) & alive.keys()
                self.cold += member not in could and bool(could)
            self._owner_seen[task] = member
        # While no member runs a task its changelog does not grow: members stay caught up.
        warm = {t: {running[t]} if t in running else who for t, who in self._warm.items()}
        warm |= {task: {member} for task, member in running.items() if task not in warm}
        for member, process in alive.items():
            for task in process.ready:
                warm.setdefault(task, set()).add(member)
        self._warm = warm


def played(
    tasks: Subtopology,
    events: list[tuple[int, ScenarioEvent]],
    until_ms: int,
    assignor: str = "sticky",
    heartbeat_ms: int = 40_000,
) -> Watched:
    """The life of a group of one subtopology."""
    settings = parse_settings({"heartbeat.interval.ms": heartbeat_ms}, assignor)
    group = Configured(assignor=assignor, settings=settings, tasks=(tasks,))
    seen = Watched()
    scenario = Scenario(group=group, events=tuple(events), until_ms=until_ms)
    SimulatedGroup(timeline=seen).play(scenario)
    return seen


def comes(
    name: str, *, restore_ms: int = 0, instance: str | None = None, heartbeat_ms: int = 40_000
) -> Joins:
    """A member joins."""
    who = Join(group=GROUP, member=MemberId(name), incarnation=0, instance_id=instance)
    return Joins(join=who, ack_ms=STOP_MS, restore_ms=restore_ms, heartbeat_ms=heartbeat_ms)


# ---------------------------------------------------------------- Kafka's rules


def problem_of(tasks: int, members: list[str], assignor: str) -> dict[str, Any]:
    """A group without owners, as `muster assign` reads it."""
    units = [{"subtopology": "0", "partitions": tasks, "stateful": True}]
    return {"assignor": assignor, "tasks": units, "members": [{"id": name} for name in members]}


def heard(member: int, members: int, heartbeat_ms: int, since_ms: float = 0) -> float:
    """Time at which a member hears of a change; the members' heartbeats are spread evenly."""
    phase = heartbeat_ms * member / members
    beats = max(0, -(-(since_ms - phase) // heartbeat_ms))
    return phase + beats * heartbeat_ms


def eager_restart(members: int, share: int) -> float:
    """Task milliseconds lost in one restart: two rebalances that stop every member."""
    stopped = [heard(m, members, CLASSIC_HEARTBEAT_MS) + STOP_MS for m in range(members - 1)]
    barrier = max(stopped)
    everybody = share * sum(barrier - at for at in stopped)
    return 2 * everybody + share * barrier


def cooperative_restart(members: int, share: int) -> float:
    """Task milliseconds lost if only moved tasks stop, and wait for a second round."""
    barrier = max(heard(m, members, CLASSIC_HEARTBEAT_MS) for m in range(members - 1))
    stopped = barrier + STOP_MS
    second = max(heard(m, members, CLASSIC_HEARTBEAT_MS, stopped) for m in range(members - 1))
    return share * barrier + share * (second - stopped)


def group_restart(members: int, share: int) -> float:
    """Task milliseconds lost with KIP-848: no barrier; heartbeats tell members of new tasks."""
    lost = 0.0
    for n in range(share):
        other = n * (members - 1) // share
        lost += heard(other, members, GROUP_HEARTBEAT_MS)
        stopped = heard(other, members, GROUP_HEARTBEAT_MS) + STOP_MS
        lost += heard(0, members, GROUP_HEARTBEAT_MS, stopped) - stopped
    return lost


def probed(problem: Mapping[str, Any], place: Place) -> int:
    """Number of probing intervals until Kafka's assignor asks for no further one."""
    intervals = 0
    while (answer := place(problem)).get("followup_ms") is not None:
        problem = after(problem, answer)
        intervals += 1
    return intervals


def trickled(problem: dict[str, Any], joins: Iterator[str], place: Place) -> Counter[str]:
    """How often each task changes its owner while members join one by one."""
    moves: Counter[str] = Counter()
    answer = place(problem)
    for name in joins:
        before, _ = holders(answer)
        problem = after(problem, answer)
        problem["members"].append({"id": name})
        answer = place(problem)
        now, _ = holders(answer)
        moves.update(task for task, owner in now.items() if before[task] != owner)
    return moves


# ---------------------------------------------------------------- the cases


def warm_up(kafka: Kafka | None, tasks: int, restore_ms: int) -> Row:
    """A member joins one that has all tasks: half move, each restored first, two at a time."""
    settled_ms = 0
    for assignor in ("high-availability", "learner"):
        unit = Subtopology("0", 2 * tasks, stateful=True)
        events = [(0, comes("A")), (60_000, comes("B", restore_ms=restore_ms))]
        until_ms = 120_000 + tasks * restore_ms
        seen = played(unit, events, until_ms, assignor)
        assert sum(seen.moves.values()) == tasks
        assert seen.cold == 0
        settled_ms = max(settled_ms, seen.changed_ms - 60_000)
    intervals = -(-tasks // 2)
    if kafka is not None:
        first = problem_of(2 * tasks, ["A"], "high-availability")
        place = asking(kafka, "high-availability")
        both = after(first, place(first))
        both["members"].append({"id": "B"})
        intervals = probed(both, place)
    what = f"{tasks} cold tasks of {restore_ms / 1000:.0f} s restore, two at a time: until moved"
    return Row(what, "min", settled_ms / 60_000, {"KIP-441": intervals * PROBING_MS / 60_000})


def rolling_restart(members: int, share: int, down_ms: int) -> Iterator[Row]:
    """Every member restarts, one a minute: time without an owner, summed over the tasks."""
    unit, names = Subtopology("0", members * share), [f"m{n:03d}" for n in range(members)]
    rules = {"classic": eager_restart, "KIP-429": cooperative_restart, "KIP-848": group_restart}
    plain = {name: rule(members, share) for name, rule in rules.items()}
    for static in (True, False):
        events: list[tuple[int, ScenarioEvent]] = [
            (0, comes(name, instance=name if static else None)) for name in names
        ]
        for n, name in enumerate(names):
            leaves_ms = 60_000 * (n + 1)
            events.append((leaves_ms, Leaves(name, temporary=static)))
            again = name if static else f"{name}'"
            events.append((leaves_ms + down_ms, comes(again, instance=name if static else None)))
        seen = played(unit, events, 60_000 * (members + 2))
        lost_ms = seen.downtime_ms + PUSH_MS * sum(seen.moves.values())
        # A static member's tasks wait for it, with Kafka and with muster.
        theirs = {"KIP-345": float(share * down_ms)} if static else plain
        kind = "static ids" if static else "plain ids"
        what = f"{members} members of {share} tasks restart in {down_ms / 1000:.0f} s, {kind}: down"
        yield Row(
            what,
            "task s",
            lost_ms / 1000,
            {name: members * one_ms / 1000 for name, one_ms in theirs.items()},
        )


def trickle(kafka: Kafka | None, tasks: int, joins: int) -> Iterator[Row]:
    """Members join one by one: all moves, and the moves of the task that moves most."""
    at_first = 10
    names = [f"m{n:06d}" for n in range(at_first + joins)]
    events: list[tuple[int, ScenarioEvent]] = [(0, comes(name)) for name in names[:at_first]]
    events += [(2_000 * (n + 1), comes(name)) for n, name in enumerate(names[at_first:])]
    seen = played(Subtopology("0", tasks, stateful=True), events, 2_000 * (joins + 2))
    fewest = sum(tasks // n for n in range(at_first + 1, at_first + joins + 1))
    theirs, most = {"fewest": float(fewest)}, {}
    if kafka is not None:
        for rules, name in (("KIP-848", "uniform"), ("KIP-1071", "streams-group-sticky")):
            problem = problem_of(tasks, names[:at_first], "sticky")
            moves = trickled(problem, iter(names[at_first:]), asking(kafka, name))
            theirs[rules] = sum(moves.values())
            most[rules] = max(moves.values())
    what = f"{joins} joins to {at_first} members of {tasks:,} tasks"
    yield Row(f"{what}: tasks moved", "moves", sum(seen.moves.values()), theirs)
    yield Row(f"{what}: most moves of one task", "moves", max(seen.moves.values()), most)


def cold_starts(kafka: Kafka | None, histories: int) -> Row:
    """Joins and leaves at random: stateful tasks started cold while a warm copy exists."""
    ours, theirs = 0, Counter({"KIP-1071": 0, "KIP-441": 0} if kafka else {})
    tasks, apart_ms = 24, 1_200_000
    rules = (("KIP-1071", "streams-group-sticky"), ("KIP-441", "high-availability"))
    for seed in range(histories):
        steps = [[], *history(seed, 8)]
        events: list[tuple[int, ScenarioEvent]] = []
        for n, (before, now) in enumerate(pairwise(steps)):
            gone = sorted(set(before) - set(now))
            events += [(n * apart_ms, Leaves(name)) for name in gone]
            new = sorted(set(now) - set(before))
            events += [(n * apart_ms, comes(name, restore_ms=60_000)) for name in new]
        unit = Subtopology("0", tasks, stateful=True)
        ours += played(unit, events, len(steps) * apart_ms, "high-availability").cold
        for rule, name in rules if kafka is not None else ():
            assert kafka is not None
            problem = problem_of(tasks, steps[1], "high-availability")
            theirs[rule] += life(problem, asking(kafka, name), steps[2:]).cold
    return Row(f"{histories} random histories: tasks started cold", "starts", ours, dict(theirs))


def asking(kafka: Kafka, name: str) -> Place:
    """A placement function that asks one of Kafka's classes."""
    return lambda problem: kafka.ask(name, problem)


def rows(kafka: Kafka | None, *, short: bool) -> Iterator[Row]:
    """The whole table, line by line."""
    yield warm_up(kafka, 10 if short else 100, 60_000)
    yield from rolling_restart(*((6, 4) if short else (50, 10)), down_ms=10_000)
    yield from trickle(kafka, *((60, 20) if short else (2_000, 1_000)))
    yield cold_starts(kafka, 5 if short else 500)


def show(row: Row) -> None:
    """Print a line: muster's figure, and Kafka's figures with their ratios."""
    rivals = []
    for name, value in row.theirs.items():
        ratio = f"{value / row.ours:.3g}" if row.ours else ("1" if not value else "all")
        rivals.append(f"{name} {value:,.6g} ({ratio})")
    print(f"| {row.what} | {row.unit} | {row.ours:,.6g} | {', '.join(rivals)} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--short", action="store_true", help="small cases, a few seconds")
    parser.add_argument("--no-java", action="store_true", help="without Kafka's classes")
    args = parser.parse_args()
    print("| what | unit | ours | Kafka (its figure / ours) |\n|---|---|--:|---|")
    with ExitStack() as stack:
        kafka = None if args.no_java else stack.enter_context(Kafka())
        for row in rows(kafka, short=args.short):
            show(row)


if __name__ == "__main__":
    sys.exit(main())
