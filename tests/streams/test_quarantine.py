"""Groups whose batch ends its process, without a JVM: quarantined, reported, released."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from support.streams.operator import (
    INPUT,
    LANE,
    PREFIXES,
    G,
    M,
    Operator,
    config,
    join,
    newest,
    nothing_in_memory,
    of_kind,
)
from support.streams.packed_rows import pack
from support.suite.ends import abort

from muster.output import wall_ms
from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.digest import Holding
from muster.protocol.events import (
    Event,
    GroupDeleted,
    Heartbeat,
    Mark,
    Origin,
    Report,
    Tick,
)
from muster.protocol.ids import MemberId
from muster.protocol.records import (
    GroupGone,
    GroupSnapshot,
    MemberAssignment,
    Record,
    Rejected,
    WakeUp,
)
from muster.state.machine import advance
from muster.streams import processor
from muster.streams.batch import group_batch
from muster.streams.batch.stored_values import Stored
from muster.streams.source import Packing, input_topics, lane_of, repacked

pytestmark = pytest.mark.usefixtures("nothing_in_memory")
__all__ = ["nothing_in_memory"]

POISON = MemberId("poison")
Poisons = Callable[[Event], bool]


def is_poison(event: Event) -> bool:
    """Whether an event is about the member whose events end the process."""
    return getattr(event, "member", None) == POISON


def poisoned(
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[], object] = abort,
    poisons: Poisons = is_poison,
) -> None:
    """Make the core end its process at certain events."""

    def deadly(group: object, events: Sequence[Event], **more: object) -> object:
        if any(map(poisons, events)):
            end()
        return advance(group, events, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(group_batch, "advance", deadly)


def repeated(operator: Operator, at_ms: int, *events: Event) -> list[Record]:
    """Feed a batch that is repeated after a job ended abnormally."""
    operator.processor._is_suspect = True
    try:
        return operator.feed(at_ms, *events)
    finally:
        operator.processor._is_suspect = False


def letters(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Reason and message of each dead letter."""
    return [(r.reason, r.message) for r in of_kind(records, Rejected)]


def quarantined(monkeypatch: pytest.MonkeyPatch, prefixes: Sequence[str] = PREFIXES) -> Operator:
    """A group whose member m has four tasks; a batch with joins of n and poison quarantined it."""
    poisoned(monkeypatch)
    operator = Operator(prefixes=prefixes)
    operator.feed(1_000, config(), join())
    repeated(operator, 2_000, join("n"), join(POISON))
    return operator


def test_a_group_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The events become dead letters, the snapshot gives the cause, and the tasks stay."""
    poisoned(monkeypatch)
    operator = Operator()
    operator.feed(1_000, config(), join())
    records = repeated(operator, 2_000, join("n"), join(POISON))
    snapshot = newest(records)
    assert snapshot.quarantine is not None
    assert snapshot.quarantine.since_ms == 2_000
    assert snapshot.quarantine.story == "its process was ended by SIGABRT"
    assert ([m.id for m in snapshot.members], snapshot.holder.tolist()) == ([M], [0] * 4)
    reasons = [DeadLetter.QUARANTINED] * 2
    assert [reason for reason, _ in letters(records)] == reasons
    assert "SIGABRT" in letters(records)[0][1]
    assert [wake.at_ms for wake in of_kind(records, WakeUp)] == [None]
    assert of_kind(records, MemberAssignment) == []


def test_others_of_the_same_batch_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A harmless group has the same result in a child process as in the job."""
    poisoned(monkeypatch)
    plain, careful = Operator(), Operator()
    plain.feed(1_000, config(), join())
    repeated(careful, 1_000, config(), join())
    assert plain.stored(LANE) == careful.stored(LANE)
    assert plain.written == careful.written


def test_what_comes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """In quarantine heartbeats and ticks are ignored, and other events become dead letters."""
    operator = quarantined(monkeypatch)
    before = operator.stored(LANE)
    beat = Heartbeat(group=G, member=M, epoch=1, digest=7)
    assert operator.feed(3_000, beat, Tick(group=G)) == []
    records = operator.feed(4_000, join(POISON), beat)
    assert letters(records) == [(DeadLetter.QUARANTINED, "the group is quarantined")]
    assert operator.stored(LANE) == before


def test_a_tick_alone_has_a_letter_with_the_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a tick ends the process, one dead letter gives the cause."""
    poisoned(monkeypatch, poisons=lambda event: isinstance(event, Tick))
    operator = Operator()
    operator.feed(1_000, config(), join())
    ((reason, message),) = letters(repeated(operator, 2_000, Tick(group=G)))
    assert (reason, "SIGABRT" in message) == (DeadLetter.QUARANTINED, True)


def test_a_release_takes_up_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the cause is gone, a release processes the stored rows first.

    It publishes what the batch would have published, because an attempt that was cut off may have
    published it.
    """
    operator = quarantined(monkeypatch)
    monkeypatch.setattr(group_batch, "advance", advance)
    records = operator.feed(9_000, config())
    assert letters(records) == []
    assert newest(records).quarantine is None
    assert sorted(m.id for m in newest(records).members) == [M, "n", POISON]
    known = Operator()
    known.feed(1_000, config(), join())
    expected = known.feed(2_000, join("n"), join(POISON))
    assignments = [r for r in records if isinstance(r, MemberAssignment)]
    assert assignments[: len(of_kind(expected, MemberAssignment))] == of_kind(
        expected, MemberAssignment
    )


def test_a_released_group_is_woken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quarantine takes the wake-up back; without a new one no tick would come for the group.

    So a member that died meanwhile would never expire where no other member writes.
    """
    poisoned(monkeypatch, poisons=lambda event: isinstance(event, Tick))
    operator = Operator()
    operator.feed(1_000, config(), join())  # to be woken at 11,000, if not before
    repeated(operator, 2_000, Tick(group=G))
    monkeypatch.setattr(group_batch, "advance", advance)
    wake_ups = of_kind(operator.feed(900_000, config()), WakeUp)
    assert [wake_up.at_ms for wake_up in wake_ups] == [12_000]


def started_again(before: Operator, prefixes: Sequence[str]) -> Operator:
    """The job with the same checkpoint, other prefixes, and nothing in memory."""
    processor._cache.clear()
    operator = Operator(prefixes=prefixes)
    operator.goes_on(before, LANE)
    return operator


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["muster"], ["another", "muster"]),
        (["another", "muster"], ["muster"]),
        (["muster"], ["muster", "muster.d"]),  # whose topics sort among those of muster
    ],
)
def test_a_release_after_the_prefixes_have_changed(
    before: list[str], after: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that were set aside are still read as records of their own topics."""
    operator = started_again(quarantined(monkeypatch, before), after)
    monkeypatch.setattr(group_batch, "advance", advance)
    records = operator.feed(9_000, config())
    assert letters(records) == []
    snapshot = newest(records)
    assert sorted(m.id for m in snapshot.members) == [M, "n", POISON]
    through = {(topic, partition): offset for topic, partition, offset in snapshot.through}
    assert through == {("muster.config", 0): 1, ("muster.membership", 0): 2}


@pytest.mark.parametrize(
    ("before", "after", "are_read"),
    [
        (["muster", "other"], ["muster", "other"], True),
        (["muster"], ["another", "muster"], False),  # the numbers are those of another prefix
        (["another", "muster"], ["muster"], False),  # there are no such numbers
    ],
)
def test_rows_that_an_earlier_version_kept(
    before: list[str], after: list[str], are_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not name their topics; where those are not of the prefix, each member is asked."""
    earlier = quarantined(monkeypatch, before)
    liveness, _ = earlier.stored(LANE)
    assert liveness is not None
    said = b"\0" + "\0".join(input_topics(before)).encode()
    assert liveness.endswith(said)
    earlier.tester.updateValueState("liveness", LANE, (liveness.removesuffix(said),))
    operator = started_again(earlier, after)
    monkeypatch.setattr(group_batch, "advance", advance)
    records = operator.feed(9_000, config())
    assert sorted(m.id for m in newest(records).members) == ([M, "n", POISON] if are_read else [M])
    assert any(r.report for r in of_kind(records, MemberAssignment)) != are_read


@pytest.mark.parametrize(
    ("was", "now"), [(None, None), (b"name", b"name"), (b"name", None), (None, b"")]
)
def test_rows_are_packed_as_the_present_signing_keys_want(
    was: bytes | None, now: bytes | None
) -> None:
    """A signature is taken out where there are no keys; where there are, a row may have none."""
    origin = Origin("muster.membership", 1, 2, 3)
    kept = pack(origin, b"value", INPUT, was)
    packings = (Packing(INPUT, signature is not None) for signature in (was, now))
    assert repacked([kept], *packings) == [pack(origin, b"value", INPUT, now)]


def test_a_release_without_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the stored rows still end the process, the release drops them and asks every member."""
    operator = quarantined(monkeypatch)
    records = operator.feed(9_000, config())
    snapshot = newest(records)
    assert (snapshot.quarantine, [m.id for m in snapshot.members]) == (None, [M])
    (asked,) = of_kind(records, MemberAssignment)
    assert (asked.report, asked.member, len(asked.active)) == (True, M, 4)
    holding = Holding(active=asked.active)
    answer = Report(
        group=G,
        member=M,
        incarnation=5,
        epoch=asked.epoch,
        revision=asked.revision,
        holding=holding,
        coordinator_epoch=7,
    )
    after = operator.feed(9_500, answer, join("n"))
    assert 0 not in newest(after).recovering  # m's slot; n joins now and is asked as well
    assert letters(after) == []


def test_probation(monkeypatch: pytest.MonkeyPatch) -> None:
    """For `PROBATION_MS` after a release, a child process runs the group's batches."""
    operator = quarantined(monkeypatch)
    assert newest(operator.feed(9_000, config())).quarantine is None
    again = newest(operator.feed(20_000, join(POISON)))
    assert again.quarantine is not None
    assert again.quarantine.since_ms == 20_000
    assert newest(operator.feed(30_000, config())).quarantine is None
    operator.feed(30_000 + group_batch.PROBATION_MS - 1, Tick(group=G))
    assert Stored(*operator.stored(LANE)).is_on_probation
    operator.feed(30_000 + group_batch.PROBATION_MS, Tick(group=G))
    assert not Stored(*operator.stored(LANE)).is_on_probation


def test_a_release_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A config that ends the process renews the quarantine; the first batch's rows stay stored."""
    operator = quarantined(monkeypatch)
    deadly = config(3)
    poisoned(monkeypatch, poisons=lambda e: is_poison(e) or getattr(e, "tasks", None) != ())
    records = operator.feed(9_000, deadly)
    quarantine = newest(records).quarantine
    assert quarantine is not None
    assert quarantine.since_ms == 9_000
    monkeypatch.setattr(group_batch, "advance", advance)
    after = newest(operator.feed(9_900, config(5)))
    assert (after.quarantine, len(after.holder)) == (None, 5)
    assert sorted(m.id for m in after.members) == [M, "n", POISON]  # of the first batch


def test_only_what_an_operator_writes_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undecodable bytes on the config topic do not release the group."""
    operator = quarantined(monkeypatch)
    event = operator.at(config(), 9_000)
    encoded = codec.encode(event)
    rubbish = pack(event.origin, b"\x00rubbish", INPUT)
    records = operator.batch(lane_of("muster", encoded.key), [rubbish])
    assert [reason for reason, _ in letters(records)] == [DeadLetter.QUARANTINED]
    assert of_kind(records, GroupSnapshot) == []


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MemoryError quarantines the group, also in a batch that is not repeated."""

    def eat() -> None:
        raise MemoryError

    poisoned(monkeypatch, eat)
    operator = Operator()
    operator.feed(1_000, config(), join())
    quarantine = newest(operator.feed(2_000, join(POISON))).quarantine
    assert quarantine is not None
    assert "memory" in quarantine.story


def test_a_group_without_a_config_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleting a group without config releases it and removes its state and public record."""
    poisoned(monkeypatch)
    operator = Operator()
    beat = Heartbeat(group=G, member=POISON, epoch=1, digest=7)
    assert newest(repeated(operator, 1_000, beat)).quarantine is not None
    monkeypatch.setattr(group_batch, "advance", advance)
    records = operator.feed(2_000, GroupDeleted(group=G))
    assert of_kind(records, GroupSnapshot) == []
    assert of_kind(records, GroupGone)
    assert operator.stored(LANE) == (None, None)


def test_a_new_group_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release builds a new group from its stored rows."""
    poisoned(monkeypatch)
    operator = Operator()
    repeated(operator, 1_000, join(POISON), config())
    monkeypatch.setattr(group_batch, "advance", advance)
    snapshot = newest(operator.feed(2_000, config()))
    assert (snapshot.quarantine, [m.id for m in snapshot.members]) == (None, [POISON])
    assert snapshot.holder.tolist() == [0] * 4


def test_a_lost_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published record keeps a group in quarantine; a release asks the members."""
    _, snapshot = quarantined(monkeypatch).stored(LANE)
    assert snapshot is not None
    operator = Operator(epoch=8, initial=[(LANE, snapshot)], quarantined=True)
    operator._offsets = {"muster.membership": 99, "muster.config": 99}
    assert [reason for reason, _ in letters(operator.feed(8_000, join("o")))] == ["QUARANTINED"]
    records = operator.feed(9_000, config())
    assert newest(records).quarantine is None
    (asked,) = of_kind(records, MemberAssignment)
    assert (asked.report, asked.member) == (True, M)


def test_an_old_config_releases_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start without a checkpoint reads the group's config again, and the group stays set aside.

    Nothing happens to it before an operator writes another config.
    """
    _, snapshot = quarantined(monkeypatch).stored(LANE)
    assert snapshot is not None
    monkeypatch.setattr(group_batch, "advance", advance)
    operator = Operator(epoch=8, initial=[(LANE, snapshot)], quarantined=True)
    assert operator.feed(8_000, config()) == []
    operator._offsets["muster.membership"] = 99
    assert [reason for reason, _ in letters(operator.feed(8_500, join("o")))] == ["QUARANTINED"]
    assert newest(operator.feed(9_000, config())).quarantine is None


def lost(before: Operator) -> Operator:
    """A start without a checkpoint, which reads the topics from their beginning."""
    _, snapshot = before.stored(LANE)
    assert snapshot is not None
    processor._cache.clear()
    return Operator(epoch=8, initial=[(LANE, snapshot)], quarantined=True)


def test_a_config_of_the_quarantined_batch_releases_no_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The quarantine had read it, although the group has not taken it in.

    A start without a checkpoint reads it again. It counts when an operator releases the group.
    """
    poisoned(monkeypatch)
    operator = Operator()
    operator.feed(1_000, config(), join())
    repeated(operator, 2_000, config(6), join(POISON))
    monkeypatch.setattr(group_batch, "advance", advance)
    operator = lost(operator)
    assert operator.feed(8_000, config(), config(6)) == []
    records = operator.feed(9_000, config(8))
    assert (newest(records).quarantine, len(newest(records).holder)) == (None, 8)


def test_a_config_that_failed_to_release_does_not_do_it_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each config that a quarantine has read counts, also of a release that failed."""
    poisoned(monkeypatch)
    operator = Operator()
    operator.feed(1_000, config(), join())
    repeated(operator, 2_000, config(6), join(POISON))
    poisoned(monkeypatch, poisons=lambda event: True)
    assert newest(operator.feed(3_000, config(7))).quarantine is not None
    monkeypatch.setattr(group_batch, "advance", advance)
    operator = lost(operator)
    assert operator.feed(8_000, config(), config(6), config(7)) == []
    again = lost(operator)
    assert newest(again.feed(9_000, *map(config, (4, 6, 7, 8)))).quarantine is None


def superseded(operator: Operator, at_ms: int) -> list[Record]:
    """Feed the tick of a later coordinator."""
    return operator.feed(at_ms, Tick(group=G, published=Mark(8, 0)))


@pytest.mark.parametrize("are_kept", [True, False])
def test_a_superseded_coordinator_releases_nothing(
    monkeypatch: pytest.MonkeyPatch, are_kept: bool
) -> None:
    """A tick of a later coordinator counts in a quarantine: the release is that one's alone.

    Otherwise a coordinator that was frozen gives the tasks to members that the later one does not
    know of. If that one has ended, a job that continues from this checkpoint releases the group.
    """
    operator = quarantined(monkeypatch)
    if are_kept:
        monkeypatch.setattr(group_batch, "advance", advance)
    assert superseded(operator, 3_000) == []
    assert operator.feed(4_000, config(), join("o")) == []
    assert operator.feed(5_000, config(), join("p")) == []
    later = Operator(epoch=9)
    later.goes_on(operator, LANE)
    members = {m.id for m in newest(later.feed(9_000, config())).members}
    assert members == ({M, "n", POISON} if are_kept else {M})


def test_a_group_that_was_left_is_not_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that a coordinator left to a later one before the quarantine stays with that one."""
    poisoned(monkeypatch)
    operator = Operator()
    operator.feed(1_000, config(), join())
    superseded(operator, 1_500)
    repeated(operator, 2_000, join(POISON))
    monkeypatch.setattr(group_batch, "advance", advance)
    for at_ms in (9_000, 10_000):
        assert operator.feed(at_ms, config()) == []
    later = Operator(epoch=9)
    later.goes_on(operator, LANE)
    members = {m.id for m in newest(later.feed(11_000, config())).members}
    assert members == {M, POISON}


def test_a_release_that_fails_in_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that were set aside stay until a release processes them."""
    operator = quarantined(monkeypatch)

    def fails(*_: object, **__: object) -> object:
        raise ValueError("a fault of the core")

    monkeypatch.setattr(group_batch, "advance", fails)
    reasons = [reason for reason, _ in letters(operator.feed(9_000, config()))]
    assert reasons == [DeadLetter.GROUP_FAILED] * 3
    monkeypatch.setattr(group_batch, "advance", advance)
    records = operator.feed(10_000, config())
    assert sorted(m.id for m in newest(records).members) == [M, "n", POISON]


def test_rows_too_many_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows above the size limit are not kept; a release then asks the members at once."""
    monkeypatch.setattr("muster.streams.batch.quarantine.ROWS_BYTES_MAX", 10)
    operator = quarantined(monkeypatch)
    monkeypatch.setattr(group_batch, "advance", advance)
    records = operator.feed(9_000, config())
    assert [m.id for m in newest(records).members] == [M]
    assert [r.report for r in of_kind(records, MemberAssignment)] == [True]


def test_a_careful_job_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a crash loop every batch runs in children; after the time that is set none does."""
    poisoned(monkeypatch)
    operator = Operator(careful_until_ms=wall_ms() + 600_000)
    operator.feed(1_000, config(), join())
    snapshot = newest(operator.feed(2_000, join("n"), join(POISON)))
    assert snapshot.quarantine is not None
    assert not Operator(careful_until_ms=wall_ms() - 1).processor._is_suspect


@pytest.mark.parametrize("are_kept", [True, False])
def test_a_release_begins_the_sessions(monkeypatch: pytest.MonkeyPatch, are_kept: bool) -> None:
    """The quarantine took no heartbeats, so a member has its whole session from the release on.

    It may have written a heartbeat just before, and used its tasks for a session from then. Random
    lives found it (`set_aside_and_signed`): it expired a step of its session too early, or at once,
    and another member got its tasks. `are_kept`: the release takes up the stored rows.
    """
    session_ms = 10_000
    settings = {"session.timeout.ms": session_ms, "heartbeat.interval.ms": 2_000}
    poisoned(monkeypatch)
    operator = Operator()
    operator.feed(1_000, config(settings=settings), join())
    operator.feed(4_900, Tick(group=G))
    operator.feed(8_800, Tick(group=G))
    repeated(operator, 9_000, join(POISON))
    if are_kept:
        monkeypatch.setattr(group_batch, "advance", advance)
    operator.feed(90_000, config(settings=settings), Tick(group=G))
    members = []
    for silent_ms in (4_000, 8_000, session_ms - 1, session_ms):
        operator.feed(90_000 + silent_ms, Tick(group=G))
        record = Stored(*operator.stored(LANE)).record(G)
        members.append(record is not None and M in {m.id for m in record.members})
    assert members == [True, True, True, False]


def test_a_release_asks_each_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that says only that a copy has caught up changes no digest, and was refused.

    Random lives found it (`set_aside_and_signed`, seed 39): the learner of a released group stayed
    a learner without end. Each member is asked at its second heartbeat, once.
    """
    poisoned(monkeypatch, poisons=lambda event: isinstance(event, Tick))
    operator = Operator()
    (granted,) = of_kind(operator.feed(1_000, config(), join()), MemberAssignment)
    repeated(operator, 2_000, Tick(group=G))
    monkeypatch.setattr(group_batch, "advance", advance)
    operator.feed(9_000, config())
    digest = Holding(active=granted.active).digest()
    beat = Heartbeat(group=G, member=M, epoch=granted.epoch, digest=digest)
    asked = [
        [record.report for record in of_kind(operator.feed(at_ms, beat), MemberAssignment)]
        for at_ms in (9_100, 9_200, 9_300)
    ]
    assert asked == [[], [True], []]


def test_what_a_first_attempt_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt of a batch published a grant; the repeated one is killed, and again.

    After a release without the rows the group does not know the member that it granted tasks to.
    Another member that joins gets none of them before that one must have stopped.
    """
    session_ms = 10_000
    settings = {"session.timeout.ms": session_ms, "heartbeat.interval.ms": 2_000}
    operator, attempt = Operator(), Operator()
    operator.feed(1_000, config(settings=settings))
    attempt.goes_on(operator, LANE)
    (granted,) = of_kind(attempt.feed(2_000, join()), MemberAssignment)
    assert len(granted.active) == 4
    poisoned(monkeypatch, poisons=lambda event: event.origin.at_ms == 2_000)
    operator._offsets["muster.membership"] = -1
    processor._cache.clear()
    assert newest(repeated(operator, 2_000, join())).quarantine is not None
    operator.feed(9_000, config(settings=settings), Tick(group=G))
    records = operator.feed(9_100, join("n"))
    (asked,) = of_kind(records, MemberAssignment)
    assert (len(asked.active), asked.report) == (0, True)
    answer = Report(
        group=G,
        member=MemberId("n"),
        incarnation=5,
        epoch=asked.epoch,
        revision=asked.revision,
        holding=Holding(),
        coordinator_epoch=7,
    )
    wake_up = (of_kind(operator.feed(9_200, answer), WakeUp) or of_kind(records, WakeUp))[-1]
    at_ms = 9_200
    while not any(len(r.active) for r in of_kind(records, MemberAssignment)):
        at_ms += 2_000
        assert at_ms < 60_000
        beat = Heartbeat(group=G, member=MemberId("n"), epoch=0, digest=Holding().digest())
        records = operator.feed(at_ms, Tick(group=G, published=wake_up.published), beat)
        wake_up = (of_kind(records, WakeUp) or [wake_up])[-1]
    assert at_ms >= 9_000 + session_ms
