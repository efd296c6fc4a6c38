"""Every attack against the operator in process: its output and its state stay bounded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.protocol.bombs import BOMBS, Bomb
from support.streams.operator import INPUT, Operator, config, join, of_kind
from support.streams.packed_rows import pack, pack_refused

from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Join, Origin
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupGone, MemberAssignment, MemberGone, Record, Rejected
from muster.protocol.topics import TopicKind, topic_name
from muster.state.refusal_answers import ANSWERS_MAX
from muster.streams.batch import inbox, letter_limits, work_limits
from muster.streams.batch.inbox import read_refused
from muster.streams.source import REFUSED, lane_of

pytestmark = pytest.mark.usefixtures("nothing_in_memory")

RECORDS = 2_000
STORED_BYTES_MAX = 400_000
"""Far below `muster.group.bytes.max`, and enough for the state that attacks leave."""


@pytest.fixture(autouse=True)
def nothing_unreported() -> Iterator[None]:
    """No left-out dead letters from another test, and none for the next one."""
    letter_limits._unreported.clear()
    yield
    letter_limits._unreported.clear()


class Attack:
    """A bomb processed by the operator as one batch of each key."""

    def __init__(self, bomb: Bomb, records: int = RECORDS) -> None:
        self.operator = Operator()
        self.records: list[Record] = []
        """The published records, in order."""
        lanes: dict[bytes, list[bytes]] = defaultdict(list)
        self.bytes_in = 0
        for offset, (kind, key, value) in enumerate(bomb.records(records)):
            origin = Origin(topic_name(kind, "muster"), 0, offset, 1_000 + offset)
            self.bytes_in += len(key or b"") + len(value or b"")
            lanes[lane_of("muster", key)].append(pack(origin, value, INPUT))
        self.lanes = dict(lanes)
        for lane, entries in lanes.items():
            self.records += self.operator.batch(lane, entries)

    @property
    def bytes_out(self) -> int:
        """Bytes published."""
        return sum(len(row.key) + len(row.value or b"") for row in self.operator.written)

    def bytes_kept(self, lane: bytes) -> int:
        """Bytes stored for a group."""
        return sum(len(value or b"") for value in self.operator.stored(lane))


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.name)
def test_what_comes_out_and_stays_is_bounded(bomb: Bomb, monkeypatch: pytest.MonkeyPatch) -> None:
    """No attack raises; output and state are bounded, and no group fails.

    A batch accepts 100 new groups here, a tenth of the job's limit.
    """
    monkeypatch.setattr(work_limits, "NEW_GROUPS_MAX", 100)
    attack = Attack(bomb)
    assert attack.bytes_out <= 20 * attack.bytes_in + 2_000_000
    for lane in attack.lanes:
        assert attack.bytes_kept(lane) <= STORED_BYTES_MAX
    told = of_kind(attack.records, Rejected)
    assert [r.message for r in told if r.reason == DeadLetter.GROUP_FAILED] == []


def test_one_letter_for_one_event() -> None:
    """2,000 lags of unknown tasks give one short dead letter."""
    (bomb,) = (each for each in BOMBS if each.name == "lags")
    attack = Attack(bomb)
    (letter,) = of_kind(attack.records, Rejected)
    assert letter.reason == DeadLetter.INVALID_REQUEST
    assert "so are 1999 more lags" in letter.message
    assert len(letter.message) < 400


def test_lags_of_a_batch_are_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports beyond the batch's limit of lags are refused."""
    monkeypatch.setattr(work_limits, "BATCH_LAGS_MIN", 5_000)
    (bomb,) = (each for each in BOMBS if each.name == "lags")
    _, (kind, key, value) = bomb.records(2_000)
    rows = [
        pack(Origin(topic_name(kind, "muster"), 0, offset, 1_000), value, INPUT)
        for offset in range(4)
    ]
    limits = work_limits.Limits(tasks_known=0)
    found = inbox.open_lane(lane_of("muster", key), rows, INPUT, limits=limits)
    assert (len(found.events), len(found.rejected)) == (2, 2)
    assert "more lags" in found.rejected[0].message


def test_large_events_are_refused_unread_once_the_lags_are_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To read them is what makes other groups wait; small events of the group are still read."""
    monkeypatch.setattr(work_limits, "BATCH_LAGS_MIN", 1_000)
    read: list[int] = []
    decode = codec.decode
    monkeypatch.setattr(
        codec, "decode", lambda *args, **more: (read.append(len(args[2])), decode(*args, **more))[1]
    )
    (bomb,) = (each for each in BOMBS if each.name == "lags")
    _, (kind, key, value) = bomb.records(2_000)
    small = codec.encode(join()).value
    values = [(kind, value), (kind, value), (TopicKind.MEMBERSHIP, small)]
    rows = [
        pack(Origin(topic_name(which, "muster"), 0, offset, 1_000 + offset), each, INPUT)
        for offset, (which, each) in enumerate(values)
    ]
    limits = work_limits.Limits(tasks_known=0)
    opened = inbox.open_lane(lane_of("muster", key), rows, INPUT, limits=limits)
    assert read == [len(value), len(small)]
    assert (len(opened.events), len(opened.rejected)) == (1, 2)


def test_answers_to_strangers_are_few_and_taken_back() -> None:
    """Of 2,000 heartbeats of strangers a few are answered, and each answer gets a tombstone."""
    (bomb,) = (each for each in BOMBS if each.name == "unknown members")
    records = Attack(bomb).records
    told = [r.member for r in of_kind(records, MemberAssignment)]
    gone = [r.member for r in of_kind(records, MemberGone)]
    assert len(told) == ANSWERS_MAX
    assert sorted(told) == sorted(gone)
    newest = {r.member: r for r in records if isinstance(r, MemberAssignment | MemberGone)}
    assert {type(record) for record in newest.values()} == {MemberGone}


def test_a_flood_of_groups_is_refused_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,000 groups without a config a batch accepts the first 50, the next batch 50 more.

    A known group and a new one with a config are served in any case.
    """
    monkeypatch.setattr(work_limits, "NEW_GROUPS_MAX", 50)
    (bomb,) = (each for each in BOMBS if each.name == "groups")
    attack = Attack(bomb)
    lanes = list(attack.lanes)
    assert [lane for lane in lanes if attack.bytes_kept(lane)] == lanes[:50]
    assert {r.group for r in of_kind(attack.records, MemberAssignment)} == {
        f"flood{number}" for number in range(50)
    }
    told = of_kind(attack.records, Rejected)
    assert {letter.reason for letter in told} == {DeadLetter.TOO_MANY_GROUPS}
    assert len(told) == letter_limits.BATCH_LETTERS_MAX
    operator = attack.operator
    known = operator.batch(lanes[0], [entry_of("flood0", 3_000)])
    assert [r.member for r in of_kind(known, MemberAssignment)] == ["late"]
    assert of_kind(operator.feed(9_000, config(), join()), Rejected) == []
    operator.processor.init(operator.tester.handle)
    for lane in lanes[50:150]:
        operator.batch(lane, attack.lanes[lane])
    assert [lane for lane in lanes if attack.bytes_kept(lane)] == lanes[:100]


def entry_of(group: str, offset: int) -> bytes:
    """A packed join of another member."""
    event = Join(group=GroupId(group), member=MemberId("late"), incarnation=9)
    return pack(Origin("muster.membership", 0, offset, offset), codec.encode(event).value, INPUT)


def test_a_group_without_config_and_members_is_forgotten() -> None:
    """When the member of an unconfigured group expires, nothing is left of either."""
    from support.streams.operator import LANE, G

    from muster.protocol.events import Tick

    operator = Operator()
    operator.feed(1_000, join())
    assert operator.stored(LANE) != (None, None)
    records = []
    for at_ms in range(2_000, 120_000, 9_000):
        records += operator.feed(at_ms, Tick(group=G))
    assert operator.stored(LANE) == (None, None)
    assert of_kind(records, MemberGone)
    assert of_kind(records, GroupGone)
    newest = {(row.topic, row.key): row.value for row in operator.written}
    assert set(newest.values()) == {None}


def test_refused_rows_meet_in_one_lane() -> None:
    """Undecodable rows are processed together; the first get dead letters, the rest is counted."""
    origin = Origin("muster.membership", 0, 0, 1_000)
    entries = [
        pack_refused(origin._replace(offset=n), key, value, INPUT)
        for n, (key, value) in enumerate(
            [(None, b"x"), (b"g", None), (b"a|b", b"x"), (b"g", b"nonsense"), (b"\xff", b"x")] * 40
        )
    ]
    lane = b"muster" + REFUSED
    opened = read_refused(lane, sorted(entries), INPUT)
    assert opened is not None
    assert [letter.message.split("; expected")[0] for letter in opened.rejected[:5]] == [
        "a record without a key",
        "a tombstone on membership, where it means nothing",
        "key b'a|b'",
        "starts with 6e6f",
        "the key is not UTF-8",
    ]
    operator = Operator()
    told = of_kind(operator.batch(lane, entries), Rejected)
    assert len(told) == letter_limits.SHARED_LETTERS_MAX + 1
    assert told[-1].reason == DeadLetter.LEFT_OUT
    assert "100 more dead letters of rows that were refused unread in this batch" in (
        told[-1].message
    )
    assert operator.stored(lane) == (None, None)


def test_a_batch_has_so_many_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead letters beyond a batch's limit are counted in a dead letter of the next batch."""
    monkeypatch.setattr(letter_limits, "BATCH_LETTERS_MAX", 10)
    letter = Rejected(
        origin=Origin("muster.lag", 0, 0, 1),
        reason=DeadLetter.UNDECODABLE,
        message="x",
        key=b"k",
        value=b"v" * 600_000,
    )
    post = letter_limits.LetterBudget()
    written = [post.admitted("muster", [letter] * 4) for _ in range(4)]
    assert [len(each) for each in written] == [4, 4, 2, 0]
    assert [len(each.value) for each in written[0]] == [600_000, 256, 256, 256]
    (rest,) = letter_limits.LetterBudget().admitted("muster", [])
    assert (rest.reason, rest.message) == (
        DeadLetter.LEFT_OUT,
        "6 more dead letters of the batches before are left out: UNDECODABLE 6",
    )


def test_a_group_has_so_many_letters() -> None:
    """The first quotes a large record whole, those behind it the beginning; the rest is counted."""
    letter = Rejected(
        origin=Origin("muster.lag", 0, 0, 1),
        reason=DeadLetter.UNDECODABLE,
        message="x",
        key=b"k",
        value=b"v" * 50_000,
    )
    *written, rest = letter_limits.of_group([letter] * 1_000)
    assert [len(each.value) for each in written] == [50_000] + [256] * 19
    assert rest.message == (
        "980 more dead letters of this group in this batch are left out: UNDECODABLE 980"
    )
    small = [replace(letter, value=b"v" * 3_000)] * 20
    assert letter_limits.of_group(small) == small
