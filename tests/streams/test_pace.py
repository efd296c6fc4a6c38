"""Groups with a new config are processed at a pace where a batch has many of them.

`is_paced` lets the only group of a test wait as the first one that a batch does not process at
once: for `WAIT_MS`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.streams.asides import Desk, all_are_large
from support.streams.operator import (
    INPUT,
    LANE,
    G,
    M,
    Operator,
    config,
    join,
    key_file,
    newest,
    nothing_in_memory,
    of_kind,
)
from support.streams.packed_rows import pack

from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Event, GroupDeleted, Join, Mark, Origin, Tick
from muster.protocol.ids import GroupId
from muster.protocol.keyring import SigningKey
from muster.protocol.records import (
    GroupSnapshot,
    GroupState,
    MemberAssignment,
    Rejected,
    WakeUp,
)
from muster.protocol.topics import TopicKind
from muster.state.deadlines import ASK_AGAIN_MS
from muster.streams import processor, wake_up_schedule
from muster.streams.batch import pace
from muster.streams.batch.pace import Pace
from muster.streams.heartbeat_covers import Sleeper
from muster.streams.source import lane_of
from muster.streams.wake_up_schedule import Schedule

pytestmark = pytest.mark.usefixtures("nothing_in_memory")
__all__ = ["nothing_in_memory"]

WAIT_MS = ASK_AGAIN_MS + pace.GAP_MS


@pytest.fixture
def is_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch processes no group with a config at once."""
    monkeypatch.setattr(pace, "AT_ONCE", 0)


def take(made: Operator, *events: tuple[int, Event]) -> None:
    """Take one batch of events, each with its time."""
    placed = [made.at(event, at_ms) for at_ms, event in events]
    made.batch(LANE, [pack(e.origin, codec.encode(e).value, INPUT) for e in placed])


def tick() -> Tick:
    """A tick of the clock."""
    return Tick(group=G)


def configured(at_ms: int) -> Operator:
    """An operator with a group of one member, which has waited until this time."""
    made = Operator()
    made.feed(at_ms - WAIT_MS, config(), join())
    assert of_kind(made.feed(at_ms, tick()), MemberAssignment)
    return made


def test_some_are_processed_at_once_and_the_others_become_due_one_by_one() -> None:
    """Each batch begins anew."""
    for _ in range(2):
        paced = Pace()
        due_ms = [paced.due_ms(1_000) for _ in range(pace.AT_ONCE + 3)]
        assert due_ms[: pace.AT_ONCE] == [None] * pace.AT_ONCE
        first_ms = 1_000 + WAIT_MS
        assert due_ms[pace.AT_ONCE :] == [first_ms + pace.GAP_MS * more for more in range(3)]


@pytest.mark.usefixtures("is_paced")
def test_a_batch_processes_so_many_of_those_that_are_due() -> None:
    """The others become due one by one once more; groups that are not due do not count."""
    paced = Pace()
    assert [paced.due_ms(1_000, 2_000) for _ in range(3)] == [2_000] * 3
    assert [paced.due_ms(2_000, 2_000) for _ in range(pace.DUE_MAX)] == [None] * pace.DUE_MAX
    first_ms = 2_500 + WAIT_MS
    assert [paced.due_ms(2_500, 2_000) for _ in range(2)] == [first_ms, first_ms + pace.GAP_MS]


@pytest.mark.usefixtures("is_paced")
def test_a_group_that_is_due_behind_many_others_waits_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each time a wake-up is published for when it is due."""
    made = Operator()
    made.feed(1_000, config(), join())
    with monkeypatch.context() as patch:
        patch.setattr(pace, "DUE_MAX", 0)
        for at_ms in (2_000, 3_000):
            assert made.feed(at_ms, tick()) == [WakeUp(group=G, at_ms=at_ms + WAIT_MS)]
    assert newest(made.feed(4_000, tick())).generation == 1


@pytest.mark.parametrize("forget", [False, True])
def test_rows_wait_until_the_group_is_due_and_are_processed_together(
    monkeypatch: pytest.MonkeyPatch, forget: bool
) -> None:
    """What the group publishes at last is what it publishes for all these rows in one batch."""
    usual, made = Operator(), Operator()
    joins = [(1_010 + number, join(f"n{number}")) for number in range(3)]
    due_ms = 1_000 + WAIT_MS
    take(usual, (1_000, config()), (1_000, join()), *joins, (due_ms, tick()))

    monkeypatch.setattr(pace, "AT_ONCE", 0)
    processor._cache.clear()
    assert made.feed(1_000, config(), join()) == [WakeUp(group=G, at_ms=due_ms)]
    for at_ms, event in joins:
        if forget:
            processor._cache.clear()
        assert made.feed(at_ms, event) == []
    records = made.feed(due_ms, tick())
    published = [tuple(row) for row in made.written if row.topic != "muster.clock"]
    assert published == [tuple(row) for row in usual.written if row.topic != "muster.clock"]
    assert {member.id for member in newest(records).members} == {M, "n0", "n1", "n2"}
    assert sum(len(each.active) for each in of_kind(records, MemberAssignment)) == 4


def test_the_group_wakes_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wake-up that the group publishes at last is the one it publishes without a wait."""
    usual, made = Operator(), Operator()
    due_ms = 2_000 + WAIT_MS
    for each in (usual, made):
        each.feed(1_000, config(), join())
    take(usual, (2_000, config(6)), (due_ms, tick()))
    monkeypatch.setattr(pace, "AT_ONCE", 0)
    processor._cache.clear()
    made.feed(2_000, config(6))
    made.feed(due_ms, tick())
    for at_ms in (60_000, 120_000):
        processor._cache.clear()
        usual_wake_ups = of_kind(usual.feed(at_ms, tick()), WakeUp)
        processor._cache.clear()
        assert of_kind(made.feed(at_ms, tick()), WakeUp) == usual_wake_ups


@pytest.mark.usefixtures("is_paced")
def test_a_tick_that_comes_too_early_is_followed_by_another() -> None:
    """A clock that is ahead of the broker uses the wake-up up before the group is due."""
    made = Operator()
    due = WakeUp(group=G, at_ms=1_000 + WAIT_MS)
    made.feed(1_000, config(), join())
    assert made.feed(1_000 + WAIT_MS - 1, tick()) == [due]
    assert newest(made.feed(1_000 + WAIT_MS, tick())).generation == 1


@pytest.mark.usefixtures("is_paced")
def test_more_configs_do_not_lengthen_the_wait() -> None:
    """A group that gets one config after the other is processed when it was due at first."""
    made = Operator()
    made.feed(1_000, config(), join())
    for at_ms in range(1_010, 1_000 + WAIT_MS, 10):
        assert of_kind(made.feed(at_ms, config(5)), GroupSnapshot) == []
    assert sum(unit.size for unit in newest(made.feed(1_000 + WAIT_MS, config(6))).tasks) == 6


def test_a_group_that_waits_is_processed_once_few_others_have_a_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It need not be due then."""
    made = Operator()
    with monkeypatch.context() as patch:
        patch.setattr(pace, "AT_ONCE", 0)
        made.feed(1_000, config(), join())
    assert [member.id for member in newest(made.feed(1_001, join("n"))).members] == [M, "n"]


@pytest.mark.usefixtures("is_paced")
def test_a_group_without_a_config_never_waits() -> None:
    """Members are answered in the batch of their events."""
    made = configured(1_000)
    assert [member.id for member in newest(made.feed(1_100, join("n"))).members] == [M, "n"]


@pytest.mark.usefixtures("is_paced")
@pytest.mark.parametrize("is_suspect", [False, True])
def test_a_repeated_batch_lets_the_same_groups_wait(is_suspect: bool) -> None:
    """Also where it is repeated in child processes."""
    made = configured(1_000)
    before, offsets = made.stored(LANE), dict(made._offsets)
    made.feed(1_100, config(6))
    after = made.stored(LANE)

    again = Operator()
    processor._cache.clear()
    for name, value in zip(("liveness", "snapshot"), before, strict=True):
        assert value is not None
        again.tester.updateValueState(name, LANE, (value,))
    again._offsets = offsets
    again.processor._is_suspect = is_suspect
    again.feed(1_100, config(6))
    assert again.stored(LANE) == after


@pytest.mark.usefixtures("is_paced")
def test_a_group_that_was_read_back_does_not_wait() -> None:
    """It has no stored liveness to go back to."""
    first = Operator()
    first.feed(1_000, config(), join())
    snapshot = newest(first.feed(1_000 + WAIT_MS, tick()))
    processor._cache.clear()
    made = Operator(epoch=8, initial=[(LANE, codec.encode(snapshot).value or b"")])
    made._offsets = first._offsets
    records = made.feed(2_000, config(6))
    assert sum(unit.size for unit in newest(records).tasks) == 6


@pytest.mark.usefixtures("is_paced")
@pytest.mark.parametrize("forget", [False, True])
def test_a_group_that_a_later_coordinator_has_does_not_wait(forget: bool) -> None:
    """Its wake-up is the later coordinator's and must stand."""
    made = configured(1_000)
    made.feed(1_100, Tick(group=G, published=Mark(8, 0)))
    if forget:
        processor._cache.clear()
    assert made.feed(1_200, config(6)) == []


@pytest.mark.usefixtures("is_paced")
def test_a_deletion_waits_too() -> None:
    """It tells the members and costs as much as a config."""
    made = configured(1_000)
    assert of_kind(made.feed(1_100, GroupDeleted(group=G)), GroupSnapshot) == []
    assert newest(made.feed(1_100 + WAIT_MS, tick())).state is GroupState.DEAD


@pytest.mark.usefixtures("is_paced")
def test_a_bad_config_leaves_no_group() -> None:
    """A row that is no config becomes a dead letter when it is due, and no wake-up is left."""
    made = Operator()
    value = (codec.encode(config()).value or b"")[:-3]
    made.batch(LANE, [pack(Origin("muster.config", 0, 0, 1_000), value, INPUT)])
    records = made.feed(1_000 + WAIT_MS, tick())
    assert [each.reason for each in of_kind(records, Rejected)] == [DeadLetter.UNDECODABLE]
    assert of_kind(records, WakeUp) == [WakeUp(group=G, at_ms=None)]
    assert made.stored(LANE) == (None, None)


@pytest.mark.usefixtures("is_paced")
def test_a_forged_config_lets_no_group_wait(tmp_path: Path) -> None:
    """With signing keys, only a config that may count is a reason to wait."""
    key = SigningKey(id="key", secret=b"k" * 32)
    made = Operator(signing_keys=key_file(tmp_path / "keys.json", key))
    forged = pack(Origin("muster.config", 0, 0, 1_000), codec.encode(config()).value, INPUT, b"")
    records = made.batch(LANE, [forged])
    assert [each.reason for each in of_kind(records, Rejected)] == [DeadLetter.UNSIGNED]


@pytest.mark.usefixtures("is_paced")
def test_a_large_config_is_computed_aside_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process computes it, so no other group waits for it."""
    desk = Desk()
    all_are_large(monkeypatch)
    made = Operator()
    desk.serve(made.processor)
    made.feed(1_000, config(), join())
    assert len(desk.begun) == 1


class Crowd:
    """Groups that get a config and a member at once, with a clock, in simulated time.

    Attributes:
        placed: groups whose member has its tasks.
        met: how often a batch met a group.
        largest: most groups that one batch placed.
        now_ms: broker time.
    """

    def __init__(self, number: int) -> None:
        self.placed: set[GroupId] = set()
        self.met = self.largest = 0
        self.now_ms = 1_000
        self._groups = [GroupId(f"g{each}") for each in range(number)]
        self._operator, self._schedule = Operator(), Schedule()
        self._batch({group: self._asks(group) for group in self._groups})

    def live(self) -> None:
        """Let batches follow each other until each group has its tasks."""
        batches = 0
        while len(self.placed) < len(self._groups):
            due = [sleeper.group for sleeper, _ in self._schedule.due(self.now_ms)]
            self._batch({group: [(TopicKind.MEMBERSHIP, Tick(group=group))] for group in due})
            batches += 1
            assert batches < len(self._groups), f"{len(self.placed)} have tasks, {self.met} met"

    @staticmethod
    def _asks(group: GroupId) -> list[tuple[TopicKind, Event]]:
        member = Join(group=group, member=M, incarnation=1)
        return [
            (TopicKind.CONFIG, replace(config(), group=group)),
            (TopicKind.MEMBERSHIP, member),
        ]

    def _batch(self, asked: dict[GroupId, list[tuple[TopicKind, Event]]]) -> None:
        """A batch; it takes 100 ms, 3 ms for each group, and 4 more for one that is placed."""
        self._operator.begin_batch()
        before, wake_ups = len(self.placed), list[WakeUp]()
        for group, events in asked.items():
            entries = [
                pack(
                    Origin(f"muster.{kind}", 0, self.met, self.now_ms),
                    codec.encode(event).value,
                    INPUT,
                )
                for kind, event in events
            ]
            records = self._operator.more(lane_of("muster", group.encode()), entries)
            self.met += 1
            self.placed.update(
                each.group for each in of_kind(records, MemberAssignment) if len(each.active) == 4
            )
            wake_ups += of_kind(records, WakeUp)
        new = len(self.placed) - before
        self.largest = max(self.largest, new)
        self.now_ms += 100 + 3 * len(asked) + 4 * new
        for each in wake_ups:
            sleeper, takes_turns = Sleeper("muster", each.group), each.published is None
            self._schedule.note(sleeper, each.at_ms, each.published, takes_turns=takes_turns)


def test_hundreds_of_groups_with_configs_are_spread_over_batches() -> None:
    """A batch processes few of them; each gets its tasks, though its members say nothing more."""
    crowd = Crowd(300)
    crowd.live()
    assert crowd.largest <= pace.AT_ONCE + pace.DUE_MAX


def test_thousands_of_groups_with_configs_get_their_tasks_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch meets few groups that it does not process, however many wait.

    Here everything is an eighth of what it is, so 400 groups stand for 3,200.
    """
    monkeypatch.setattr(pace, "AT_ONCE", pace.AT_ONCE // 8)
    monkeypatch.setattr(pace, "DUE_MAX", pace.DUE_MAX // 8)
    monkeypatch.setattr(wake_up_schedule, "TURNS_MAX", wake_up_schedule.TURNS_MAX // 8)
    crowd = Crowd(400)
    crowd.live()
    assert crowd.largest <= pace.AT_ONCE + pace.DUE_MAX
    assert crowd.met < 2.5 * 400  # once with their config, once in turn, and their later ticks


def test_a_batch_processes_as_many_as_the_clock_lets_in() -> None:
    """More would be met in vain; fewer would make the groups wait longer."""
    assert wake_up_schedule.TURNS_MAX == pace.AT_ONCE + pace.DUE_MAX
