"""Runs of what operators and deployments do to a fleet, in combinations; few faults in between.

A day is some chores, each a short sequence of steps, which begin at random times and so overlap: a
deploy begins while members drain, the coordinator is updated while a topic is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

from fault_injection import faults
from fault_injection.faults import (
    NAMES,
    SESSION_MS,
    STATIC,
    Configures,
    Deafens,
    Deletes,
    Dies,
    Drains,
    FallsBehind,
    Fault,
    Finds,
    Freezes,
    Lags,
    Restarts,
    Skews,
    Starts,
    StartsAs,
    Stops,
    Timed,
    Usurps,
)

CHORES_MAX = 8
LASTS_MS = (5_000, 40_000)
"""Shortest and longest time in which chores begin."""
FAULTS_EVERY_MS = (1_500, 40_000)
"""Smallest and greatest mean time between two faults beside the chores."""
Chore: TypeAlias = Callable[[Random], list[Timed]]


def _span(rng: Random, low: int = 20, high: int = 3 * SESSION_MS) -> int:
    """A random span in ms, short ones more often than long ones (log-uniform)."""
    return int(low * (high / low) ** rng.random())


def _ends(rng: Random, name: str) -> Fault:
    return rng.choice((Stops(name), Stops(name, temporary=True), Dies(name)))


def _shuffled(rng: Random) -> list[str]:
    return rng.sample(NAMES, len(NAMES))


def _row(rng: Random) -> Configures:
    counts = (len(faults.ASSIGNORS), len(faults.TASKS), len(faults.VALUES))
    return Configures(*map(rng.randrange, counts))


def rolling_restart(rng: Random) -> list[Timed]:
    """Each member ends and starts again, one after the other."""
    steps: list[Timed] = []
    at, down_ms, pause_ms = 0, _span(rng), _span(rng)
    for name in _shuffled(rng):
        steps += [(at, _ends(rng, name)), (at + down_ms, Starts(name))]
        at += pause_ms
    return steps


def deploy_at_once(rng: Random) -> list[Timed]:
    """All members end within a moment, and all start again."""
    back_ms, moment_ms = _span(rng), _span(rng, 2, 500)
    steps: list[Timed] = []
    for name in _shuffled(rng):
        steps.append((rng.randrange(moment_ms), _ends(rng, name)))
        steps.append((back_ms + rng.randrange(moment_ms), Starts(name)))
    return steps


def drain_all(rng: Random) -> list[Timed]:
    """All members are drained, some restart, and the drains are undone in another order."""
    steps: list[Timed] = []
    apart_ms, undone_ms = _span(rng, 1, 500), _span(rng)
    for nth, name in enumerate(_shuffled(rng)):
        steps.append((nth * apart_ms, Drains(name, on=True)))
        if rng.random() < 0.4:
            ends = rng.randrange(undone_ms)
            steps += [(ends, _ends(rng, name)), (ends + _span(rng), Starts(name))]
    for nth, name in enumerate(_shuffled(rng)):
        steps.append((5 * apart_ms + undone_ms + nth * apart_ms, Drains(name, on=False)))
    return steps


def drain_and_replace(rng: Random) -> list[Timed]:
    """A member is drained, stopped and started again; its drain is undone before or after."""
    name = rng.choice(NAMES)
    stops = _span(rng)
    steps: list[Timed] = [(0, Drains(name, on=True)), (stops, _ends(rng, name))]
    steps.append((stops + _span(rng), Starts(name)))
    return [*steps, (_span(rng, 500, 12_000), Drains(name, on=False))]


def crash_loop(rng: Random) -> list[Timed]:
    """A process dies again and again, soon after its start."""
    name, at = rng.choice(NAMES), 0
    steps: list[Timed] = []
    for _ in range(rng.randint(3, 10)):
        steps += [(at, Starts(name)), (at + _span(rng, 5, 1_500), Dies(name))]
        at = steps[-1][0] + _span(rng, 10, 1_500)
    return [*steps, (at, Starts(name))]


def settings_to_and_fro(rng: Random) -> list[Timed]:
    """A setting is changed, and changed back or on while the group has not settled."""
    rows = [_row(rng), _row(rng)]
    if rng.random() < 0.7:  # the same tasks and assignor
        rows[1] = Configures(rows[0].assignor, rows[0].tasks, rows[1].values)
    at = 0
    steps: list[Timed] = []
    for nth in range(rng.randint(2, 6)):
        steps.append((at, rows[nth % 2]))
        at += _span(rng, 5, 3_000)
    return steps


def tasks_to_and_fro(rng: Random) -> list[Timed]:
    """Tasks are taken away and declared anew; the assignor stays."""
    first = _row(rng)
    at = 0
    steps: list[Timed] = []
    for _ in range(rng.randint(2, 6)):
        row = Configures(first.assignor, rng.randrange(len(faults.TASKS)), first.values)
        steps.append((at, row))
        at += _span(rng, 5, 3_000)
    return steps


def assignors_in_turn(rng: Random) -> list[Timed]:
    """The assignor is changed in the middle of a rebalance; the tasks stay."""
    first, at = _row(rng), 0
    steps: list[Timed] = []
    for assignor in rng.sample(range(len(faults.ASSIGNORS)), rng.randint(2, 4)):
        steps.append((at, Configures(assignor, first.tasks, first.values)))
        at += _span(rng, 5, 5_000)
    return steps


def topics_change(rng: Random) -> list[Timed]:
    """Topics are found, grow, shrink, are deleted and made anew."""
    at = 0
    steps: list[Timed] = [(0, Finds(rng.randrange(1, 6), rng.randrange(4), made=0))]
    for made in range(rng.randint(2, 5)):
        at += _span(rng, 5, 4_000)
        steps.append((at, Finds(rng.randrange(6), rng.randrange(4), made)))
    return steps


def session_shrinks_while_members_sleep(rng: Random) -> list[Timed]:
    """Members are frozen or deaf when the session timeout is changed."""
    steps: list[Timed] = [(0, Configures(rng.randrange(6), rng.randrange(4), 3))]
    at = _span(rng, 50, 2_000)
    for name in rng.sample(NAMES, rng.randint(1, 4)):
        kind = rng.choice((Freezes, Deafens))
        steps.append((at + rng.randrange(300), kind(name, _span(rng, 200, 8_000))))
    return [*steps, (at + _span(rng, 5, 1_000), Configures(rng.randrange(6), rng.randrange(4), 2))]


def new_host_name(rng: Random) -> list[Timed]:
    """A static member starts under another member id, while its old process lives or sleeps."""
    name = rng.choice(STATIC)
    steps: list[Timed] = []
    fate = rng.choice(
        (Stops(name, temporary=True), Dies(name), Freezes(name, _span(rng, 300, 9_000)), None)
    )
    if fate is not None:
        steps.append((0, fate))
    at = _span(rng)
    for number in range(rng.randint(1, 3)):
        new = f"{name}-{number}"
        steps.append((at, StartsAs(new, f"i-{name}")))
        at += _span(rng)
        if rng.random() < 0.7:
            steps.append((at, _ends(rng, new)))
        at += _span(rng)
    return [*steps, (at, Starts(name))]


def another_instance_id(rng: Random) -> list[Timed]:
    """A member starts again with another instance id, or with none, or with that of another."""
    name, at = rng.choice(NAMES), 0
    steps: list[Timed] = []
    for _ in range(rng.randint(1, 3)):
        steps.append((at, _ends(rng, name)))
        instance_id = rng.choice((None, f"i-{name}", "i-other", f"i-{rng.choice(STATIC)}"))
        steps.append((at + _span(rng), StartsAs(name, instance_id)))
        at = steps[-1][0] + _span(rng)
    return [*steps, (at, _ends(rng, name)), (at + _span(rng), Starts(name))]


def all_leave_and_return(rng: Random) -> list[Timed]:
    """The fleet is scaled to nothing for a while; the coordinator may start again meanwhile."""
    steps: list[Timed] = [(rng.randrange(300), _ends(rng, name)) for name in NAMES]
    away_ms = _span(rng, 300, 12_000)
    if rng.random() < 0.5:
        steps.append((rng.randrange(away_ms), _restart(rng)))
    return [*steps, *((away_ms + rng.randrange(2_000), Starts(name)) for name in NAMES)]


def one_member_for_a_while(rng: Random) -> list[Timed]:
    """All but one leave; that one sleeps, restarts or drains."""
    alone, *others = _shuffled(rng)
    steps: list[Timed] = [(rng.randrange(300), _ends(rng, name)) for name in others]
    at = _span(rng, 50, 3_000)
    fate = rng.choice(
        (Freezes(alone, _span(rng, 500, 9_000)), Drains(alone, on=True), _ends(rng, alone))
    )
    steps += [(at, fate), (at + _span(rng), Starts(alone))]
    back = at + _span(rng, 300, 12_000)
    steps += [(back + rng.randrange(500), Starts(name)) for name in others]
    return [*steps, (back + _span(rng), Drains(alone, on=False))]


def coordinator_is_updated(rng: Random) -> list[Timed]:
    """Coordinators replace one another; one may be killed, or lose its checkpoint."""
    at = 0
    steps: list[Timed] = []
    for _ in range(rng.randint(1, 3)):
        usurps = Usurps(_span(rng, 1, 500), _span(rng, 5, 2_000), rng.choice((0, 300, 2_000)), True)
        steps.append((at, rng.choice((usurps, _restart(rng)))))
        at += _span(rng, 30, 5_000)
    return steps


def coordinator_falls_behind(rng: Random) -> list[Timed]:
    """The coordinator works through much at once, or reads its topics one after the other."""
    behind = FallsBehind(_span(rng, 500, 15_000))
    return [(0, rng.choice((behind, Skews(rng.choice(faults.TOPICS), behind.for_ms))))]


def deleted_and_made_anew(rng: Random) -> list[Timed]:
    """The group is deleted, and configured in another way when or before it comes back."""
    for_ms = _span(rng)
    return [(0, Deletes(for_ms)), (_span(rng, 5, 2 * for_ms + 10), _row(rng))]


def copies_fall_behind(rng: Random) -> list[Timed]:
    """An exporter reports copies as far behind, and as near again."""
    return [
        (_span(rng, 1, 4_000), Lags(rng.choice(NAMES), rng.choice((0, 50_000))))
        for _ in range(rng.randint(2, 6))
    ]


CHORES: tuple[Chore, ...] = (
    rolling_restart,
    deploy_at_once,
    drain_all,
    drain_and_replace,
    crash_loop,
    settings_to_and_fro,
    tasks_to_and_fro,
    assignors_in_turn,
    topics_change,
    session_shrinks_while_members_sleep,
    new_host_name,
    another_instance_id,
    all_leave_and_return,
    one_member_for_a_while,
    coordinator_is_updated,
    coordinator_falls_behind,
    deleted_and_made_anew,
    copies_fall_behind,
)


def _restart(rng: Random) -> Restarts:
    return Restarts(rng.choice((0, 50, 100)), checkpoint=rng.random() < 0.5)


def day(seed: int) -> list[Timed]:
    """The steps of a day: all members start, chores begin, few faults happen beside them."""
    rng = Random(f"usual day/{seed}")
    lasts_ms = _span(rng, *LASTS_MS)
    steps: list[Timed] = [(rng.randrange(300), Starts(name)) for name in NAMES]
    for chore in rng.choices(CHORES, k=rng.randint(2, CHORES_MAX)):
        begins = rng.randrange(200, lasts_ms)
        steps += [(begins + at, step) for at, step in chore(rng)]
    until_ms = max(at for at, _ in steps)
    steps += faults.invented(seed, 0, until_ms, _span(rng, *FAULTS_EVERY_MS))
    return sorted(steps, key=lambda timed: timed[0])
