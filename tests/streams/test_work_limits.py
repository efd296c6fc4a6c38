"""A group's credit for events: it is used up, grows back with the broker's time, and is stored."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.protocol.bombs import configured
from support.streams.operator import INPUT, LANE, G, Operator, config, of_kind
from support.streams.packed_rows import pack

from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import (
    Event,
    GroupConfig,
    GroupDeleted,
    Heartbeat,
    Join,
    Lag,
    LagReport,
    Leave,
    Origin,
    Tick,
)
from muster.protocol.ids import GroupId, MemberId, Task
from muster.protocol.records import Rejected
from muster.protocol.tasks import Subtopology
from muster.protocol.tick_covers import Cover, Heard
from muster.protocol.topics import TopicKind
from muster.streams import processor
from muster.streams.batch import inbox, work_limits
from muster.streams.batch.stored_values import (
    ON_CREDIT,
    PLAIN,
    QUARANTINED_FLAG,
    Header,
    Parts,
    Stored,
)
from muster.streams.batch.work_limits import Budget, Credit, Limits
from muster.streams.source import lane_of

pytestmark = pytest.mark.usefixtures("nothing_in_memory")

WHOLE = work_limits.CREDIT_EVENTS_MIN
A_SECOND = work_limits.REGROWN_US // work_limits.EVENT_US
"""Events whose credit grows back in a second."""
M = TopicKind.MEMBERSHIP


def rows(events: list[Event], at_ms: int, first: int = 0) -> list[bytes]:
    """Events as the source packs them."""
    packed = []
    for number, event in enumerate(events, first):
        kind = "config" if isinstance(event, GroupConfig | GroupDeleted) else "membership"
        kind = "lag" if isinstance(event, LagReport) else kind
        origin = Origin(f"muster.{kind}", 0, number, at_ms)
        packed.append(pack(origin, codec.encode(event).value, INPUT))
    return sorted(packed)


def leaves(count: int) -> list[Event]:
    """Leaves of members that are none."""
    return [Leave(group=G, member=MemberId(f"m{n}"), incarnation=1) for n in range(count)]


def opened(events: list[Event], at_ms: int, limits: Limits) -> inbox.Inbox:
    """The inbox of a batch of these events."""
    return inbox.open_lane(LANE, rows(events, at_ms), INPUT, limits=limits)


def test_credit_grows_back_with_the_brokers_time() -> None:
    """After the whole credit is used up, each second brings some of it back, up to the whole."""
    first = opened(leaves(WHOLE + 7), 1_000, Limits())
    assert (len(first.events), len(first.rejected)) == (WHOLE, 7)
    assert first.credit == Credit(1_000, (0, work_limits.CREDIT_CONFIGS_US, 250 * WHOLE))
    for after_ms, expected in ((0, 0), (1_000, A_SECOND), (60_000, WHOLE)):
        later = opened(leaves(WHOLE + 7), 1_000 + after_ms, Limits(credit=first.credit))
        assert len(later.events) == expected
    assert opened(leaves(3), 999, Limits(credit=first.credit)).events == []  # an older clock


def test_new_members_bring_no_credit_of_their_own() -> None:
    """Joins of ever new members raise the whole credit, but not what is left of it."""
    used = Credit(1_000, (0, 0, 0))
    assert opened(leaves(9), 1_000, Limits(members_known=50_000, credit=used)).events == []
    second = Limits(members_known=50_000, credit=used)
    assert len(opened(leaves(9_000), 2_000, second).events) == 5_000  # a tenth in a second


def test_lags_and_heartbeats_in_ticks_use_credit_up() -> None:
    """An event costs as much as what it names."""
    lags = tuple(Lag(Task("0", n), 5) for n in range(5_000))
    costs: list[tuple[Event, TopicKind, int]] = [
        (LagReport(group=G, member=MemberId("m"), lags=lags), TopicKind.LAG, 5 * 5_000),
        (LagReport(group=G, member=MemberId("m"), lags=lags[:9]), TopicKind.LAG, 250),
        (
            Tick(group=G, cover=Cover(0, 1, tuple(Heard(f"m{n}", 0, 1, n) for n in range(9_000)))),
            *(M, 9_000),
        ),
        (Join(group=G, member=MemberId("m"), incarnation=1), M, 250),
        (Heartbeat(group=G, member=MemberId("m"), epoch=1, digest=1), M, 0),
    ]
    for event, kind, cost_us in costs:
        credit = opened([event], 1_000, Limits(credit=Credit(1_000, (9, 9, 9)))).credit
        assert credit is not None
        assert credit.left_us[(M, TopicKind.CONFIG, TopicKind.LAG).index(kind)] == 9 - cost_us


def test_each_topic_has_a_credit_of_its_own() -> None:
    """A group that has used up its credit for lag reports still takes joins and configs."""
    limits = Limits(credit=Credit(1_000, (500, 500, 0)))
    report = LagReport(group=G, member=MemberId("m"), lags=(Lag(Task("0", 0), 1),))
    join = Join(group=G, member=MemberId("m"), incarnation=1)
    inbox = opened([report, join, config()], 1_000, limits)
    assert {type(event) for event in inbox.events} == {Join, GroupConfig}
    assert [letter.reason for letter in inbox.rejected] == [DeadLetter.TOO_MUCH_AT_ONCE]


def test_of_configs_the_newest_are_taken() -> None:
    """A config costs what its units and the group's members cost; the newest is read first."""
    units = tuple(Subtopology(f"unit{n}", 1) for n in range(1_000))
    configs: list[Event] = [configured(G, units), config(3), config(5)]
    limits = Limits(members_known=100, credit=Credit(1_000, (0, 10_000, 0)))
    inbox = opened(configs, 1_000, limits)
    assert [letter.origin.offset for letter in inbox.rejected] == [0]
    assert [event.tasks[0].size for event in inbox.events] == [3, 5]  # type: ignore[union-attr]
    assert inbox.credit is not None
    assert inbox.credit.left_us[1] == 10_000 - 2 * (1_000 + 40 + 75 * 100)
    gone = opened([GroupDeleted(group=G)], 1_000, Limits(credit=inbox.credit))
    assert [letter.reason for letter in gone.rejected] == [DeadLetter.TOO_MUCH_AT_ONCE]


def test_a_config_of_more_tasks_brings_their_credit() -> None:
    """A group of ten thousand tasks takes twice as many events at once, from its first batch on."""
    budget = Budget(Limits(), 1_000)
    event: Event = config(10_000)
    budget.take(event)
    for event in leaves(20_000):
        assert budget.has_room(M)
        budget.count(M, event)
    assert not budget.has_room(M)


def test_large_configs_of_all_groups_share_a_limit() -> None:
    """A batch takes four configs of 8,000 long names, each of another group; small ones go on."""
    operator = Operator()
    names = tuple(Subtopology(f"{n}{'x' * 500}", 1) for n in range(8_000))
    answers = []
    for number in range(6):
        group = GroupId(f"g{number}")
        units = names if number < 5 else names[:1]
        event = replace(configured(group, units), group=group)
        lane = lane_of("muster", group.encode())
        answers.append(operator.batch(lane, rows([event], 1_000, number)))
    refused = [letter.reason for records in answers for letter in of_kind(records, Rejected)]
    assert refused == [DeadLetter.TOO_MUCH_AT_ONCE]
    assert not of_kind(answers[5], Rejected)
    operator.processor.init(operator.tester.handle)  # the next batch
    assert not of_kind(operator.batch(lane, rows([event], 2_000, 9)), Rejected)


def test_stored_values_keep_the_credit() -> None:
    """The credit is read back, with and without a replay guard and a probation."""
    credit = Credit(2**60, (-(2**40), 7, 250_000))
    kept = credit._replace(left_us=(-(2**31), 7, 250_000))
    for guard in (b"", b"guard"):
        for until_ms in (0, 2**50):
            parts = Parts(Header(QUARANTINED_FLAG, b"12345678", 5), guard, b"core", until_ms)
            stored = Stored(parts._replace(credit=credit).to_bytes(), b"")
            assert stored.parts() == parts._replace(credit=kept)
            assert stored.is_on_probation == (until_ms > 0)
            assert Stored(parts.to_bytes(), b"").parts() == parts


def test_the_stored_format_of_a_credit_stays() -> None:
    """A later version must read these bytes."""
    credit = Credit(1, (-2, 3, 4))
    parts = Parts(Header(5, b"12345678", 7), b"guard", b"core", 9, credit)
    numbers = b"".join(n.to_bytes(4, "big", signed=True) for n in credit.left_us)
    times = b"".join(n.to_bytes(8, "big") for n in (7, 9, 1))
    expected = b"\x04\x05" + b"12345678" + times + numbers + b"\0\0\0\x05guardcore"
    assert parts.to_bytes() == expected


def test_an_ordinary_batch_changes_no_stored_format() -> None:
    """A few events leave the credit whole; very many are remembered until they are made up for."""
    operator = Operator()
    operator.feed(1_000, config(2), Join(group=G, member=MemberId("m0"), incarnation=1))
    assert (operator.stored(LANE)[0] or b"")[0] == PLAIN
    operator.feed(2_000, *leaves(WHOLE))
    assert (operator.stored(LANE)[0] or b"")[0] == ON_CREDIT
    operator.feed(10_000, Tick(group=G))
    assert (operator.stored(LANE)[0] or b"")[0] == PLAIN


def test_a_replay_refuses_the_same_events() -> None:
    """A process that reads the group from the store refuses what the first one refused."""
    joins = [Join(group=G, member=MemberId(f"m{n}"), incarnation=1) for n in range(WHOLE + 50)]
    answers = []
    for forgets in (False, True):
        operator = Operator()
        operator.feed(500, config(2))
        operator.batch(LANE, rows(joins, 1_000, 10))
        if forgets:
            processor._cache.clear()
        records = operator.batch(LANE, rows(joins, 1_900, 5_000))
        assert len(of_kind(records, Rejected)) == 21  # twenty, and one that counts the rest
        answers.append([codec.encode(record) for record in records])
        processor._cache.clear()
    assert answers[0] == answers[1]
