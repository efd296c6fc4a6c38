"""Fleets against the real broker and the real query; one job serves all tests.

Every fleet ends with the check that no task ever had two owners.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.kafka.brokers import Topics
from support.streams.job import Job
from support.suite.waiting import until
from support.worker.fleet import QUICK, Fleet
from support.worker.machines import Crowd

from muster.cli.main import main
from muster.kafka.client_settings import client_settings
from muster.kafka.reader import read
from muster.protocol import codec
from muster.protocol.events import Drain, GroupConfig, Heartbeat, Tick
from muster.protocol.framing import PREFIX
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, GroupState, Rejected
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import INPUTS, TopicKind
from muster.streams.source import QUOTED_VALUE_BYTES

pytestmark = [pytest.mark.broker, pytest.mark.spark]

NewFleet = Callable[[str], Fleet]


@pytest.fixture
def fleet(job: Job, kafka: Topics, tmp_path: Path) -> Iterator[NewFleet]:
    """Makes fleets under the shared job; checks and ends them afterwards."""
    made: list[Fleet] = []
    with ExitStack() as stack:

        def make(group: str) -> Fleet:
            made.append(stack.enter_context(Fleet(kafka, tmp_path, group)))
            return made[-1]

        yield make
        for each in made:
            each.check()


def sizes(held: dict[str, set[str]]) -> list[int]:
    """Number of tasks of each member, ascending."""
    return sorted(map(len, held.values()))


def test_join_leave_crash_and_rejoin(fleet: NewFleet) -> None:
    """Members join, leave, crash and join again; each time all tasks get an owner."""
    group = fleet("comings-and-goings")
    group.configure(6)
    group.start("W1")
    assert sizes(group.settled()) == [6]
    group.start("W2")
    assert sizes(group.settled()) == [3, 3]
    group.stop("W1")
    assert sizes(group.settled()) == [6]
    group.start("W1")
    before = group.settled()
    group.kill("W2")
    after = group.settled()
    assert sizes(after) == [6]
    assert after["W1"] > before["W1"]
    group.start("W2")
    assert sizes(group.settled()) == [3, 3]


def test_nothing_is_written_of_a_quiet_fleet_until_a_worker_dies(
    fleet: NewFleet, kafka: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tick every 2.7 s without the agreement; here none in 12 s of heartbeats.

    `groups describe` still knows when each worker last wrote one. A worker that is killed after
    that loses its tasks to the others, as in any group.
    """
    group = fleet("quiet")
    group.configure(6, config={"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"})
    group.start("W1", "W2", "W3")
    group.settled()

    def times(kind: TopicKind, schema: str) -> list[int]:
        rows = read(kafka.clients, kafka.name(kind))
        mine = [row for row in rows if row.key == b"quiet" and row.value is not None]
        return [row.at_ms for row in mine if row.value.startswith(PREFIX[schema])]

    def since_tick() -> int:
        newest_ms = max(times(TopicKind.MEMBERSHIP, "Tick"), default=0)
        return sum(at_ms > newest_ms for at_ms in times(TopicKind.HEARTBEATS, "Heartbeat"))

    until(lambda: since_tick() >= 36, "12 heartbeats of each, and no tick", story=group.story)
    newest_tick_ms = max(times(TopicKind.MEMBERSHIP, "Tick"))
    where = ["--bootstrap-server", kafka.address, "--topic-prefix", kafka.prefix]
    assert main(["groups", "describe", "--group", "quiet", *where, "--format", "json"]) == 0
    members = json.loads(capsys.readouterr().out)["members"]
    assert len(members) == 3
    assert all(member["last_heartbeat_ms"] > newest_tick_ms for member in members)
    group.kill("W2")
    assert sizes(group.settled()) == [3, 3]


def test_three_workers_four_then_two(fleet: NewFleet) -> None:
    """Scaling out moves only the new member's share; scaling in only the leavers' tasks."""
    group = fleet("scaling")
    group.configure(12)
    group.start("W1", "W2", "W3")
    three = group.settled()
    assert sizes(three) == [4, 4, 4]
    group.start("W4")
    four = group.settled()
    assert sizes(four) == [3, 3, 3, 3]
    assert all(four[name] < three[name] for name in three)
    group.stop("W1", "W2")
    two = group.settled()
    assert sizes(two) == [6, 6]
    assert all(two[name] > four[name] for name in two)


def test_config_change(fleet: NewFleet) -> None:
    """New tasks go to members evenly, removed tasks end, and new timeouts take effect."""
    group = fleet("reconfigured")
    group.configure(4)
    group.start("W1", "W2")
    four = group.settled()
    group.configure(8)
    eight = group.settled()
    assert sizes(eight) == [4, 4]
    assert all(eight[name] > four[name] for name in four)
    group.configure(4, config={**QUICK, "session.timeout.ms": "4000"})
    again = group.settled()
    assert set().union(*again.values()) == {f"0_{n}" for n in range(4)}
    assert {e.session_timeout_ms for e in group.snapshots()[-1].members} == {4000}


def test_drain(fleet: NewFleet, kafka: Topics) -> None:
    """A drained member gives up all its tasks and gets none until the drain is undone."""
    group = fleet("drained")
    group.configure(6)
    group.start("W1", "W2", "W3")
    group.settled()
    drain = Drain(group=GroupId(group.group), member=MemberId("W2"))
    kafka.write(TopicKind.MEMBERSHIP, drain)
    until(lambda: not group.held()["W2"], "W2 is empty", story=group.story)
    assert group.settled()["W2"] == set()
    kafka.write(
        TopicKind.MEMBERSHIP, Drain(group=GroupId(group.group), member=MemberId("W2"), on=False)
    )
    until(lambda: group.held()["W2"], "W2 has tasks again", story=group.story)
    assert sizes(group.settled()) == [2, 2, 2]


def test_moves_have_reasons_and_generations_a_cause(fleet: NewFleet) -> None:
    """A generation's cause names the member that joined, and each moved task has a reason."""
    group = fleet("explained")
    group.configure(4)
    group.start("W1")
    group.settled()
    group.start("W2")
    group.settled()
    newest = group.snapshots()[-1]
    assert "W2" in newest.cause
    moves = [s.moves for s in group.snapshots() if s.generation == newest.generation][-1]
    assert {(m.from_member, m.to_member) for m in moves} == {("W1", "W2")}
    assert len(moves) == 2
    assert all(m.reason for m in moves)


def test_a_recorded_life_replays_byte_for_byte(
    fleet: NewFleet, kafka: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    """A life with a leave, a crash and a config change replays byte for byte."""
    group = fleet("replayed")
    group.configure(6, stateful=True)
    group.start("W1", "W2", "W3")
    group.settled()
    group.stop("W1")
    group.settled()
    group.kill("W2")
    group.settled()
    group.configure(9, assignor="learner")
    group.settled()
    words = ["replay", "--group", group.group, "--bootstrap-server", kafka.address]
    code = main([*words, "--topic-prefix", kafka.prefix])
    shown = capsys.readouterr().out
    assert (code, "different" in shown) == (0, False), shown
    assert re.search(r"\n([1-9]\d*) of \1 records of the group are equal, byte for byte\n$", shown)
    assert ("W2 expired" in shown, "W1 left" in shown) == (True, True)


def test_a_drain_holds_though_its_member_is_expelled(
    fleet: NewFleet, kafka: Topics, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A drained member whose callback hangs is fenced, and the command reports it as expelled.

    When the member returns, it gets no tasks until the drain is undone.
    """
    group = fleet("expelled")
    group.configure(4, config={**QUICK, "rebalance.timeout.ms": "3000"})
    hangs = tmp_path / "hangs"
    group.start("W1")
    group.start("W2", hangs_while=str(hangs))
    group.settled()
    hangs.touch()
    drain = ["drain", "--group", group.group, "--member", "W2"]
    where = ["--bootstrap-server", kafka.address, "--topic-prefix", kafka.prefix]
    assert main([*drain, *where, "--wait"]) == 1
    assert "W2: expelled, not drained" in capsys.readouterr().err
    fenced = group.snapshots()[-1].generation
    hangs.unlink()
    until(lambda: _is_back(group, "W2", fenced), "W2 is back", story=group.story)
    assert {name: len(tasks) for name, tasks in group.settled().items()} == {"W1": 4, "W2": 0}
    assert main([*drain, *where, "--cancel"]) == 0
    until(lambda: group.held()["W2"], "W2 has tasks again", story=group.story)
    assert sizes(group.settled()) == [2, 2]


def _is_back(group: Fleet, member: str, generation: int) -> bool:
    """Whether the member has joined again since that generation."""
    there = {entry.id: entry.epoch for entry in group.snapshots()[-1].members}
    return there.get(member, 0) > generation


def test_a_deleted_group_is_gone(
    fleet: NewFleet, kafka: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    """Deleting a group with members needs --force; its members stop and do not bring it back.

    Configured again, the group works again, with higher fencing tokens for every task.
    """
    group = fleet("deleted")
    group.configure(2)
    group.start("W1", "W2")
    group.settled()
    name = ["--group", group.group]
    where = ["--bootstrap-server", kafka.address, "--topic-prefix", kafka.prefix]
    assert main(["config", "delete", *name, *where]) == 1
    refused = capsys.readouterr().err
    assert "has 2 live members (W1, W2): stop them first; or give --force" in refused
    assert main(["config", "delete", *name, *where, "--force"]) == 0
    until(lambda: group.snapshots()[-1].state is GroupState.DEAD, "dead", story=group.story)
    until(lambda: not group.snapshots()[-1].members, "all have stopped", story=group.story)
    assert not any(group.held().values())
    for member in ("W1", "W2"):
        until(
            lambda member=member: "GROUP_ID_NOT_FOUND: group deleted by" in group.story(member),
            f"{member} is told",
            story=group.story,
        )
    last = group.snapshots()[-1]
    capsys.readouterr()
    assert main(["groups", "list", *where]) == 0
    assert group.group not in capsys.readouterr().out.split()
    before = max((t.generation, t.epoch) for t in group.check())
    group.configure(2)
    until(lambda: sizes(group.settled()) == [1, 1], "both work again", story=group.story)
    now = [t for t in group.check() if (t.generation, t.epoch) > before]
    assert {t.task for t in now} == {"0_0", "0_1"}
    assert group.snapshots()[-1].generation > last.generation


def test_garbage_on_every_input_topic(fleet: NewFleet, kafka: Topics, job: Job) -> None:
    """Each undecodable record becomes a dead letter with origin, reason and its first bytes.

    A fleet whose records have the same keys is not affected.
    """
    group = fleet("beside-garbage")
    group.configure(4)
    group.start("W1", "W2")
    before = group.settled()
    framed = codec.encode(Tick(group=GroupId("x"))).value
    assert framed is not None
    garbage: list[tuple[bytes | None, bytes | None]] = [
        *((None, b"no key"), (b"", b"empty key"), (b"\xff\xfe", b"key is no text")),
        *((b"a|b", b"two ids"), (b"beside-garbage", b"\xc3\x01not ours")),
        *((b"beside-garbage", framed[:-1]), (b"beside-garbage", b"")),
        *((b"garbage", bytes(range(256)) * 400), (b"\0", b"\0")),
    ]
    sent = [
        (kind, key, value)
        for kind in INPUTS
        for key, value in garbage
        # The broker refuses a record without a key on a compacted topic.
        if not (kind is TopicKind.CONFIG and key is None)
    ]
    for kind, key, value in sent:
        kafka.write_raw(kind, key, value)
    kafka.write_raw(TopicKind.MEMBERSHIP, b"beside-garbage", None)

    def letters() -> list[Rejected]:
        dead_letters = [r for r in kafka.records(TopicKind.REJECTED) if isinstance(r, Rejected)]
        return [r for r in dead_letters if r.reason == "UNDECODABLE"]

    def quoted(value: bytes | None) -> bytes:
        return (value or b"")[:QUOTED_VALUE_BYTES]

    wanted = sorted(
        [(kafka.name(kind), key or b"", quoted(value)) for kind, key, value in sent]
        + [(kafka.name(TopicKind.MEMBERSHIP), b"beside-garbage", b"")]
    )
    until(lambda: len(letters()) >= len(wanted), "every dead letter is there", story=job.tail)
    assert sorted((r.origin.topic, r.key, r.value) for r in letters()) == wanted
    assert len({r.origin for r in letters()}) == len(wanted)
    assert all(r.message and r.origin.at_ms > 0 for r in letters())
    group.start("W3")
    after = group.settled()
    assert sizes(after) == [1, 1, 2]
    assert all(after[name] <= before[name] for name in before)
    assert job.poll() is None


def test_a_process_that_is_no_member_gets_an_answer(kafka: Topics, job: Job) -> None:
    """A heartbeat of an unknown member is answered and creates no group."""
    stranger = Heartbeat(group=GroupId("absent"), member=MemberId("S"), epoch=3, digest=1)
    kafka.write(TopicKind.MEMBERSHIP, stranger)
    until(
        lambda: [w for w in kafka.read(TopicKind.ASSIGNMENTS) if w.key == b"absent|S"],
        "the stranger is told",
        story=job.tail,
    )
    assert not [
        r
        for r in kafka.records(TopicKind.GROUPS)
        if isinstance(r, GroupSnapshot) and r.members and r.group == "absent"
    ]


def test_a_fleet_that_starts_together(job: Job, kafka: Topics) -> None:
    """200 members join at once, leave and join again: each time every task starts once.

    Tasks are placed after two seconds without a join, so a slow machine changes nothing.
    """
    names = [f"W{number}" for number in range(200)]
    event = GroupConfig(
        group=GroupId("together"),
        assignor="sticky",
        settings=parse_settings({"initial.rebalance.delay.ms": 24_000}, "sticky"),
        tasks=(Subtopology("0", 2_000),),
    )
    kafka.write(TopicKind.CONFIG, event)
    with Crowd(client_settings(kafka.address), kafka.prefix) as crowd:
        crew = crowd.crew("together", 2_000)
        crew.come(names)
        crowd.settle()
        counts = crowd.counts()
        assert (counts.starts, counts.moves) == (2_000, 0)
        crew.go(names)
        crowd.await_gone()
        crew.come(names)
        crowd.settle()
        assert crowd.counts().starts == 4_000
        crew.go(names)
        crowd.await_gone()
    assert crowd.counts().overlaps == 0
