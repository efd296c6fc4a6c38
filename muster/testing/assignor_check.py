"""`check_assignor`: checks an assignor on many random groups and in many random lives.

It checks the laws of every assignor (`docs/plugins.md`); whether a placement is good is for the
assignor's own tests. For a broken law it writes the smallest input found that breaks it, as a file
for `muster assign` or `muster simulate`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, Final

from muster import plugins
from muster.assignor import registry
from muster.cli.assign import solve
from muster.documents.problem import parse_problem
from muster.errors import BadInput
from muster.protocol.errors import ConfigError, MusterError
from muster.random_lives import lives, smallest
from muster.random_lives.random_scenario import random_scenario
from muster.simulation.shrinking import shrunk
from muster.testing.errors import AssignorBroken

ROUNDS_MAX: Final = 12
"""Placements after which a group whose copies are ready at once must have come to rest."""
PLAYS_MAX: Final = 200
ROLES: Final = ("active", "standby", "learner")
FILE: Final = "counterexample.json"
FAULTS_OF_A_PROBLEM: Final = (BadInput, ConfigError)
"""What `solve` raises for them; an assignor's fault is another `MusterError`."""
Row = dict[str, Any]
Law = Callable[[Row], str | None]


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check has done.

    Attributes:
        groups: random groups placed.
        lives: random lives played.
        slowest_ms: longest time of one placement, with reading the problem, in ms.
    """

    groups: int
    lives: int
    slowest_ms: float


def check_assignor(
    assignor: str | type,
    *,
    groups: int = 2_000,
    lives: int = 50,
    seed: int = 0,
    given: Callable[[Row], Row] | None = None,
    folder: str | Path = ".",
) -> Checked:
    """Check the laws of every assignor.

    - *valid*: each answer keeps the rules (`muster.assignor.check`); none raises, none is late
      (`assignor.timeout.ms`).
    - *same*: the same group gets the same answer, also from a new object.
    - *rest*: members that do what they are told come to rest: in the end nothing moves.
    - *lives*: in whole lives with crashes, drains and returns the group settles, and every member
      holds what the group records.

    Args:
        assignor: a class that can be imported, ``module:Class``, or a name.
        groups: number of random groups.
        lives: number of random lives.
        seed: another seed gives other groups and lives.
        given: changes a random problem (``docs/formats.md``) before it is placed: tags, settings.
        folder: where the file with a counterexample is written; it is made if it is missing.

    Raises:
        AssignorBroken: a law is broken; the message names the file.
        BadInput: `given` returned something else than a problem.
        UnknownAssignor: it cannot be loaded.
    """
    name = _name_of(assignor)
    plugins.get(name)
    slowest_ms = 0.0
    for number in range(groups):
        raw = _problem(Random(f"group/{seed}/{number}"), name)  # noqa: S311 — no secret
        if given is not None:
            raw = _checked_problem(given(raw))
        began = perf_counter()
        first = _answer(raw)
        slowest_ms = max(slowest_ms, (perf_counter() - began) * 1000)
        for law, breaks in LAWS.items():
            wrong = first if isinstance(first, str) else breaks(raw)
            if wrong is not None:
                raise _broken(law, wrong, raw, breaks, Path(folder))
    for number in range(lives):
        _live(name, seed + number, Path(folder))
    return Checked(groups, lives, round(slowest_ms, 3))


def _name_of(assignor: str | type) -> str:
    if isinstance(assignor, str):
        return assignor
    if not inspect.isclass(assignor) or "." in assignor.__qualname__:
        raise AssignorBroken(f"{assignor!r}: expected a class at the top of a module, or a name")
    return f"{assignor.__module__}:{assignor.__qualname__}"


def _checked_problem(raw: Row) -> Row:
    """What `given` returned: a problem, so that no fault of it is taken for the assignor's."""
    try:
        parse_problem(raw)
    except FAULTS_OF_A_PROBLEM as error:
        raise BadInput(f"given: expected that it returns a problem: {error}") from None
    return raw


# ----------------------------------------------------------------------------------- the laws


def _answer(raw: Row) -> Row | str:
    try:
        return solve(raw)
    except FAULTS_OF_A_PROBLEM:
        raise
    except MusterError as error:
        return f"{error}"


def _is_valid(raw: Row) -> str | None:
    answer = _answer(raw)
    return answer if isinstance(answer, str) else None


def _is_the_same(raw: Row) -> str | None:
    first = _answer(raw)
    registry.get.cache_clear()  # the next one is a new object
    if first != _answer(raw):
        return "the same group got two different answers"
    return None


def _comes_to_rest(raw: Row) -> str | None:
    now = deepcopy(raw)
    for _ in range(ROUNDS_MAX):
        answer = _answer(now)
        if isinstance(answer, str):
            return f"on the way to rest: {answer}"
        changed = [m["id"] for m in now["members"] if _obeys(m, answer["members"][m["id"]])]
        if not changed:
            return None
    return f"after {ROUNDS_MAX} placements the group still moves {', '.join(changed)}"


def _obeys(member: Row, held: Row) -> bool:
    """The member takes its new tasks, and its copies catch up. Return whether anything changed."""
    before = [sorted(member.get(role, ())) for role in ROLES]
    member |= {role: held[role] for role in ROLES}
    member["ready"] = [*held["standby"], *held["learner"]]
    member.pop("lag", None)
    return before != [sorted(member[role]) for role in ROLES]


LAWS: Final[dict[str, Law]] = {
    "valid": _is_valid,
    "same": _is_the_same,
    "rest": _comes_to_rest,
}


def _live(name: str, seed: int, folder: Path) -> None:
    group = random_scenario(seed, connect=False)["group"]
    config = {key: value for key, value in group["config"].items() if key in _PLAIN}
    fixed = {"group": {**group, "assignor": name, "config": config}}
    raw = random_scenario(seed, fixed)
    broken = [text for text in lives.checked(raw, seed).broken if _concerns_all(text)]
    if not broken:
        return
    law = broken[0].partition(":")[0]
    file = _written(folder, smallest.as_scenario(smallest.small(raw, law)))
    raise AssignorBroken(f"lives: {broken[0]}\nShown by: muster simulate {file}")


_PLAIN = ("heartbeat.interval.ms", "session.timeout.ms", "num.standby.replicas")
"""Settings of random lives that every assignor gets."""


def _concerns_all(text: str) -> bool:
    """Whether a promise is one that every assignor gives."""
    return text.startswith(("settled", "honest", "NeverSettles", "InvariantViolation"))


# --------------------------------------------------------- random problems, and smaller ones


def _problem(rng: Random, name: str) -> Row:
    """A random group, of which some tasks are held."""
    units = [
        {
            "subtopology": f"t{number}",
            "partitions": rng.randint(1, 6),
            "stateful": rng.random() < 0.5,
        }
        for number in range(rng.randint(1, 3))
    ]
    tasks = [f"{u['subtopology']}_{n}" for u in units for n in range(int(str(u["partitions"])))]
    members: list[Row] = [
        {"id": f"m{number}", "capacity": rng.choice((1, 1, 1, 2, 4))}
        for number in range(rng.randint(1, 7))
    ]
    if rng.random() < 0.3:
        for member in members:
            member["rack"] = rng.choice(("r0", "r1"))
    if rng.random() < 0.2:
        rng.choice(members)["draining"] = True
    for task in tasks:
        if rng.random() < 0.7:
            rng.choice(members).setdefault("active", []).append(task)
    config = {"num.standby.replicas": rng.choice((0, 0, 1, 2))}
    return {"assignor": name, "config": config, "tasks": units, "members": members}


def _broken(law: str, wrong: str, raw: Row, breaks: Law, folder: Path) -> AssignorBroken:
    if _hangs(raw):  # it is not called again, so nothing can be left out
        return _shown_by(_written(folder, json.dumps(raw, indent=1)), law, wrong)
    small = _smallest_found(raw, breaks)
    file = _written(folder, json.dumps(small, indent=1))
    return _shown_by(file, law, breaks(small) or wrong)


def _shown_by(file: Path, law: str, wrong: str) -> AssignorBroken:
    return AssignorBroken(f"{law}: {wrong}\nShown by: muster assign {file}")


def _written(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / FILE
    file.write_text(text + "\n", encoding="utf-8")
    return file


def _hangs(raw: Row) -> bool:
    """Whether a call of the assignor that took too long still runs."""
    assignor = plugins.get(raw["assignor"])
    return isinstance(assignor, plugins.Guarded) and assignor.hangs


def _smallest_found(raw: Row, law: Law) -> Row:
    """The smallest problem found that breaks the same law."""

    def breaks(part: Row) -> bool:
        try:
            return law(part) is not None and not _hangs(part)
        except FAULTS_OF_A_PROBLEM:  # something that was left out makes it no problem at all
            return False

    def of(members: Sequence[Row]) -> Row:
        return {**raw, "members": deepcopy(list(members))}

    def fails(part: Sequence[Row]) -> bool:
        return bool(part) and breaks(of(part))

    simpler: Row | None = of(shrunk(raw["members"], fails, PLAYS_MAX))
    while simpler is not None:
        small = simpler
        simpler = next(filter(breaks, _simpler(small)), None)
    return small


def _simpler(raw: Row) -> Iterator[Row]:
    """Problems that each have one thing less."""
    for key in raw["config"]:
        less = deepcopy(raw)
        del less["config"][key]
        yield less
    for nth, unit in enumerate(raw["tasks"]):
        if len(raw["tasks"]) > 1:
            less = deepcopy(raw)
            del less["tasks"][nth]
            yield _without_lost_tasks(less)
        if unit["partitions"] > 1:
            less = deepcopy(raw)
            less["tasks"][nth]["partitions"] -= 1
            for value in less["tasks"][nth].values():
                if isinstance(value, list) and len(value) == unit["partitions"]:  # racks, weights
                    value.pop()
            yield _without_lost_tasks(less)
    for nth, member in enumerate(raw["members"]):
        for key in member:
            if key != "id":
                less = deepcopy(raw)
                del less["members"][nth][key]
                yield less


def _without_lost_tasks(raw: Row) -> Row:
    existing = {f"{u['subtopology']}_{n}" for u in raw["tasks"] for n in range(u["partitions"])}
    for member in raw["members"]:
        for role in (*ROLES, "ready"):
            if role in member:
                member[role] = [task for task in member[role] if task in existing]
    return raw
