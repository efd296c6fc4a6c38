"""A coordinator that loads groups for minutes writes signs of life, so no standby claims."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from support.kafka.fake_admin import fake_cluster
from support.kafka.mock_kafka import mock_kafka
from support.state.snapshots import orders

from muster.kafka.client_settings import client_settings
from muster.protocol.codec import encode
from muster.protocol.ids import GroupId
from muster.protocol.records import CoordinatorClaim, CoordinatorRole, CoordinatorSign
from muster.streams import read_back
from muster.streams.job_settings import JobConfig
from muster.streams.monitoring import Seen
from muster.streams.observability.group_stats import GroupStats
from muster.streams.observability.health import JVM_S_MAX, STEP_S_MAX
from muster.streams.observability.late_records import LateRecords
from muster.streams.observability.metrics import Metrics
from muster.streams.observability.observer import Observer
from muster.streams.standby_coordinator import Newest, Turn

P = "muster"
SILENCE_S = 3.0
GROUPS, CLOCK = (f"{P}.groups", 0), (f"{P}.clock", 0)
LOAD_S = 600


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The monotonic clock, which stands unless a test moves its `s`."""
    clock = SimpleNamespace(s=1_000.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.s)
    return clock


@pytest.fixture
def claimed(now: SimpleNamespace) -> Iterator[Seen]:
    """A coordinator that has just claimed."""
    with ExitStack() as stack:
        seen = Seen(JobConfig(checkpoint="/c"), stack)
        watch: Any = SimpleNamespace(alive=True, story=None)
        seen._watch = watch
        seen.gets_on()
        yield seen


def observer_of(seen: Seen) -> Observer:
    """What watches the coordinator's topics; a test asks it to look."""
    metrics = Metrics()
    observer = Observer(
        client_settings("127.0.0.1:1"),
        {GROUPS[0]: 1, CLOCK[0]: 1},
        [P],
        metrics=metrics,
        fold=GroupStats(metrics, {P: 5}, 10),
        health=seen.health,
        read=lambda: None,
        late=LateRecords({}, lambda *_: None),
    )
    observer._ends = observer._all_asked()
    return observer


def standby_of(now: SimpleNamespace) -> Turn:
    """The other side: a standby that has read the claim."""
    turn = Turn("b", [P], SILENCE_S)
    record = CoordinatorClaim(job="a", host="h", version="1", follows=4, alone=True)
    turn.claimed(P, Newest(5, 0, record))
    turn.looked(P, now.s)
    return turn


def seconds_until_the_standby_claims(
    seen: Seen, now: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, published_every_s: int
) -> int | None:
    """How long a first batch may go on that publishes a group every so often; None = long enough.

    The coordinator writes a sign each second while it is well, and looks every two seconds.
    """
    cluster = fake_cluster(monkeypatch, {GROUPS: 7, CLOCK: 9})
    observer, turn = observer_of(seen), standby_of(now)
    sign = CoordinatorSign(job="a", host="h", version="1", role=CoordinatorRole.RUNNING)
    for second in range(1, LOAD_S):
        now.s += 1
        if second % published_every_s == 0:
            cluster.ends[GROUPS] += 1
        if second % 2 == 0:
            observer._look()
        if seen.is_well:
            cluster.ends[CLOCK] += 1  # the sign is no step of the load
            turn.read(P, sign, now.s)
        turn.looked(P, now.s)
        if turn.is_due(now.s):
            return second
    return None


def test_signs_go_on_while_a_long_first_batch_publishes(
    claimed: Seen, now: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch takes ten minutes, and publishes a group from time to time."""
    assert seconds_until_the_standby_claims(claimed, now, monkeypatch, 50) is None


def test_a_load_that_hangs_is_taken_over(
    claimed: Seen, now: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read or published, so the signs end although the process lives."""
    due_s = seconds_until_the_standby_claims(claimed, now, monkeypatch, LOAD_S)
    assert due_s == 1.5 * STEP_S_MAX + SILENCE_S - 1  # of the last second of which there is a sign


def test_each_group_that_is_read_back_is_a_step(claimed: Seen, now: SimpleNamespace) -> None:
    """Reading, waking and handing over some groups, slowly, keeps the coordinator well."""
    slow_s = STEP_S_MAX - 1
    snapshots = [replace(orders(), group=GroupId(f"g{number}")) for number in range(5)]

    def step() -> None:
        assert claimed.is_well
        claimed.gets_on()
        now.s += slow_s

    with mock_kafka() as address:
        clients = client_settings(address)
        producer = Producer(clients.producer())
        for record in map(encode, snapshots):
            producer.produce(GROUPS[0], record.value, record.key, 0, headers=list(record.headers))
        assert producer.flush(10) == 0
        begun_s = now.s
        recovered = read_back.groups(clients, [P], step)
        assert now.s - begun_s == 2 * slow_s * len(snapshots)  # read, and decoded
        begun_s = now.s
        read_back.wake_all(clients, recovered, {P: 1}, None, step)
        assert now.s - begun_s == slow_s * len(snapshots)
    spark: Any = SimpleNamespace(createDataFrame=lambda rows, _: rows)
    begun_s = now.s
    handed_over: Any = read_back.initial_state(spark, recovered, step)
    assert len(handed_over) == len(snapshots)
    assert now.s - begun_s == slow_s * len(snapshots)
    assert claimed.is_well


def test_no_sign_is_left_out_when_the_query_that_stays_begins(
    claimed: Seen, now: SimpleNamespace
) -> None:
    """Starting it takes the JVM some seconds, in which the main loop does not look at it."""
    clock: Any = SimpleNamespace(begin_canary=lambda: None)
    now.s += 2 * JVM_S_MAX
    claimed.runs(clock)
    assert claimed.is_well
    now.s += JVM_S_MAX
    assert not claimed.is_well
