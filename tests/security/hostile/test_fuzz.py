"""Random valid events with extreme contents: the operator never fails and stays within limits.

Hypothesis draws whole stories and finds a small one that fails. To draw a story costs it more than
the operator needs for it, so most cases come from a second test: it draws some thousand events,
encodes them once, and mixes them at random, some with bytes changed. The number of a case is its
seed, so a failing one can be run alone:

``MUSTER_FUZZ_CASES=1000000 python -m pytest tests/security/hostile/test_fuzz.py`` is the long run;
``MUSTER_FUZZ_FIRST=4711 MUSTER_FUZZ_CASES=1`` repeats case 4711 (`make long` runs a million).
"""

from __future__ import annotations

import os
import pickle
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from pyspark.sql.types import Row
from support.protocol.bombs import configured, kind_of
from support.streams.operator import INPUT, LANE, G, Operator, of_kind, record_of
from support.streams.packed_rows import pack
from support.suite.examples import examples

from muster.protocol import codec, events
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.digest import Holding
from muster.protocol.errors import EncodeError
from muster.protocol.events import Event, Lag, Mark, Origin
from muster.protocol.ids import MemberId, Task
from muster.protocol.records import Rejected
from muster.protocol.tasks import Connector, Subtopology, TaskSet
from muster.protocol.tick_covers import Cover, Heard
from muster.protocol.topics import topic_name
from muster.streams import processor
from muster.streams.batch import letter_limits

DRAWN = examples(60)
"""Stories that Hypothesis draws."""
CASES = int(os.environ.get("MUSTER_FUZZ_CASES", examples(600)))
"""Stories that are mixed from encoded events."""
FIRST = int(os.environ.get("MUSTER_FUZZ_FIRST", "0"))
TOLD_EACH = 1_000
POOL = 400
"""Events that are drawn for the mixtures."""
OUT_BYTES_MAX = 4_000_000
KEPT_BYTES_MAX = 4_000_000
CPU_S_MAX = 10.0
"""CPU seconds of one batch of at most five events: ten times the slowest on a slow machine."""
MEMORY_BYTES_MAX = 1 << 30
"""Bytes that the process may grow by in all cases together."""

longs = st.sampled_from((0, 1, 2, 2**31 - 1, 2**31, 2**62, 2**63 - 1)) | st.integers(0, 2**63 - 1)
ints = st.sampled_from((0, 1, 2, 2**31 - 1)) | st.integers(0, 2**31 - 1)
u64 = st.sampled_from((0, 1, 5, 2**63, 2**64 - 1)) | st.integers(0, 2**64 - 1)
members = st.sampled_from("abcdef").map(MemberId) | st.text(
    st.characters(exclude_characters="|", exclude_categories=("C", "Z")), min_size=1, max_size=128
).map(MemberId)
words = st.sampled_from(("0", "1", "9" * 400, "x" * 2_000, "", "\x1b[31m", "a\nb", "ü")) | st.text(
    max_size=20
)
units = st.sampled_from(("0", "c", "unknown", "9" * 400)) | words.filter(bool)
numbers = st.builds(
    lambda start, size, step: np.arange(start, start + size * step, step, dtype=np.int32),
    st.integers(0, 50),
    st.sampled_from((1, 2, 8, 5_000, 100_000)),
    st.sampled_from((1, 3)),
)
sets = st.lists(
    st.tuples(units, st.just(False), numbers), max_size=2, unique_by=lambda u: u[0]
).map(TaskSet)
holdings = st.builds(Holding, sets, sets, sets, sets, sets)
lags = st.lists(
    st.builds(Lag, st.builds(Task, units, st.integers(0, 2**31 - 3)), longs), max_size=40
).map(tuple)
names = st.lists(words, max_size=3).map(tuple)
profile = {
    "rack": st.none() | words,
    "capacity": st.integers(1, 2**31 - 1),
    "tags": st.dictionaries(words, words, max_size=6).map(lambda d: tuple(sorted(d.items()))),
    "protocols": names,
    "topics": st.none() | names,
    "static": names,
    "config_offset": st.none() | longs,
    "rebalance_timeout_ms": st.none() | ints,
    "make_before_break": st.booleans(),
}
group = {"group": st.just(G)}
who = {**group, "member": members}
tasks = st.lists(
    st.builds(Subtopology, units, st.integers(0, 200), st.booleans(), st.sampled_from((0, 1, 1e15)))
    | st.builds(Connector, units, st.integers(0, 50)),
    max_size=3,
    unique_by=lambda unit: unit.name,
).map(tuple)
tunings = st.fixed_dictionaries(
    {"heartbeat.interval.ms": st.just(50)},
    optional={
        "session.timeout.ms": st.sampled_from((100, 45_000, 1_800_000)),
        "rebalance.timeout.ms": st.sampled_from((1, 2**62)),
        "num.standby.replicas": st.sampled_from((0, 1, 2**31 - 1)),
        "max.warmup.replicas": st.sampled_from((1, 2**31 - 1)),
        "acceptable.recovery.lag": longs,
        "group.max.size": st.sampled_from((1, 2, 2**31 - 1)),
        "scale.down.timeout.ms": longs,
        "initial.rebalance.delay.ms": longs,
        "assignment.interval.ms": longs,
        "rack.aware.assignment.strategy": st.sampled_from(("none", "min_traffic")),
    },
)
heard = st.builds(Heard, members, st.integers(0, 255), st.integers(-(2**31), 2**31 - 1), u64)
crowd = tuple(Heard(f"s{n}", 0, 1, n) for n in range(2_000))
covers = st.builds(
    lambda one, two, told: Cover(min(one, two), max(one, two), told),
    *(longs | st.integers(0, 10_000), longs | st.integers(0, 10_000)),
    st.lists(heard, max_size=6).map(tuple) | st.just(crowd),
)
assignors = st.sampled_from(
    ("sticky", "high-availability", "learner", "cooperative", "eager", "static", "sys:exit", "no")
)


any_event = st.one_of(
    st.builds(
        events.Join,
        **who,
        **profile,
        incarnation=u64,
        instance_id=st.none() | words,
        holding=holdings,
        lags=lags,
        apart=st.booleans(),
    ),
    st.builds(
        events.Report,
        **who,
        incarnation=u64,
        epoch=ints,
        revision=ints,
        holding=holdings,
        lags=lags,
        coordinator_epoch=st.none() | longs,
    ),
    st.builds(events.Heartbeat, **who, epoch=ints, digest=u64),
    st.builds(events.Leave, **who, incarnation=u64, temporary=st.booleans()),
    st.builds(events.Drain, **who, on=st.booleans()),
    st.builds(events.LagReport, **who, lags=lags),
    st.builds(configured, st.just(G), tasks, assignors, tunings),
    st.builds(events.GroupDeleted, **group),
    st.builds(
        events.Tick,
        **group,
        published=st.none() | st.builds(Mark, ints, longs),
        cover=st.none() | covers,
    ),
)
"""Events as a writer may build them; a few cannot be encoded."""


Raw = tuple[str, bytes | None]
"""Topic and value of a record."""


class Life:
    """A group that processes batches of events; offsets and time increase."""

    def __init__(self) -> None:
        processor._cache.clear()
        letter_limits._unreported.clear()
        self.operator = Operator()
        self._offset = 0

    def take(self, batch: list[Event], at_ms: int) -> None:
        """Process one batch of events and check all limits."""
        self.take_raw([raw for event in batch if (raw := encoded(event)) is not None], at_ms)

    def take_raw(self, batch: list[Raw], at_ms: int) -> None:
        """Process one batch of encoded events and check all limits."""
        if not batch:
            return
        entries: list[bytes] = []
        for topic, value in batch:
            self._offset += 1
            entries.append(pack(Origin(topic, 0, self._offset, at_ms), value, INPUT))
        began_s = time.thread_time()
        self.operator.begin_batch()
        rows = self.operator.tester.test(LANE, [Row(lane=LANE, entry=each) for each in entries])
        told = of_kind([record_of(r) for r in rows if r.topic.endswith("rejected")], Rejected)
        assert [r.message for r in told if r.reason == DeadLetter.GROUP_FAILED] == []
        assert sum(len(row.key) + len(row.value or b"") for row in rows) <= OUT_BYTES_MAX
        kept = self.operator.stored(LANE)
        assert sum(len(value or b"") for value in kept) <= KEPT_BYTES_MAX
        assert time.thread_time() - began_s <= CPU_S_MAX
        assert most_memory() - _MEMORY_AT_FIRST <= MEMORY_BYTES_MAX


def encoded(event: Event) -> Raw | None:
    """Topic and value of an event; None = it cannot be encoded."""
    try:
        return topic_name(kind_of(event), "muster"), codec.encode(event).value
    except EncodeError:
        return None


def most_memory() -> int:
    """Peak resident memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


_MEMORY_AT_FIRST = most_memory()


@settings(
    max_examples=DRAWN,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    st.lists(st.tuples(st.lists(any_event, min_size=1, max_size=5), ints), min_size=1, max_size=4)
)
@pytest.mark.timeout(600)  # a batch has a limit of its own
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@pytest.mark.usefixtures("nothing_in_memory_ever")
def test_no_event_fails_the_group(story: list[tuple[list[Event], int]]) -> None:
    """Four batches of any events: the core never fails, and what is written and kept is limited."""
    life, at_ms = Life(), 1_000
    try:
        for batch, wait_ms in story:
            at_ms += wait_ms
            life.take(batch, at_ms)
    except BaseException:
        note(told(story))  # the example itself is too large for hypothesis to show
        raise


@pytest.fixture(scope="module")
def pool() -> list[Raw]:
    """Encoded events; the same ones in each run."""
    found: list[Raw] = []

    @settings(
        max_examples=POOL,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(any_event)
    def draw(event: Event) -> None:
        raw = encoded(event)
        if raw is not None:
            found.append(raw)

    draw()
    return found


def mixture(pool: list[Raw], seed: int) -> list[tuple[list[Raw], int]]:
    """Up to four batches of up to five events each, with the time before each batch."""
    chance = random.Random(seed)
    story: list[tuple[list[Raw], int]] = []
    for _ in range(chance.randint(1, 4)):
        batch = chance.choices(pool, k=chance.randint(1, 5))
        if chance.random() < 0.2:
            number = chance.randrange(len(batch))
            topic, value = batch[number]
            batch[number] = (topic, damaged(value or b"\0", chance))
        story.append((batch, chance.choice((0, 1, 50, 5_000, 60_000, 2**31))))
    return story


def damaged(value: bytes, chance: random.Random) -> bytes:
    """A value with one byte changed, or cut off."""
    at = chance.randrange(len(value))
    return value[:at] + (chance.randbytes(1) + value[at + 1 :] if chance.random() < 0.8 else b"")


@pytest.mark.timeout(600 + CASES)  # a batch has a limit of its own
@pytest.mark.usefixtures("nothing_in_memory_ever")
def test_no_mixture_of_events_fails_the_group(pool: list[Raw]) -> None:
    """The same of many mixtures, damaged events among them."""
    for seed in range(FIRST, FIRST + CASES):
        if (seed - FIRST) % TOLD_EACH == 0:
            print(f"{seed - FIRST} cases", flush=True)  # a long run may be ended early
        life, at_ms = Life(), 1_000
        try:
            for batch, wait_ms in mixture(pool, seed):
                at_ms += wait_ms
                life.take_raw(batch, at_ms)
        except BaseException as error:
            error.add_note(f"case {seed}: repeat it with MUSTER_FUZZ_FIRST={seed}")
            raise


def told(story: list[tuple[list[Event], int]]) -> str:
    """The example's events, shortened; a file has them whole, as a pickle."""
    place = Path(gettempdir()) / "muster-fuzz-story.pickle"
    place.write_bytes(pickle.dumps(story))
    lines = [f"the whole story: {place}"]
    for batch, wait_ms in story:
        lines.append(f"after {wait_ms} ms:")
        lines += (f"    {truncated(event)}" for event in batch)
    return "\n".join(lines)


def truncated(event: Event) -> str:
    """The beginning of an event's text."""
    text = repr(event)
    return text if len(text) <= 600 else f"{text[:600]}… ({len(text)} characters)"


@pytest.fixture(scope="module")
def nothing_in_memory_ever() -> Iterator[None]:
    """Empties the process's memory after the examples; `Life` does so before each."""
    yield
    processor._cache.clear()
    letter_limits._unreported.clear()
