"""What can go wrong in an ordeal, as values, and a stream of it invented from a seed.

A fault names the process it befalls and does nothing if that process is not there. So any part of
a stream is a stream as well, which is what lets a failing one be made small (`shrink`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from muster.protocol.tasks import Connector, Subtopology, Unit

NAMES = ("W1", "W2", "W3", "W4", "W5")
"""Processes of an ordeal. The last two are static members: they have an instance id."""
STATIC = NAMES[-2:]
PINNED = {"W2": ("c", "c-0", "1_0"), "W5": ("c-0", "1_1", "0_0")}
"""Processes that name jobs (`--static`), which count in a group of assignor `static`."""


@dataclass(frozen=True, slots=True)
class Starts:
    """A process starts; `twin`: although one of that name runs."""

    member: str
    twin: bool = False


@dataclass(frozen=True, slots=True)
class Stops:
    """A process is asked to end; a static member may say that it will return."""

    member: str
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class Dies:
    """A process is gone without a word."""

    member: str


@dataclass(frozen=True, slots=True)
class Freezes:
    """A process does nothing for a while, then goes on as if nothing had been: a zombie."""

    member: str
    for_ms: int


@dataclass(frozen=True, slots=True)
class Deafens:
    """A process reads nothing for a while; everything else of it works."""

    member: str
    for_ms: int


@dataclass(frozen=True, slots=True)
class Dawdles:
    """What a process is asked to stop takes this long from now on."""

    member: str
    stop_ms: int


@dataclass(frozen=True, slots=True)
class Repeats:
    """The newest event of a process stands in the log once more, behind newer ones."""

    member: str


@dataclass(frozen=True, slots=True)
class Drains:
    """An operator wants a member empty, or takes that back."""

    member: str
    on: bool


@dataclass(frozen=True, slots=True)
class Lags:
    """An exporter says how far the copies of a member are behind."""

    member: str
    offsets: int


@dataclass(frozen=True, slots=True)
class Configures:
    """An operator gives the group row `assignor`, `tasks` and `values` of the tables below."""

    assignor: int
    tasks: int
    values: int


@dataclass(frozen=True, slots=True)
class Deletes:
    """An operator deletes the group, and gives it the config that it had this long after."""

    for_ms: int


@dataclass(frozen=True, slots=True)
class BrokerLeaves:
    """The broker is away."""

    for_ms: int


@dataclass(frozen=True, slots=True)
class FallsBehind:
    """The coordinator takes no batch for a while: it works off a backlog afterwards."""

    for_ms: int


@dataclass(frozen=True, slots=True)
class Skews:
    """The coordinator does not see what is new in one topic for a while."""

    topic: str
    for_ms: int


@dataclass(frozen=True, slots=True)
class Restarts:
    """The coordinator ends in the middle of a write and starts again.

    Attributes:
        written: of every hundred records of its last batch, so many were published.
        checkpoint: whether its checkpoint is still there.
    """

    written: int
    checkpoint: bool


@dataclass(frozen=True, slots=True)
class Usurps:
    """A second coordinator claims the group, with no checkpoint, while the first one lives on.

    Attributes:
        notices_ms: when the old one sees the claim; what it has in hand it still writes.
        late_ms: how late the last of that reaches Kafka.
    """

    notices_ms: int
    late_ms: int


ProcessFault: TypeAlias = Stops | Dies | Freezes | Deafens | Dawdles | Repeats
JobFault: TypeAlias = FallsBehind | Skews | Restarts | Usurps
Fault: TypeAlias = (
    ProcessFault | JobFault | Starts | Drains | Lags | Configures | Deletes | BrokerLeaves
)
Timed: TypeAlias = tuple[int, Fault]
"""(milliseconds from the beginning, what happens)."""

ASSIGNORS = ("sticky", "learner", "high-availability", "cooperative", "static")
TASKS: tuple[tuple[Unit, ...], ...] = (
    (Subtopology("0", 3, stateful=True), Subtopology("1", 2)),
    (Subtopology("0", 5, stateful=True),),
    (Subtopology("1", 3), Connector("c", 2)),
    (Subtopology("0", 2, stateful=True), Subtopology("1", 3)),
)
SESSION_MS, BEAT_MS, REBALANCE_MS = 2_000, 400, 4_000
USUAL: dict[str, object] = {
    "session.timeout.ms": SESSION_MS,
    "heartbeat.interval.ms": BEAT_MS,
    "rebalance.timeout.ms": REBALANCE_MS,
    "scheduled.rebalance.max.delay.ms": 2_000,
}
VALUES: tuple[dict[str, object], ...] = (
    {},
    {"num.standby.replicas": 1},
    {"session.timeout.ms": 1_000, "heartbeat.interval.ms": 200},
    {"session.timeout.ms": 5_000},
    {"rebalance.timeout.ms": 600},
    {"scale.down.timeout.ms": 1_500, "max.warmup.replicas": 1},
    {"initial.rebalance.delay.ms": 500, "assignment.interval.ms": 700},
    {"learner.partial.rebalance": False},
    {"num.standby.replicas": 1, "scheduled.rebalance.max.delay.ms": 0},
)
"""Settings beside `USUAL`. A fault of config puts one row in force."""
TOPICS = ("membership", "config", "lag")
STRESS = 20


def _span(chance: Random, low: int, high: int) -> int:
    """Short spans often, long ones now and then."""
    return int(low * (high / low) ** chance.random())


_Maker: TypeAlias = Callable[[Random, str], Fault]
KINDS: dict[type, tuple[int, _Maker]] = {
    Starts: (30, lambda chance, name: Starts(name, twin=chance.random() < 0.1)),
    Stops: (8, lambda chance, name: Stops(name, temporary=chance.random() < 0.5)),
    Dies: (8, lambda chance, name: Dies(name)),
    Freezes: (6, lambda chance, name: Freezes(name, _span(chance, 50, 3 * SESSION_MS))),
    Deafens: (4, lambda chance, name: Deafens(name, _span(chance, 50, 4 * SESSION_MS))),
    Dawdles: (4, lambda chance, name: Dawdles(name, chance.choice((5, 30, 300, 2_500, 9_000)))),
    Repeats: (5, lambda chance, name: Repeats(name)),
    Drains: (8, lambda chance, name: Drains(name, on=chance.random() < 0.4)),
    Lags: (6, lambda chance, name: Lags(name, chance.choice((0, 5_000, 50_000)))),
    Configures: (6, lambda chance, name: _config(chance)),
    Deletes: (2, lambda chance, name: Deletes(_span(chance, 50, 3 * SESSION_MS))),
    BrokerLeaves: (2, lambda chance, name: BrokerLeaves(_span(chance, 50, 3 * SESSION_MS))),
    FallsBehind: (3, lambda chance, name: FallsBehind(_span(chance, 50, 2 * SESSION_MS))),
    Skews: (
        3,
        lambda chance, name: Skews(chance.choice(TOPICS), _span(chance, 50, 2 * SESSION_MS)),
    ),
    Restarts: (2, lambda chance, name: _restart(chance)),
    Usurps: (1, lambda chance, name: _usurper(chance)),
}
"""Kind of fault → (how often, beside the others; maker)."""


def _config(chance: Random) -> Fault:
    rows = (len(ASSIGNORS), len(TASKS), len(VALUES))
    return Configures(*(chance.randrange(count) for count in rows))


def _restart(chance: Random) -> Fault:
    return Restarts(chance.choice((0, 50, 100)), checkpoint=chance.random() < 0.7)


def _usurper(chance: Random) -> Fault:
    return Usurps(_span(chance, 1, 1_000), _span(chance, 10, 2 * SESSION_MS))


def invented(
    seed: int,
    from_ms: int,
    until_ms: int,
    every_ms: int,
    stressed: Collection[type] = (),
) -> list[Timed]:
    """A stream of faults: the same seed, the same stream.

    Args:
        seed: any number.
        from_ms: when it begins.
        until_ms: when it is over.
        every_ms: mean distance of two faults.
        stressed: kinds that happen `STRESS` times as often.
    """
    chance = Random(f"faults/{seed}")  # noqa: S311 — a play, not a secret
    weights = [often * (STRESS if kind in stressed else 1) for kind, (often, _) in KINDS.items()]
    makers = [maker for _, maker in KINDS.values()]
    found: list[Timed] = []
    at = float(from_ms)
    while (at := at + chance.expovariate(1 / every_ms)) < until_ms:
        (maker,) = chance.choices(makers, weights)
        found.append((int(at), maker(chance, chance.choice(NAMES))))
    return found
