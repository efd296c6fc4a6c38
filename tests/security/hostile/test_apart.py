"""Writers of ticks and of heartbeats apart: what they make the clock and a group do and keep."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from support.kafka.brokers import Topics
from support.protocol.bombs import HOSTILE, ticks_of_thousands
from support.streams.operator import INPUT, G, Operator, config, of_kind
from support.streams.packed_rows import pack
from support.suite.examples import examples
from support.suite.waiting import until

from muster.kafka.client_settings import ClientSettings
from muster.kafka.lasting_producer import LastingProducer
from muster.logs import KAFKA
from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.errors import DecodeError
from muster.protocol.events import Event, Heartbeat, Join, Mark, Origin, Tick
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keyring import Caller, Keyring, Requirement, SigningKey
from muster.protocol.records import MemberAssignment, Rejected
from muster.protocol.signing import Subject, sign
from muster.protocol.tick_covers import HEARD_MAX, Cover, Heard
from muster.protocol.topics import TopicKind, topic_name
from muster.state import refusal_answers
from muster.state.refusal_answers import ANSWERS_MAX
from muster.streams import heartbeat_covers, wake_up_schedule
from muster.streams.batch import inbox, work_limits
from muster.streams.clock import UNKNOWN_GROUP_TICKS, Clock
from muster.streams.heartbeat_covers import STRANGE_MS, Heartbeats, Row, Sleeper
from muster.streams.heartbeat_reader import Listener
from muster.streams.source import lane_of
from muster.streams.wake_up_schedule import Schedule

pytestmark = pytest.mark.usefixtures("nothing_in_memory")

A = Sleeper("muster", GroupId("a"))
INNOCENT = Sleeper("muster", GroupId("innocent"))


def beat(group: str, member: str, at_ms: int = 2_000) -> Row:
    """A heartbeat as the clock reads it."""
    event = Heartbeat(group=GroupId(group), member=MemberId(member), epoch=1, digest=7)
    encoded = codec.encode(event)
    return Row(0, encoded.key, encoded.value, at_ms)


def rows(events: list[Event], signatures: list[bytes] | None = None) -> list[bytes]:
    """Events of membership as packed rows, in order."""
    packed = []
    for offset, event in enumerate(events):
        origin = Origin(topic_name(TopicKind.MEMBERSHIP, "muster"), 0, offset, 1_000 + offset)
        signature = None if signatures is None else signatures[offset]
        packed.append(pack(origin, codec.encode(event).value, INPUT, signature))
    return packed


def joins(count: int, name: str = "m") -> list[Event]:
    """As many members join."""
    return [Join(group=G, member=MemberId(f"{name}{n}"), incarnation=n + 1) for n in range(count)]


# What a group may bring into a batch


def test_ticks_of_thousands_are_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred ticks that name 20,000 members each, the batch reads the first two.

    It looks at the third; after that ticks that name members are refused by their size. A tick that
    names none is read.
    """
    looked: list[int] = []
    decode = codec.decode
    monkeypatch.setattr(
        codec,
        "decode",
        lambda *args, **more: (looked.append(args[3].offset), decode(*args, **more))[1],
    )
    values = [(key, value) for kind, key, value in ticks_of_thousands(1_000)][2:]
    assert max(len(value or b"") for _, value in values) < 1_500
    topic = topic_name(TopicKind.MEMBERSHIP, "muster")
    entries = [
        pack(Origin(topic, 0, offset, 1_000 + offset), value, INPUT)
        for offset, (_, value) in enumerate(values)
    ]
    plain = codec.encode(Tick(group=HOSTILE, published=Mark(2**40, 2**40))).value
    entries.append(pack(Origin(topic, 0, 100, 2_000), plain, INPUT))
    lane = lane_of("muster", HOSTILE.encode())
    found = inbox.open_lane(lane, entries, INPUT, limits=work_limits.Limits())
    assert [event.origin.offset for event in found.events] == [0, 1, 100]
    assert looked == [0, 1, 2, 100]
    first, second = found.rejected[0].message, found.rejected[1].message
    assert "a cover of 20000 members; at most 10000 are read here" in first
    assert "more members in ticks" in second


@pytest.mark.parametrize("names", [1, HEARD_MAX], ids=["one", "many"])
def test_a_tick_full_of_strangers_costs_few_answers(
    names: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names 20,000 processes that are no members, or one of them 20,000 times."""
    answered: list[str] = []
    answer = refusal_answers.answer_unknown
    monkeypatch.setattr(
        refusal_answers,
        "answer_unknown",
        lambda *args: (answered.append(args[1]), answer(*args))[1],
    )
    heard = tuple(Heard(f"s{n % names}", 0, 0, 0) for n in range(HEARD_MAX))
    operator, tick = Operator(), Tick(group=G, cover=Cover(0, 2**62, heard))
    operator.feed(500, config(2), *joins(1))
    told = {record.member for record in of_kind(operator.feed(600, tick), MemberAssignment)}
    strangers = {f"s{n}" for n in range(min(names, ANSWERS_MAX))}
    assert strangers <= told
    assert sorted(answered) == sorted(strangers)


@pytest.mark.parametrize("members", [0, 20])
def test_a_large_group_may_be_heard_often(members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ticks may carry grows with the group; a tick that names no member always passes."""
    monkeypatch.setattr(work_limits, "BATCH_HEARD_MIN", 50)
    heard = tuple(Heard(f"m{n}", 0, 1, 7) for n in range(20))
    events: list[Event] = [Tick(group=G, cover=Cover(0, 5, heard))] * 8
    events.append(Tick(group=G, cover=Cover(0, 5)))
    limits = work_limits.Limits(members_known=members)
    found = inbox.open_lane(lane_of("muster", b"g"), rows(events), INPUT, limits=limits)
    assert len(found.events) == (9 if members else 3)


def test_a_cover_says_how_many_it_names_before_they_are_read() -> None:
    """A limit refuses it by its first bytes, and bytes that are none are refused too."""
    heard = tuple(Heard(f"m{n}", 0, 1, 7) for n in range(50))
    tick = codec.encode(Tick(group=G, cover=Cover(0, 5, heard)))
    where = Origin("muster.membership", 0, 0, 1)
    with pytest.raises(DecodeError, match="a cover of 50 members; at most 49 are read here"):
        codec.decode(TopicKind.MEMBERSHIP, tick.key, tick.value, where, heard_max=49)
    read = codec.decode(TopicKind.MEMBERSHIP, tick.key, tick.value, where, heard_max=50)
    assert isinstance(read, Tick)
    assert read.cover == Cover(0, 5, heard)


def test_a_batch_takes_so_many_events_of_a_group() -> None:
    """The oldest thousand; each further one gets a letter. Heartbeats do not count."""
    most = work_limits.CREDIT_EVENTS_MIN
    beats: list[Event] = [
        Heartbeat(group=G, member=MemberId("m0"), epoch=1, digest=n) for n in range(3_000)
    ]
    lane, events = lane_of("muster", b"g"), [*beats, *joins(most + 50)]
    found = inbox.open_lane(lane, rows(events), INPUT, limits=work_limits.Limits())
    assert (len(found.events), len(found.rejected)) == (3_000 + most, 50)
    assert {letter.reason for letter in found.rejected} == {DeadLetter.TOO_MUCH_AT_ONCE}
    assert found.events[-1].member == f"m{most - 1}"  # type: ignore[union-attr]  # a join
    for limits in (
        work_limits.Limits(members_known=2 * most),
        work_limits.Limits(tasks_known=2 * most),
    ):
        found = inbox.open_lane(lane, rows(events), INPUT, limits=limits)
        assert (len(found.events), found.rejected) == (len(events), [])


def test_a_group_that_grows_goes_on_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that a batch refused join again, and are answered by the next one."""
    monkeypatch.setattr(work_limits, "CREDIT_EVENTS_MIN", 100)
    operator, lane = Operator(), lane_of("muster", b"g")
    operator.feed(500, config(2))
    told = operator.batch(lane, rows(joins(115)))
    assert [letter.reason for letter in of_kind(told, Rejected)] == (
        [DeadLetter.TOO_MUCH_AT_ONCE] * 15
    )
    topic = topic_name(TopicKind.MEMBERSHIP, "muster")
    again = [
        pack(Origin(topic, 0, 9_000 + n, 9_000), codec.encode(event).value, INPUT)
        for n, event in enumerate(joins(115)[100:])
    ]
    told = operator.batch(lane, again)
    assert of_kind(told, Rejected) == []
    assert len({record.member for record in of_kind(told, MemberAssignment)}) == 15


def test_a_forger_crowds_out_no_member() -> None:
    """Where events must be signed, only those that are accepted count."""
    key = SigningKey(id="w", secret=b"w" * 32)
    keyring = Keyring(keys=(key,), required=(Requirement(("*",)),))
    events = joins(2_000)
    signatures = [b""] * len(events)
    topic = topic_name(TopicKind.MEMBERSHIP, "muster")
    for n in range(1_900, 2_000):
        value = codec.encode(events[n]).value
        subject = Subject(topic, b"g", value)
        signatures[n] = sign(keyring, "g", Caller.MEMBER, subject, 1_000)
    found = inbox.open_lane(
        *(lane_of("muster", b"g"), rows(events, signatures), INPUT),
        keyring=keyring,
        limits=work_limits.Limits(),
    )
    taken = [event.member for event in found.events if isinstance(event, Join)]
    assert taken == [f"m{n}" for n in range(1_900, 2_000)]


# What the clock keeps


def test_the_largest_group_loses_its_heartbeats_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many groups flooded together: what is kept is bounded, an innocent group keeps its own."""
    monkeypatch.setattr(heartbeat_covers, "HEARD_MAX", 100)
    names = [f"flooded{n}" for n in range(8)]
    known = {INNOCENT, *(Sleeper("muster", GroupId(name)) for name in names)}
    heard = Heartbeats()
    heard.listen("muster", 1)
    heard.read("muster", [beat("innocent", f"W{n}") for n in range(5)], known)
    for turn in range(100):
        heard.read("muster", [beat(name, f"x{turn}") for name in names], known)
        assert sum(len(group.heard) for group in heard._groups.values()) <= 100
    cover = heard.cover(INNOCENT)
    assert cover is not None
    assert len(cover.heard) == 5
    assert not heard._groups[INNOCENT].has_lost
    flooded = [heard.cover(Sleeper("muster", GroupId(name))) for name in names]
    assert any(each is not None and each.from_ms == each.through_ms for each in flooded)


def test_what_the_clock_counts_is_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over thousands of ticks, deliveries, failures and forgotten groups; nothing is left over."""
    monkeypatch.setattr(heartbeat_covers, "HEARD_MAX", 40)
    monkeypatch.setattr(heartbeat_covers, "MEMBERS_MAX", 15)
    chance, heard = random.Random(3), Heartbeats()
    heard.listen("muster", 1)
    names = [f"g{n}" for n in range(6)]
    sleepers = [Sleeper("muster", GroupId(name)) for name in names]
    for turn in range(examples(6_000)):
        sleeper = chance.choice(sleepers)
        match chance.randrange(5):
            case 0:
                heard.cover(sleeper)
            case 1:
                heard.done(sleeper, written=chance.random() < 0.5)
            case 2 if chance.random() < 0.2:
                heard.forget(sleeper)
            case _:
                some = [beat(chance.choice(names), f"m{turn + n}", turn) for n in range(4)]
                heard.read("muster", some, set(sleepers[:4]))
        kept = [len(group.heard) for group in heard._groups.values()]
        assert heard._heard == sum(kept) <= 40
        assert max(kept, default=0) <= 15
        assert len(heard._strangers) <= 2
    for sleeper in sleepers:
        heard.done(sleeper, written=True)
        heard.forget(sleeper)
    assert (heard._heard, heard._groups, heard._strangers) == (0, {}, {})


def test_replaced_wake_ups_do_not_pile_up() -> None:
    """A group asks every second to be woken in a month: the clock's queues stay short."""
    schedule, month_ms = Schedule(), 30 * 86_400_000
    sleepers = [Sleeper("muster", GroupId(f"g{n}")) for n in range(20)]
    now_ms, longest = 0, 0
    for turn in range(examples(30_000)):
        now_ms = turn * 50
        sleeper = sleepers[turn % len(sleepers)]
        schedule.note(sleeper, now_ms + month_ms, Mark(1, turn), apart=True, now_ms=now_ms)
        assert schedule.due(now_ms) == []
        longest = max(longest, len(schedule._queue), len(schedule._early))
    assert longest <= wake_up_schedule.STALE_MIN + (wake_up_schedule.STALE_MAX + 1) * len(sleepers)
    assert {sleeper for sleeper, _ in schedule.due(now_ms + month_ms)} == set(sleepers)
    for sleeper in sleepers:
        schedule.note(sleeper, None)
    assert (len(schedule), schedule._allowed) == (0, {})


def test_invented_groups_get_few_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand groups without a wake-up, some are ticked each second."""
    running = Clock(ClientSettings(), ["muster"])
    running._heartbeats.listen("muster", 1)
    old_ms = running.now_ms() - 2 * STRANGE_MS
    invented = [beat(f"g{n}", "m", old_ms) for n in range(1_000)]
    running._heartbeats.read("muster", invented, set())
    ticked: list[Sleeper] = []
    monkeypatch.setattr(running, "_tick", lambda _, sleeper, mark: ticked.append(sleeper))
    now_s = time.monotonic() + 100
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    for _ in range(5):
        running._release(None)  # type: ignore[arg-type]  # it is passed on
    assert len(ticked) == UNKNOWN_GROUP_TICKS
    now_s += 1
    running._release(None)  # type: ignore[arg-type]
    assert len(set(ticked)) == 2 * UNKNOWN_GROUP_TICKS
    assert len(running._heartbeats.strangers(running.now_ms())) == 1_000 - 2 * UNKNOWN_GROUP_TICKS


# What a writer can do to the reading


@pytest.fixture
def listener(topics: Topics) -> Iterator[tuple[Listener, Heartbeats]]:
    """A listener that follows the heartbeats topic."""
    heard = Heartbeats()
    writer = LastingProducer(topics.clients.producer(), KAFKA, lambda _: None)
    found = Listener(topics.clients, [topics.prefix], heard, writer)
    yield found, heard
    found.close()


@pytest.mark.broker
def test_transactions_do_not_stop_the_time_of_others(
    topics: Topics, listener: tuple[Listener, Heartbeats]
) -> None:
    """Neither one that stays open, nor the offsets that ended ones take."""
    reading, heard = listener
    sleeper = Sleeper(topics.prefix, GroupId("innocent"))
    name = topics.name(TopicKind.HEARTBEATS)

    def through_ms() -> int:
        reading.read({sleeper})
        return heard.through_ms(sleeper)

    def is_heard(member: str) -> bool:
        reading.read({sleeper})
        group = heard._groups.get(sleeper)
        return group is not None and member in group.heard

    until(lambda: through_ms() > 0, "the clock has read a marker")
    place = heard.place(sleeper)
    assert place is not None
    writer = Producer({**topics.clients.producer(), "transactional.id": uuid.uuid4().hex})
    writer.init_transactions(60)
    heard.cover(sleeper)
    heard.done(sleeper, written=True)
    before = heard._partition(sleeper)
    for turn in range(6):
        writer.begin_transaction()
        writer.produce(name, b"x", b"hostile", partition=place)
        writer.flush(60)
        if turn < 5:
            (writer.commit_transaction if turn % 2 else writer.abort_transaction)(60)
        event = Heartbeat(group=sleeper.group, member=MemberId(f"W{turn}"), epoch=1, digest=7)
        topics.write(TopicKind.HEARTBEATS, event)
        until(lambda turn=turn: is_heard(f"W{turn}"), "the innocent member is heard")
    assert heard._partition(sleeper) is before, "nothing counts as lost"
    writer.abort_transaction(60)
