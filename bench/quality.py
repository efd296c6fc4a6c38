"""The quality of an answer, computed from the problem and the answer alone, for either side.

The figures are counted from task ids and racks, not taken from an assignor. Less is better in every
figure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from problems import tasks_of

Problem = Mapping[str, Any]
Answer = Mapping[str, Any]
ROUNDS = 60


@dataclass(frozen=True, slots=True)
class Figures:
    """One answer, or a whole history of answers.

    Attributes:
        rounds: placements until nothing was left to do (1 for a single answer).
        moved: actives that had a living owner and got another one.
        spread: largest difference of two members' load at the end; load = actives by capacity.
        beyond_one: how far `spread` is above 1, where a group counts as unbalanced.
        uneven: sum of load x actives, for groups whose members may take only a part of the tasks.
        off_share: tasks by which members' actives are more than their exact share by capacity
            rounded up, or less than it rounded down, once settled.
        unit_uneven: how unevenly subtopologies lie: the sum of squared numbers of actives of one
            subtopology on one member, by capacity, once settled.
        unit_spread: the same as the largest difference of two members, summed over subtopologies.
        stateful_spread: spread of stateful actives.
        copies_spread: the same for everything held.
        cold: stateful actives started on a member that is not caught up while another is.
        bare: stateful actives started on a member without any state while another has some.
        warmups: most extra copies at any time.
        restored: copies, active or not, placed on a member without state.
        cross_rack: inputs read from racks without a replica, once settled.
        copies_cross_rack: changelogs read from racks without a replica (S4-17: inputs count first).
        crowded: tasks beyond a member's even share of their unit (`balance_subtopology`, S4-25).
        missing: tasks without an active, and standbys for which there is room, once settled.
        alike: tags that a standby shares with another copy of its task, once settled.
    """

    rounds: int
    moved: int
    spread: float
    beyond_one: float
    uneven: float
    off_share: int
    unit_uneven: float
    unit_spread: float
    stateful_spread: float
    copies_spread: float
    cold: int
    bare: int
    warmups: int
    restored: int
    cross_rack: int
    copies_cross_rack: int
    crowded: int
    missing: int
    alike: int


NAMES = tuple(f.name for f in fields(Figures))


NICETIES = ("stateful_spread", "copies_spread")
"""Figures without a promise: in `dominated` they count above 1 only, and only in our favour."""
TOLD = ("unit_spread",)
"""Figures that are printed and not judged: `unit_uneven` measures the same more finely."""


def dominated(ours: Figures, theirs: Figures) -> bool:
    """Whether `theirs` is nowhere worse and somewhere better."""
    judged = [n for n in NAMES if n not in NICETIES and n not in TOLD]
    pairs = [(getattr(ours, n), getattr(theirs, n)) for n in judged]
    nice = [(max(getattr(ours, n), 1), max(getattr(theirs, n), 1)) for n in NICETIES]
    return all(a >= b for a, b in pairs + nice) and any(a > b for a, b in pairs)


def once(problem: Problem, answer: Answer) -> Figures:
    """Figures of a single answer."""
    return _Run().step(problem, answer).settled(problem, answer).figures(problem, answer)


def life(
    problem: Problem, place: Callable[[Problem], Answer], history: Iterable[list[str]]
) -> Figures:
    """Place until no follow-up is asked for, then again after each change of the members.

    Between two rounds every copy catches up. Most figures are sums over the whole life; those
    *once settled* are counted after every event, and spreads at the end. `place` is one side,
    `history` the members after each event.
    """
    run = _Run()
    problem, answer = _converge(run, problem, place)
    for names in history:
        problem, answer = _converge(run, present(after(problem, answer), names), place)
    return run.figures(problem, answer)


def _converge(
    run: _Run, problem: Problem, place: Callable[[Problem], Answer]
) -> tuple[Problem, Answer]:
    for _ in range(ROUNDS):
        answer = place(problem)
        run.step(problem, answer)
        if answer.get("followup_ms") is None:
            break
        problem = after(problem, answer)
    run.settled(problem, answer)
    return problem, answer


def after(problem: Problem, answer: Answer) -> dict[str, Any]:
    """The problem of the next round: assigned tasks are held and caught up, others are gone."""
    stateful = {task for task, state in tasks_of(problem) if state}
    members = []
    for member in problem["members"]:
        held = answer["members"].get(member["id"], {})
        copies = [*held.get("standby", ()), *held.get("learner", ())]
        kept = {
            k: v for k, v in member.items() if k in ("id", "capacity", "rack", "tags", "topics")
        }
        kept["active"] = list(held.get("active", ()))
        kept["standby"] = list(held.get("standby", ()))
        kept["learner"] = kept["ready"] = list(held.get("learner", ()))
        kept["lag"] = {task: 0 for task in copies if task in stateful}
        members.append(kept)
    return {**problem, "members": members}


def present(problem: Problem, names: list[str]) -> dict[str, Any]:
    """The problem after members have joined and left; the others keep what they hold."""
    known = {m["id"]: m for m in problem["members"]}
    racks = sorted({m["rack"] for m in problem["members"] if "rack" in m})
    tags = [m["tags"] for m in problem["members"] if "tags" in m]
    members = []
    for name in sorted(names):
        new: dict[str, Any] = {"id": name, "capacity": 1}
        if racks:
            new["rack"] = racks[int(name[1:]) % len(racks)]
        if tags:
            new["tags"] = tags[int(name[1:]) % len(tags)]
        members.append(known.get(name, new))
    return {**problem, "members": members}


class _Run:
    """Counters over the rounds of one run."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.exact: defaultdict[str, Fraction] = defaultdict(Fraction)

    def step(self, problem: Problem, answer: Answer) -> _Run:
        active, copies = holders(answer)
        members = {m["id"]: m for m in problem["members"]}
        before = {task: m["id"] for m in problem["members"] for task in m.get("active", ())}
        standbys = _wanted(problem)
        self.count["rounds"] += 1
        extra = 0
        for task, stateful in tasks_of(problem):
            owner = active.get(task)
            self.count["moved"] += owner is not None and before.get(task) not in (None, owner)
            if not stateful:
                continue
            holding = copies.get(task, set())
            extra += max(0, len(holding) - standbys)
            state = {n for n in members if task in members[n].get("lag", {})} | {before.get(task)}
            self.count["restored"] += len((holding | {owner}) - state - {None})
            warm = {n for n in members if _caught_up(problem, members[n], task)}
            self.count["bare"] += owner is not None and owner not in state and bool(state - {None})
            self.count["cold"] += owner is not None and owner not in warm and bool(warm)
        self.count["warmups"] = max(self.count["warmups"], extra)
        return self

    def settled(self, problem: Problem, answer: Answer) -> _Run:
        active, copies = holders(answer)
        owners = {task: {name} for task, name in active.items()}
        self.count["cross_rack"] += _cross_rack(problem, "source_racks", owners)
        self.count["copies_cross_rack"] += _cross_rack(problem, "changelog_racks", copies)
        self.count["crowded"] += _crowded(problem, active)
        self.count["missing"] += _missing(problem, active, copies)
        self.count["alike"] += _alike(problem, active, copies)
        self.count["off_share"] += _off_share(problem, Counter(active.values()))
        for spread, squares in _by_unit(problem, active):
            self.exact["unit_spread"] += spread
            self.exact["unit_uneven"] += squares
        return self

    def figures(self, problem: Problem, answer: Answer) -> Figures:
        active, copies = holders(answer)
        stateful = {task for task, state in tasks_of(problem) if state}
        held = Counter(active.values())
        everything = held + Counter(n for names in copies.values() for n in names)
        of_state = Counter(n for task, n in active.items() if task in stateful)
        measured = {
            "spread": _spread(problem, held),
            "beyond_one": round(max(0.0, _spread(problem, held) - 1), 3),
            "uneven": _uneven(problem, held),
            "stateful_spread": _spread(problem, of_state),
            "copies_spread": _spread(problem, everything),
            **{name: round(float(self.exact[name]), 3) for name in ("unit_spread", "unit_uneven")},
        }
        return Figures(**{name: self.count[name] for name in NAMES} | measured)


def holders(answer: Answer) -> tuple[dict[str, str], dict[str, set[str]]]:
    """The member that is to hold each active, and the members of the other copies."""
    active: dict[str, str] = {}
    copies: dict[str, set[str]] = {}
    for name, held in answer["members"].items():
        for task in held.get("active", ()):
            if task in active:
                raise AssertionError(f"{task} is active on {active[task]} and {name}")
            active[task] = name
        for task in (*held.get("standby", ()), *held.get("learner", ())):
            copies.setdefault(task, set()).add(name)
    return active, copies


def _wanted(problem: Problem) -> int:
    standbys = int(problem.get("config", {}).get("num.standby.replicas", 0))
    return min(standbys, len(problem["members"]) - 1)


def _caught_up(problem: Problem, member: Mapping[str, Any], task: str) -> bool:
    lag = member.get("lag", {}).get(task)
    if lag is None:
        return task in member.get("active", ()) or task in member.get("ready", ())
    return lag <= int(problem.get("config", {}).get("acceptable.recovery.lag", 10_000))


def _spread(problem: Problem, held: Mapping[str, int]) -> float:
    loads = [Fraction(held.get(m["id"], 0), m.get("capacity", 1)) for m in problem["members"]]
    return round(float(max(loads) - min(loads)), 3)


def _uneven(problem: Problem, held: Mapping[str, int]) -> float:
    members = problem["members"]
    if not any("topics" in m for m in members):
        return 0.0
    return round(sum(held.get(m["id"], 0) ** 2 / m.get("capacity", 1) for m in members), 3)


def _off_share(problem: Problem, held: Mapping[str, int]) -> int:
    members = problem["members"]
    if any("topics" in m for m in members):
        return 0
    whole, total = sum(m.get("capacity", 1) for m in members), sum(held.values())
    off = 0
    for member in members:
        due, count = total * member.get("capacity", 1), held.get(member["id"], 0)
        off += max(due // whole - count, count + (-due // whole), 0)
    return off


def _by_unit(problem: Problem, active: Mapping[str, str]) -> Iterator[tuple[Fraction, Fraction]]:
    """For each subtopology, among the members that may take it: spread and sum of squares."""
    of_unit = Counter((task.rpartition("_")[0], name) for task, name in active.items())
    for unit in problem["tasks"]:
        name = unit["subtopology"]
        takers = [m for m in problem["members"] if name in m.get("topics", (name,))]
        if not takers:
            continue
        counts = [(of_unit[name, m["id"]], m.get("capacity", 1)) for m in takers]
        loads = [Fraction(count, capacity) for count, capacity in counts]
        squares = sum((Fraction(count**2, capacity) for count, capacity in counts), Fraction())
        yield max(loads) - min(loads), squares


def _cross_rack(problem: Problem, key: str, holders: Mapping[str, set[str]]) -> int:
    rack = {m["id"]: m.get("rack") for m in problem["members"]}
    return sum(
        rack[name] not in topic
        for unit in problem["tasks"]
        if unit.get(key)
        for partition, racks in enumerate(unit[key])
        for name in holders.get(f"{unit['subtopology']}_{partition}", ())
        for topic in _topics(racks)
    )


def _crowded(problem: Problem, active: Mapping[str, str]) -> int:
    if problem.get("config", {}).get("rack.aware.assignment.strategy") != "balance_subtopology":
        return 0
    held, total = Counter(active.values()), len(active)
    units = Counter(task.rpartition("_")[0] for task in active)
    of_unit = Counter((task.rpartition("_")[0], name) for task, name in active.items())
    return sum(
        max(0, count + (-units[unit] * held[name] // total))
        for (unit, name), count in of_unit.items()
    )


def _topics(racks: list[Any]) -> list[list[str]]:
    return racks if racks and isinstance(racks[0], list) else [racks]


def _missing(problem: Problem, active: Mapping[str, str], copies: Mapping[str, set[str]]) -> int:
    wanted = _wanted(problem)
    return sum(
        (task not in active) + (max(0, wanted - len(copies.get(task, ()))) if stateful else 0)
        for task, stateful in tasks_of(problem)
    )


def _alike(problem: Problem, active: Mapping[str, str], copies: Mapping[str, set[str]]) -> int:
    keys = problem.get("config", {}).get("rack.aware.assignment.tags", ())
    tags = {m["id"]: m.get("tags", {}) for m in problem["members"]}
    shared = 0
    for task, names in copies.items():
        holders = sorted(names | {active[task]} if task in active else names)
        shared += sum(
            tags[one].get(key) == tags[other].get(key)
            for nth, one in enumerate(holders)
            for other in holders[:nth]
            for key in keys
        )
    return shared
