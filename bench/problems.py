"""Problems to compare assignors on, for `muster assign`; the same seed gives the same problem.

Three kinds: large regular problems for speed (Kafka's benchmark grid, its scale tests, Connect,
rack aware), small random ones for quality, and histories (members join and leave) for convergence.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

Problem = dict[str, Any]
RACKS = ("r0", "r1", "r2")
TOPICS = 100
BUCKETS = 5


# ---------------------------------------------------------------- large problems, for speed


def grid(members: int, ratio: int, event: str, *, heterogeneous: bool = False) -> Problem:
    """A cell of Kafka's benchmark of group assignors.

    Args:
        members: members after the event.
        ratio: tasks per member.
        event: ``full`` (nothing is owned), ``join`` (of one), ``leave`` (of one).
        heterogeneous: members in five groups, each with a fifth of the topics.
    """
    topics = [str(n) for n in range(TOPICS)]
    size = members * ratio // TOPICS
    units = [{"subtopology": t, "partitions": size} for t in topics]
    before = {"full": 0, "join": members - 1, "leave": members + 1}[event]
    names = [member_id(n) for n in range(max(members, before))]
    bucket = {name: n % BUCKETS if heterogeneous else 0 for n, name in enumerate(names)}
    groups = BUCKETS if heterogeneous else 1
    owned: dict[str, list[str]] = {name: [] for name in names}
    for group in range(groups):
        holders = [n for n in names[:before] if bucket[n] == group]
        tasks = [f"{t}_{p}" for t in topics[group::groups] for p in range(size)]
        deal(tasks, holders, owned)
    gone = names[before // 2] if event == "leave" else None
    listed = []
    for name in names:
        if name != gone:
            member: Problem = {"id": name, "active": owned[name]}
            if heterogeneous:
                member["topics"] = topics[bucket[name] :: groups]
            listed.append(member)
    return {"assignor": "sticky", "tasks": units, "members": listed}


def scale(partitions: int, members: int, capacity: int, standbys: int, assignor: str) -> Problem:
    """A row of Kafka's scale test: one stateful subtopology without owners."""
    return {
        "assignor": assignor,
        "config": {"num.standby.replicas": standbys},
        "tasks": [{"subtopology": "0", "partitions": partitions, "stateful": True}],
        "members": [{"id": member_id(n), "capacity": capacity} for n in range(members)],
    }


def stateful_join(members: int, tasks: int, assignor: str, standbys: int = 0) -> Problem:
    """A balanced group of stateful tasks, and one empty member that joins."""
    owned = deal([f"0_{p}" for p in range(tasks)], [member_id(n) for n in range(members - 1)])
    copies = {name: [] for name in owned}
    for position, name in enumerate(owned):
        for step in range(1, standbys + 1):
            copies[member_id((position + step) % (members - 1))].extend(owned[name])
    return {
        "assignor": assignor,
        "config": {"num.standby.replicas": standbys},
        "tasks": [{"subtopology": "0", "partitions": tasks, "stateful": True}],
        "members": [
            {
                "id": name,
                "active": owned[name],
                "standby": copies[name],
                "lag": dict.fromkeys(copies[name], 0),
            }
            for name in owned
        ]
        + [{"id": member_id(members - 1)}],
    }


def connect(workers: int, connectors: int, tasks: int, event: str) -> tuple[Problem, Problem]:
    """Two rounds of a Connect group: a balanced one, and the one after a ``join`` or ``leave``."""
    units = [{"connector": f"c{n:04d}", "tasks": tasks} for n in range(connectors)]
    names = [member_id(n) for n in range(workers)]
    before = names[:-1] if event == "join" else names
    owned = deal([u["connector"] for u in units], before)
    deal([f"{u['connector']}-{n}" for u in units for n in range(tasks)], before, owned)
    after = names if event == "join" else names[: workers // 2] + names[workers // 2 + 1 :]

    def round_of(present: list[str]) -> Problem:
        return {
            "assignor": "cooperative",
            "tasks": units,
            "members": [{"id": w, "active": owned.get(w, [])} for w in present],
        }

    return round_of(before), round_of(after)


def pinned(problems: tuple[Problem, Problem]) -> tuple[Problem, Problem]:
    """The same rounds with every second worker naming its jobs (KIP-987)."""

    def named(problem: Problem) -> Problem:
        members = [
            {**member, "static": member["active"]} if nth % 2 else member
            for nth, member in enumerate(problem["members"])
        ]
        return {**problem, "assignor": "static", "members": members}

    before, after = problems
    return named(before), named(after)


def rack_aware(
    members: int, tasks: int, strategy: str, assignor: str = "high-availability", seed: int = 0
) -> Problem:
    """A stateful group without owners in three racks; each topic is on two of the racks."""
    rng = random.Random(seed)
    units = []
    for unit in range(4):
        partitions = tasks // 4
        units.append(
            {
                "subtopology": str(unit),
                "partitions": partitions,
                "stateful": True,
                "source_racks": [
                    [rng.sample(RACKS, 2) for _ in range(2)] for _ in range(partitions)
                ],
                "changelog_racks": [[rng.sample(RACKS, 2)] for _ in range(partitions)],
            }
        )
    return {
        "assignor": assignor,
        "config": {"rack.aware.assignment.strategy": strategy},
        "tasks": units,
        "members": [{"id": member_id(n), "rack": rng.choice(RACKS)} for n in range(members)],
    }


def member_id(number: int) -> str:
    """Ids that sort by number."""
    return f"m{number:06d}"


def deal(
    tasks: list[str], members: list[str], owned: dict[str, list[str]] | None = None
) -> dict[str, list[str]]:
    """Assign tasks round robin, in addition to what members own."""
    held = owned if owned is not None else {}
    for name in members:
        held.setdefault(name, [])
    for position, name in enumerate(members):
        held[name].extend(tasks[position :: len(members)])
    return held


# ---------------------------------------------------------------- small problems, for quality


def small(
    seed: int,
    assignor: str,
    *,
    racks: bool = False,
    tags: bool = False,
    topics: bool = False,
    threads: bool = True,
    state: bool = True,
) -> Problem:
    """A random group of 2 to 7 members and its history: balance, warm copies, dead owners.

    The same arguments give the same problem, and each assignor has others. With `topics` members
    may take a part of the units each, with `threads` some have more capacity.
    """
    kinds = "".join(f"/{kind}" for kind, on in (("tags", tags), ("plain", not state)) if on)
    rng = random.Random(f"{seed}/{assignor}/{racks}{kinds}")
    units = _units(rng, racks)
    for unit in units:
        unit["stateful"] = unit["stateful"] and state
    standbys = rng.choice((0, 0, 1, 1, 2))
    config: dict[str, Any] = {
        "num.standby.replicas": standbys,
        "max.warmup.replicas": rng.choice((1, 2, 2, 4)),
        "acceptable.recovery.lag": 100,
    }
    if racks:
        config["rack.aware.assignment.strategy"] = rng.choice(
            ("min_traffic", "balance_subtopology")
        )
    names = [f"P{n}" for n in range(1, rng.randint(2, 7) + 1)]
    members: dict[str, Problem] = {
        n: {"id": n, "capacity": 1, "active": [], "standby": [], "lag": {}} for n in names
    }
    capacities = rng.choice(((1,), (1, 1, 2), (1, 2, 4)))
    for member in members.values():
        member["capacity"] = rng.choice(capacities) if threads else 1
        if racks:
            member["rack"] = rng.choice(RACKS)
    if tags:
        config["rack.aware.assignment.tags"] = rng.choice((["zone"], ["zone", "cluster"]))
        for member in members.values():
            member["tags"] = {
                "zone": rng.choice(RACKS),
                "cluster": rng.choice(("blue", "green")),
            }
    if topics:
        _restrict(rng, units, members)
    _past(rng, units, members, standbys)
    return {
        "assignor": assignor,
        "config": config,
        "tasks": units,
        "members": list(members.values()),
    }


def _units(rng: random.Random, racks: bool) -> list[Problem]:
    units: list[Problem] = []
    for number in range(rng.randint(1, 4)):
        unit: Problem = {
            "subtopology": str(number),
            "partitions": rng.randint(1, 8),
            "stateful": rng.random() < 0.75,
        }
        if racks:
            topics = rng.choice((1, 1, 2))
            size = unit["partitions"]
            unit["source_racks"] = [
                [rng.sample(RACKS, 2) for _ in range(topics)] for _ in range(size)
            ]
            if unit["stateful"]:
                unit["changelog_racks"] = [[rng.sample(RACKS, 2)] for _ in range(size)]
        units.append(unit)
    return units


def _restrict(rng: random.Random, units: list[Problem], members: Mapping[str, Problem]) -> None:
    names = [unit["subtopology"] for unit in units]
    for member in members.values():
        member["topics"] = sorted(rng.sample(names, rng.randint(1, len(names))))


def _past(
    rng: random.Random, units: list[Problem], members: Mapping[str, Problem], standbys: int
) -> None:
    """Write who held each task: round robin, at random or by few members; some owners died."""
    names = list(members)
    favoured = names[: max(1, len(names) // 2)]
    style = rng.choice(("deal", "random", "few", "none"))
    dead = rng.choice((0, 0, 0.15, 0.4))
    for position, (task, stateful) in enumerate(_tasks(units)):
        pool = favoured if style == "few" else names
        owner = None
        if style != "none" and rng.random() >= dead:
            owner = pool[position % len(pool)] if style == "deal" else rng.choice(pool)
            members[owner]["active"].append(task)
        if not stateful:
            continue
        others = [n for n in names if n != owner]
        copies = min(len(others), rng.choice((standbys, standbys, 0, 1)))
        for name in rng.sample(others, copies):
            members[name]["standby"].append(task)
            if rng.random() < 0.9:
                members[name]["lag"][task] = rng.choice((0, 0, 50, 100, 101, 5000))
        for name in others:  # state left on disk by an earlier run
            if task not in members[name]["standby"] and rng.random() < 0.05:
                members[name]["lag"][task] = rng.choice((50, 500, 50_000))


def _tasks(units: list[Problem]) -> Iterator[tuple[str, bool]]:
    for unit in units:
        for partition in range(unit["partitions"]):
            yield f"{unit['subtopology']}_{partition}", unit["stateful"]


def history(seed: int, events: int) -> Iterator[list[str]]:
    """The members after each event: one joins or one leaves; names may return."""
    rng = random.Random(f"history/{seed}")
    pool = [f"P{n}" for n in range(1, 9)]
    present = sorted(rng.sample(pool, rng.randint(1, 4)))
    for _ in range(events):
        absent = [n for n in pool if n not in present]
        if len(present) > 1 and (not absent or rng.random() < 0.5):
            present.remove(rng.choice(present))
        else:
            present = sorted([*present, rng.choice(absent)])
        yield list(present)


def tasks_of(problem: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """The name of every task of a Streams problem, and whether it has state."""
    return list(_tasks(problem["tasks"]))


def size(problem: Mapping[str, Any]) -> str:
    """The size of a problem, as members x tasks."""
    tasks = sum(u["partitions"] if "partitions" in u else u["tasks"] + 1 for u in problem["tasks"])
    return f"{len(problem['members']):,} x {tasks:,}"
