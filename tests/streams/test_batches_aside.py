"""Large group batches are computed aside: rows wait, and what is published does not depend on when.

`Desk` stands in for the child processes, except where a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.streams.asides import Desk, all_are_large
from support.streams.operator import (
    INPUT,
    LANE,
    PREFIXES,
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
from support.suite.waiting import until

from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import GroupDeleted, Leave, Mark, Origin, Tick
from muster.protocol.keyring import SigningKey
from muster.protocol.records import (
    GroupSnapshot,
    GroupState,
    MemberAssignment,
    Record,
    Rejected,
    WakeUp,
)
from muster.state import placement
from muster.state.deadlines import ASK_AGAIN_MS
from muster.state.group import Group
from muster.streams import processor
from muster.streams.batch import batches_aside, group_batch, waiting_rows
from muster.streams.batch.asides import Asides
from muster.streams.batch.stored_values import Stored
from muster.streams.batch.waiting_rows import Waiting
from muster.streams.source import Packing, input_topics, lane_of

pytestmark = pytest.mark.usefixtures("nothing_in_memory")
__all__ = ["nothing_in_memory"]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A desk that computes every group batch with a config."""
    made = Desk()
    all_are_large(monkeypatch)
    return made


def operator(desk: Desk, prefixes: Sequence[str] = PREFIXES) -> Operator:
    """An operator whose large group batches the desk computes."""
    made = Operator(prefixes=prefixes)
    desk.serve(made.processor)
    return made


def tick() -> Tick:
    """A tick of the clock."""
    return Tick(group=G)


def wake_ups(records: Sequence[Record]) -> list[int | None]:
    """The times of the wake-ups."""
    return [record.at_ms for record in of_kind(records, WakeUp)]


def published(made: Operator) -> list[tuple[str, bytes, bytes | None]]:
    """Topic, key and value of all that was written, without the wake-ups."""
    rows = [(row.topic, row.key, row.value) for row in made.written]
    return [row for row in rows if row[0] != "muster.clock"]


def test_a_group_waits_for_its_large_batch(desk: Desk) -> None:
    """The batch and those behind it publish a wake-up; then the result comes, then later rows."""
    made = operator(desk)
    assert made.feed(1_000, config(), join()) == [WakeUp(group=G, at_ms=1_000 + ASK_AGAIN_MS)]
    assert made.feed(1_250, tick()) == [WakeUp(group=G, at_ms=1_250 + ASK_AGAIN_MS)]
    assert made.feed(1_300, join("n")) == [WakeUp(group=G, at_ms=1_300 + ASK_AGAIN_MS)]
    desk.is_ready = True
    records = made.feed(1_550, tick())
    assert [member.id for member in newest(records).members] == [M]
    assert [len(r.active) for r in of_kind(records, MemberAssignment)] == [4]
    assert wake_ups(records)[-1] == 1_550 + ASK_AGAIN_MS
    records = made.feed(1_800, tick())
    assert [member.id for member in newest(records).members] == [M, "n"]
    assert len(desk.begun) == 1


def test_the_group_wakes_as_before(desk: Desk) -> None:
    """The wake-up that the group publishes at last is the one it publishes without a desk."""
    usual, made = Operator(), operator(desk)
    usual.feed(1_000, config(), join())
    desk.is_ready = True
    made.feed(1_000, config(), join())
    made.feed(1_250, tick())
    for each in (usual, made):
        each.feed(1_500, tick())
    for at_ms in (60_000, 120_000):
        assert wake_ups(made.feed(at_ms, tick())) == wake_ups(usual.feed(at_ms, tick()))


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize("batches", [1, 5])
def test_the_result_is_the_same_at_any_time(desk: Desk, batches: int, forget: bool) -> None:
    """The result follows from the rows that waited, also where the process does not remember."""
    usual, made = Operator(), operator(desk)
    usual.feed(1_000, config(), join())
    made.feed(1_000, config(), join())
    for number in range(batches):
        desk.is_ready = number == batches - 1
        if forget:
            processor._cache.clear()
        if forget and not desk.is_ready:
            desk._answers.clear()  # another process is asked
        made.feed(1_250 + number, tick())
    assert published(made) == published(usual)
    assert len(published(made)) == 2


def test_a_repeated_batch_publishes_the_same_later(desk: Desk) -> None:
    """Spark repeats the batch that took the result over; the result is there some batches later."""
    made = operator(desk)
    made.feed(1_000, config(), join())
    before, offsets = made.stored(LANE), dict(made._offsets)
    desk.is_ready = True
    made.feed(1_250, tick(), join("n"))

    again = operator(desk)
    processor._cache.clear()
    for name, value in zip(("liveness", "snapshot"), before, strict=True):
        assert value is not None
        again.tester.updateValueState(name, LANE, (value,))
    again._offsets = offsets
    desk.is_ready = False
    assert of_kind(again.feed(1_250, tick(), join("n")), GroupSnapshot) == []
    desk.is_ready = True
    again.feed(1_500, tick())
    assert published(again) == published(made)
    assert len(published(made)) == 2


def test_a_large_group_is_deleted_aside(desk: Desk) -> None:
    """A deletion of a group is a large batch, too; no row waits for ever."""
    desk.is_ready = True
    made = operator(desk)
    made.feed(1_000, config(), join())
    made.feed(1_250, tick())
    made.feed(1_500, Leave(group=G, member=M, incarnation=5))
    assert wake_ups(made.feed(2_000, GroupDeleted(group=G))) == [2_000 + ASK_AGAIN_MS]
    assert newest(made.feed(2_250, tick())).state is GroupState.DEAD
    assert wake_ups(made.feed(2_500, tick())) == [None]
    assert made.feed(2_750, tick()) == []


def test_a_bad_large_config_leaves_no_group(desk: Desk) -> None:
    """A row that is no config becomes a dead letter, and no wake-up is left."""
    desk.is_ready = True
    made = operator(desk)
    topic = "muster.config"
    row = pack(
        Origin(topic, 0, 0, 1_000), codec.encode(config()).value[:-3], input_topics(PREFIXES)
    )
    made.batch(LANE, [row])
    made._offsets[topic] = 0
    records = made.feed(1_250, tick())
    assert [r.reason for r in of_kind(records, Rejected)] == [DeadLetter.UNDECODABLE]
    assert wake_ups(made.feed(1_500, tick()))[-1:] == [None]
    assert made.stored(LANE) == (None, None)


def test_a_child_that_fails_quarantines_the_group(desk: Desk) -> None:
    """The rows that waited, and those behind them, become dead letters with the cause."""
    made = operator(desk)
    made.feed(1_000, config(), join())
    desk.failure = "it took more than 60 s of CPU time"
    records = made.feed(1_250, join("n"))
    quarantine = newest(records).quarantine
    assert quarantine is not None
    assert quarantine.story == desk.failure
    letters = of_kind(records, Rejected)
    assert [letter.reason for letter in letters] == [DeadLetter.QUARANTINED] * 3
    assert wake_ups(records) == [None]

    # An operator's next config releases the group, with the rows that were set aside.
    desk.failure = None
    records = made.feed(60_000, config(6))
    assert newest(records).quarantine is None
    assert [member.id for member in newest(records).members] == [M, "n"]


def test_a_suspect_batch_waits_for_its_child(desk: Desk) -> None:
    """After a job that ended abnormally the result is published at once, from a real child."""
    made = operator(desk)
    made.feed(1_000, config(), join())
    made.processor._is_suspect = True
    records = made.feed(1_250, tick())
    assert [len(r.active) for r in of_kind(records, MemberAssignment)] == [4]


def test_too_many_rows_do_not_wait(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes while a batch is computed is refused when it exceeds the room; the rest waits."""
    made = operator(desk)
    made.feed(1_000, config(), join())
    monkeypatch.setattr(waiting_rows, "ROWS_BYTES_MAX", 350)
    records = [r for n in range(9) for r in made.feed(1_010 + n, join(f"n{n}"))]
    letters = of_kind(records, Rejected)
    assert {letter.reason for letter in letters} == {DeadLetter.TOO_MUCH_AT_ONCE}
    monkeypatch.undo()
    all_are_large(monkeypatch)
    desk.is_ready = True
    made.feed(1_100, tick())
    members = newest(made.feed(1_350, tick())).members
    assert len(letters) == 10 - len(members)
    assert "n0" in [member.id for member in members]


def test_small_batches_are_not_held_up(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small config of a small group, and joins of a large one, are computed at once."""
    made = operator(desk)
    monkeypatch.setattr(batches_aside, "LARGE_CONFIG_BYTES", 1 << 16)
    assert of_kind(made.feed(1_000, config(), join()), MemberAssignment)
    monkeypatch.setattr(batches_aside, "LARGE_SNAPSHOT_BYTES", 0)
    assert of_kind(made.feed(2_000, join("n")), GroupSnapshot)
    assert not desk.begun
    assert not of_kind(made.feed(3_000, config(6)), GroupSnapshot)
    assert len(desk.begun) == 1


def test_no_more_groups_wait_than_may(desk: Desk) -> None:
    """When many groups wait for their results, a large batch is computed at once."""
    made = operator(desk)
    desk.is_full = True
    assert of_kind(made.feed(1_000, config(), join()), MemberAssignment)
    assert not desk.begun


def test_a_forged_config_holds_nothing_up(desk: Desk, tmp_path: Path) -> None:
    """A config without a valid signature is refused at once, however large it is."""
    key = SigningKey(id="key", secret=b"k" * 32)
    made = Operator(signing_keys=key_file(tmp_path / "keys.json", key))
    desk.serve(made.processor)
    entry = pack(Origin("muster.config", 0, 0, 1_000), codec.encode(config()).value, INPUT, b"")
    records = made.batch(LANE, [entry])
    assert [r.reason for r in of_kind(records, Rejected)] == [DeadLetter.UNSIGNED]
    assert not desk.begun


def test_a_large_placement_is_not_part_of_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group gets its config without its placement, which it asks for afterwards."""
    monkeypatch.setattr(placement, "SIZE_MAX", -1)
    made = operator(desk)
    desk.is_ready = True
    made.feed(1_000, config(), join())
    records = made.feed(1_250, tick())
    assert newest(records).members
    assert not any(record.active for record in of_kind(records, MemberAssignment))
    for at_ms in range(1_500, 3_000, 250):
        records += made.feed(at_ms, tick())
    assert len(of_kind(records, MemberAssignment)[-1].active) == 4


def test_rows_of_topics_that_are_not_read_are_lost(desk: Desk) -> None:
    """The rows are packed anew for the topics of this run; without their topics they are gone."""
    made = operator(desk)
    made.feed(1_000, config(), join())
    stored = Stored(*made.stored(LANE))
    more = Packing(input_topics(["a", "muster"]), signed=False)
    waiting = waiting_rows.of(LANE, stored, more)
    assert waiting is not None
    assert len(waiting.first) == 2
    assert waiting_rows.of(LANE, waiting_rows.stored_with(waiting, more), more) == waiting
    assert waiting_rows.of(LANE, stored, Packing(input_topics(["a"]), signed=False)) == Waiting(
        Stored(), [], []
    )


def test_an_earlier_version_asks_the_members(desk: Desk) -> None:
    """It cannot read what is stored while rows wait, and recovers the group as after an upgrade."""
    made = operator(desk)
    desk.is_ready = True
    made.feed(1_000, config(), join())
    made.feed(1_250, tick())
    made.feed(1_500, tick())
    made.feed(2_000, config(6))
    stored = Stored(*made.stored(LANE))
    parts, record = stored.parts(), stored.record(G)
    assert parts is not None
    assert record is not None
    with pytest.raises(ValueError, match="version"):
        Group.restore(record, parts.core)
    assert group_batch.restore(G, stored).recovery.asked


def test_a_group_left_to_a_later_coordinator_is_not_woken(desk: Desk) -> None:
    """The later coordinator's wake-up must stand."""
    made = operator(desk)
    desk.is_ready = True
    made.feed(1_000, config(), join())
    made.feed(1_250, tick())
    made.feed(1_500, Tick(group=G, published=Mark(8, 0)))
    assert made.feed(2_000, config(6)) == []
    processor._cache.clear()
    made.feed(2_250, config(7))
    assert made.feed(2_500, tick()) == []
    assert len(desk.begun) == 2


def test_a_real_child_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child computes the batch, and its group lives on in the memory of this process."""
    made = Operator()
    made.processor._begin_batch(None, Asides(60.0), is_suspect=False)
    monkeypatch.setattr(batches_aside, "LARGE_CONFIG_BYTES", 0)
    records = made.feed(1_000, config(), join())
    assert wake_ups(records) == [1_000 + ASK_AGAIN_MS]
    at_ms = 1_250

    def is_there() -> bool:
        nonlocal at_ms, records
        at_ms += 250
        records = made.feed(at_ms, tick())
        return bool(of_kind(records, GroupSnapshot))

    until(is_there, "the result is there")
    assert [len(r.active) for r in of_kind(records, MemberAssignment)] == [4]
    assert processor._cache[lane_of("muster", b"g")].group is not None
    made.feed(at_ms + 250, join("n"))
    assert [m.id for m in newest(made.feed(at_ms + 500, join("o"))).members] == [M, "n", "o"]
