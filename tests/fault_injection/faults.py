"""The faults of a run, as values, and random streams of them.

A fault names the process it happens to, and does nothing if that process does not run. So any part
of a stream is a valid stream, and a failing stream can be shrunk (`muster.simulation.shrinking`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from random import Random
from typing import TypeAlias

from muster.protocol.sources import Source
from muster.protocol.tasks import Connector, Subtopology, Unit

NAMES = ("W1", "W2", "W3", "W4", "W5")
"""Processes of a run. The last two are static members: they have an instance id."""
STATIC = NAMES[-2:]
PINNED = {"W2": ("c", "c-0", "1_0"), "W5": ("c-0", "1_1", "0_0")}
"""Processes that name jobs (`--static`); only the assignor `static` uses the names."""


@dataclass(frozen=True, slots=True)
class Starts:
    """A process starts; with `twin`, even if one of that name runs."""

    member: str
    twin: bool = False


@dataclass(frozen=True, slots=True)
class StartsAs:
    """A process starts with an instance id of its own choice, even if others have that."""

    member: str
    instance_id: str | None


@dataclass(frozen=True, slots=True)
class Stops:
    """A process is asked to end; with `temporary`, its leave says that it will return."""

    member: str
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class Dies:
    """A process ends without a leave."""

    member: str


@dataclass(frozen=True, slots=True)
class Freezes:
    """A process is suspended for a while and then goes on: a zombie."""

    member: str
    for_ms: int


@dataclass(frozen=True, slots=True)
class Deafens:
    """A process reads nothing for a while; everything else in it works."""

    member: str
    for_ms: int


@dataclass(frozen=True, slots=True)
class Dawdles:
    """From now on a process takes this long to stop tasks."""

    member: str
    stop_ms: int


@dataclass(frozen=True, slots=True)
class Repeats:
    """The newest event of a process is written to the log again, after newer events."""

    member: str


@dataclass(frozen=True, slots=True)
class Drains:
    """An operator drains a member, or undoes that."""

    member: str
    on: bool


@dataclass(frozen=True, slots=True)
class Lags:
    """An exporter reports the lag of a member's copies."""

    member: str
    offsets: int


@dataclass(frozen=True, slots=True)
class Configures:
    """An operator configures the group with these rows of `ASSIGNORS`, `TASKS` and `VALUES`."""

    assignor: int
    tasks: int
    values: int


@dataclass(frozen=True, slots=True)
class Deletes:
    """An operator deletes the group, and writes its config again `for_ms` later."""

    for_ms: int


@dataclass(frozen=True, slots=True)
class Finds:
    """Discovery finds two topics, which the newest config declares from now on.

    Attributes:
        first, second: their partitions; 0 = the topic does not exist.
        made: how often they were deleted and made anew.
    """

    first: int
    second: int
    made: int


@dataclass(frozen=True, slots=True)
class BrokerLeaves:
    """The broker is away."""

    for_ms: int


@dataclass(frozen=True, slots=True)
class FallsBehind:
    """The coordinator takes no batch for a while, and works through a backlog afterwards."""

    for_ms: int


@dataclass(frozen=True, slots=True)
class Skews:
    """The coordinator reads nothing new from one topic for a while."""

    topic: str
    for_ms: int


@dataclass(frozen=True, slots=True)
class Restarts:
    """The coordinator ends in the middle of a write and starts again.

    Attributes:
        written: percentage of the records of its last batch that were published.
        checkpoint: whether its checkpoint still exists.
    """

    written: int
    checkpoint: bool


FROZEN = 20
"""How many times later a frozen coordinator reads that it was superseded."""


@dataclass(frozen=True, slots=True)
class Usurps:
    """A second coordinator claims the group, without a checkpoint, while the first still runs.

    Attributes:
        notices_ms: how long until the first one reads the claim; it still writes its current batch.
        late_ms: how late that batch reaches Kafka.
        starts_ms: how long the second one takes from what it reads back to its first batch. Members
            still believe what the first one decides meanwhile.
        obeys: whether the first one obeys the tick that names the second, as all but old versions
            do. Then it was frozen: it reads the claim `FROZEN` times later.
    """

    notices_ms: int
    late_ms: int
    starts_ms: int = 0
    obeys: bool = False


ProcessFault: TypeAlias = Stops | Dies | Freezes | Deafens | Dawdles | Repeats
JobFault: TypeAlias = FallsBehind | Skews | Restarts | Usurps
Fault: TypeAlias = (
    ProcessFault
    | JobFault
    | Starts
    | StartsAs
    | Drains
    | Lags
    | Configures
    | Finds
    | Deletes
    | BrokerLeaves
)
Timed: TypeAlias = tuple[int, Fault]
"""(milliseconds from the beginning, fault)."""

ASSIGNORS = ("sticky", "learner", "high-availability", "cooperative", "static", "eager")
EAGER = ASSIGNORS.index("eager")
EAGER_EVERY = 11
"""One run in so many begins with `eager`, and one config in so many chooses it; `eager` came last,
and most runs are the same as before."""
TASKS: tuple[tuple[Unit, ...], ...] = (
    (Subtopology("0", 3, stateful=True), Subtopology("1", 2)),
    (Subtopology("0", 5, stateful=True),),
    (Subtopology("1", 3), Connector("c", 2)),
    (Subtopology("0", 2, stateful=True), Subtopology("1", 3)),
    (Subtopology("0", 5, stateful=True, weights=(1, 9, 1, 4, 1)), Subtopology("1", 2, weight=3)),
    (Subtopology("0", 3), Connector("c", 3), Connector("d", 0)),
    (Subtopology("1", 1),),
    (),
)
TASKS_AT_RANDOM = 4
"""So many rows may come in a random fault; the others are for `usual_days`."""
TOPICS_FOUND = ("orders", "clicks")
SOURCES = (Source(topics=("orders",), stateful=True), Source(topics=("clicks",)))
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
    {"num.standby.replicas": 2, "max.warmup.replicas": 1},
    {"acceptable.recovery.lag": 0, "num.standby.replicas": 1},
    {"group.max.size": 3},
    {"scale.down.timeout.ms": 300},
    {"probing.rebalance.interval.ms": 60_000, "max.warmup.replicas": 100},
)
VALUES_AT_RANDOM = 9
"""As `TASKS_AT_RANDOM`, of `VALUES`."""
"""Settings beside `USUAL`; `Configures` chooses one row."""
TOPICS = ("membership", "config", "lag")
STRESS = 20
"""How many times as often a stressed kind of fault happens."""


def _span(rng: Random, low: int, high: int) -> int:
    """A random span, short ones more often than long ones (log-uniform)."""
    return int(low * (high / low) ** rng.random())


_Maker: TypeAlias = Callable[[Random, str], Fault]
KINDS: dict[type, tuple[int, _Maker]] = {
    Starts: (30, lambda rng, name: Starts(name, twin=rng.random() < 0.1)),
    Stops: (8, lambda rng, name: Stops(name, temporary=rng.random() < 0.5)),
    Dies: (8, lambda rng, name: Dies(name)),
    Freezes: (6, lambda rng, name: Freezes(name, _span(rng, 50, 3 * SESSION_MS))),
    Deafens: (4, lambda rng, name: Deafens(name, _span(rng, 50, 4 * SESSION_MS))),
    Dawdles: (4, lambda rng, name: Dawdles(name, rng.choice((5, 30, 300, 2_500, 9_000)))),
    Repeats: (5, lambda rng, name: Repeats(name)),
    Drains: (8, lambda rng, name: Drains(name, on=rng.random() < 0.4)),
    Lags: (6, lambda rng, name: Lags(name, rng.choice((0, 5_000, 50_000)))),
    Configures: (6, lambda rng, name: _config(rng)),
    Deletes: (2, lambda rng, name: Deletes(_span(rng, 50, 3 * SESSION_MS))),
    BrokerLeaves: (2, lambda rng, name: BrokerLeaves(_span(rng, 50, 3 * SESSION_MS))),
    FallsBehind: (3, lambda rng, name: FallsBehind(_span(rng, 50, 2 * SESSION_MS))),
    Skews: (
        3,
        lambda rng, name: Skews(rng.choice(TOPICS), _span(rng, 50, 2 * SESSION_MS)),
    ),
    Restarts: (2, lambda rng, name: _restart(rng)),
    Usurps: (1, lambda rng, name: _usurper(rng)),
}
"""Kind of fault → (relative frequency, maker)."""


def beginning(seed: int) -> Configures:
    """The config with which the run of a seed begins."""
    if seed % EAGER_EVERY == EAGER_EVERY - 2:
        return Configures(EAGER, 0, 0)
    return Configures(seed % EAGER, 0, 0)


def _config(rng: Random) -> Fault:
    rows = (EAGER, TASKS_AT_RANDOM, VALUES_AT_RANDOM)
    return Configures(*(rng.randrange(count) for count in rows))


def _restart(rng: Random) -> Fault:
    return Restarts(rng.choice((0, 50, 100)), checkpoint=rng.random() < 0.7)


def _usurper(rng: Random) -> Fault:
    notices_ms, late_ms = _span(rng, 1, 1_000), _span(rng, 10, 2 * SESSION_MS)
    own = Random(f"{notices_ms}/{late_ms}")
    starts_ms = own.choice((0, _span(own, 10, 3_000)))
    return Usurps(notices_ms, late_ms, starts_ms, own.random() < 0.5)


def invented(
    seed: int,
    from_ms: int,
    until_ms: int,
    every_ms: int,
    stressed: Collection[type] = (),
) -> list[Timed]:
    """A random stream of faults; the same seed gives the same stream.

    Args:
        seed: any number.
        from_ms: when it begins.
        until_ms: when it ends.
        every_ms: mean time between two faults.
        stressed: kinds that happen `STRESS` times as often.
    """
    rng = Random(f"faults/{seed}")
    weights = [often * (STRESS if kind in stressed else 1) for kind, (often, _) in KINDS.items()]
    makers = [maker for _, maker in KINDS.values()]
    stream: list[Timed] = []
    at = float(from_ms)
    while (at := at + rng.expovariate(1 / every_ms)) < until_ms:
        (maker,) = rng.choices(makers, weights)
        fault = maker(rng, rng.choice(NAMES))
        if isinstance(fault, Configures) and int(at) % EAGER_EVERY == 0:
            fault = replace(fault, assignor=EAGER)
        stream.append((int(at), fault))
    return stream
