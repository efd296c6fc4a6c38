"""Short lives of a group: the records that members get, and the group's own record."""

from __future__ import annotations

import pytest
from support.state.story import Story, beat, config, join, leave, report, snapshot, tick

from muster.assignor.errors import AssignorError
from muster.assignor.registry import get
from muster.protocol.digest import Holding
from muster.protocol.events import Join, Mark
from muster.protocol.ids import Role
from muster.protocol.records import GroupState, Rejected, WakeUp
from muster.protocol.tasks import Connector, Subtopology, TaskSet
from muster.state.group import Group

FOUR = Subtopology("0", 4)
STATEFUL = Subtopology("0", 4, stateful=True)


def two_members(**values: object) -> Story:
    """W1 and W2 hold two tasks each, both at epoch 1, revision 1."""
    story = Story()
    story.take(config(FOUR, **values), has("W1", "0_0", "0_1"), has("W2", "0_2", "0_3"))
    return story


def has(member: str, *active: str, **more: object) -> Join:
    """A join of a member that holds actives already."""
    return join(member, holding=Holding(active=TaskSet.of(active)), **more)


def digest(*active: str) -> int:
    """Digest of some actives."""
    return Holding(active=TaskSet.of(active)).digest()


def test_a_task_moves() -> None:
    """As Kafka's testReconciliationProcess: revoke, acknowledge, grant, and no other records."""
    story = Story()
    # W1 is alone.
    assert story.records(config(FOUR), join("W1")) == {"W1": "0_0 0_1 0_2 0_3 | - | - @1"}
    # W2 joins: W1 must give two tasks up, W2 gets a record without tasks.
    step = story.at(100).take(join("W2"))
    published = snapshot(step)
    assert published.cause == "W2 joined"
    assert published.state is GroupState.RECONCILING
    assert [(m.task, m.from_member, m.to_member) for m in published.moves] == [
        ("0_2", "W1", "W2"),
        ("0_3", "W1", "W2"),
    ]
    # A report that W1 wrote before it read the record releases nothing.
    assert story.at(200).records(report("W1", 1, "0_0", "0_1", "0_2", "0_3")) == {}
    # The release is acknowledged: W2 gets the tasks; W1 needs no record.
    assert story.at(300).records(report("W1", 2, "0_0", "0_1")) == {"W2": "0_2 0_3 | - | - @2"}
    assert story.group.state is GroupState.STABLE


def test_a_task_goes_back_to_the_member_that_is_stopping_it() -> None:
    """W2 leaves before W1 has stopped the tasks for it; the record says that they move back."""
    story = Story()
    story.take(config(FOUR), join("W1"))
    story.at(100).take(join("W2"))
    published = snapshot(story.at(200).take(leave("W2")))
    assert [(m.task, m.from_member, m.to_member, m.reason) for m in published.moves] == [
        ("0_2", "W2", "W1", "W2 left; W1 was stopping it"),
        ("0_3", "W2", "W1", "W2 left; W1 was stopping it"),
    ]


def test_a_late_report_releases_nothing() -> None:
    """A report of an older revision does not acknowledge a release asked for later."""
    story = Story()
    story.take(config(FOUR), join("W1"))
    story.at(100).take(join("W2"))
    assert story.at(200).records(report("W1", 1)) == {}
    assert story.group.owned.holder.tolist() == [0, 0, 0, 0]


def test_a_member_falls_silent() -> None:
    """A member expires exactly one session timeout after its last sign of life."""
    story = two_members()
    for ms in range(5_000, 45_000, 5_000):
        story.at(ms).take(beat("W1", digest("0_0", "0_1")))
    assert story.at(44_999).records(beat("W1", digest("0_0", "0_1"))) == {}
    records = story.at(45_000).records(tick())
    assert records == {"W2": "gone", "W1": "0_0 0_1 0_2 0_3 | - | - @2"}
    assert story.group.cause == "W2 expired"


def test_a_broker_away_expires_no_member() -> None:
    """A jump of the clock by an hour counts for two heartbeat intervals."""
    story = two_members()
    assert story.at(3_600_000).records(tick()) == {}
    assert [m.id for m in story.group.roster] == ["W1", "W2"]


def test_an_early_tick_changes_nothing() -> None:
    """An early tick gives no records and changes nothing."""
    story = two_members()
    step = story.at(1_000).take(tick())
    assert (step.records, step.changed) == ((), False)


def test_the_wake_up_is_published_lazily() -> None:
    """A wake-up is two heartbeat intervals ahead; a new one follows when it has passed."""
    story = Story()
    first = story.take(config(FOUR), join("W1")).records[-1]
    assert first == WakeUp(group="g", at_ms=1_010_000, published=Mark(1, 1))
    quiet = story.at(5_000).take(beat("W1", digest("0_0", "0_1", "0_2", "0_3")))
    assert quiet.records == ()
    assert quiet.wake_at_ms == 1_015_000
    due = story.at(10_000).take(tick())
    assert due.records == (WakeUp(group="g", at_ms=1_020_000, published=Mark(1, 7)),)


def test_two_heartbeats_that_disagree() -> None:
    """After two wrong digests the record is published again and asks for a report."""
    story = two_members()
    assert story.at(1_000).records(beat("W1", 7)) == {}
    assert story.at(2_000).records(beat("W1", 7)) == {"W1": "0_0 0_1 | - | - @1 report"}
    assert story.at(3_000).records(report("W1", 2, "0_0", "0_1")) == {}
    assert story.at(4_000).records(beat("W1", digest("0_0", "0_1"))) == {}


def test_unknown_members_get_a_fault() -> None:
    """A heartbeat or report of an unknown member is answered UNKNOWN_MEMBER_ID."""
    story = two_members()
    assert story.at(100).records(beat("W9", 1), report("W8", 1)) == {
        "W9": "UNKNOWN_MEMBER_ID",
        "W8": "UNKNOWN_MEMBER_ID",
    }


def test_a_restarted_process_waits_for_the_old_one() -> None:
    """MEMBER_ID_IN_USE while the old session lasts; the process joins after the leave."""
    story = two_members()
    assert story.at(100).records(join("W1", incarnation=2)) == {"W1": "MEMBER_ID_IN_USE"}
    records = story.at(200).records(leave("W1"), join("W1", incarnation=2))
    assert records["W1"].startswith("0_")
    # A retry of Kafka's client may store the leave of the old process once more, behind the join.
    assert story.at(300).records(leave("W1")) == {}
    assert "W1" in story.group.roster.by_id


def test_claiming_too_much_fences() -> None:
    """A member that reports an ungranted task is fenced, and keeps its tasks until it leaves."""
    story = two_members()
    assert story.at(100).records(report("W1", 1, "0_0", "0_1", "0_2")) == {
        "W1": "FENCED_MEMBER_EPOCH"
    }
    assert story.group.owned.holder.tolist() == [0, 0, 1, 1]
    # Its heartbeats no longer count, and W2 gets nothing yet.
    assert story.at(5_000).records(beat("W1", 0)) == {}
    records = story.at(6_000).records(leave("W1"))
    assert records == {"W1": "gone", "W2": "0_0 0_1 0_2 0_3 | - | - @3"}


def test_static_member_returns() -> None:
    """After a temporary leave no task moves; the instance's next process gets the tasks."""
    story = Story()
    first = has("W1a", "0_0", "0_1", instance_id="i1")
    story.take(config(FOUR), first, has("W2", "0_2", "0_3", instance_id="i2"))
    assert story.at(100).records(join("W1b", incarnation=9, instance_id="i1")) == {
        "W1b": "UNRELEASED_INSTANCE_ID"
    }
    assert story.at(200).records(leave("W1a", temporary=True)) == {}
    generation = story.group.generation
    records = story.at(300).records(join("W1b", incarnation=9, instance_id="i1"))
    assert records == {"W1a": "gone", "W1b": "0_0 0_1 | - | - @1"}
    assert story.group.generation == generation
    late = story.at(400).records(report("W1b", 1, "0_0", incarnation=1))
    assert late == {"W1b": "FENCED_INSTANCE_ID"}


def test_a_member_that_lost_its_lease_returns() -> None:
    """A dynamic member may leave temporarily too; its tasks wait at most a session."""
    story = two_members()
    assert story.at(100).records(leave("W1", temporary=True)) == {}
    generation = story.group.generation
    assert story.at(200).records(join("W1", 2)) == {"W1": "0_0 0_1 | - | - @1"}
    assert story.group.generation == generation
    story.at(300).take(leave("W1", 2, temporary=True))
    for ms in range(5_000, 46_000, 5_000):
        story.at(ms).take(beat("W2", digest("0_2", "0_3")))
    assert story.at(45_300).records(tick())["W1"] == "gone"


def test_a_storm_is_one_generation() -> None:
    """Many joins in one batch give one placement and a short cause."""
    story = Story()
    story.take(config(FOUR), *[join(f"W{n:02}") for n in range(45)])
    assert story.group.generation == 1
    assert story.group.cause.endswith("W00, W01 and 43 more joined")


def test_tasks_are_added_and_removed() -> None:
    """Holders keep tasks that stay in the table; members release those that left it."""
    story = Story()
    story.take(config(Subtopology("0", 2), Subtopology("1", 2)), join("W1"))
    records = story.at(100).records(config(Subtopology("1", 3)))
    assert records == {"W1": "1_0 1_1 | - | - @1"}
    assert story.group.cause == "1 task added; 2 tasks removed"
    records = story.at(200).records(report("W1", 2, "1_0", "1_1"))
    assert records == {"W1": "1_0 1_1 1_2 | - | - @2"}


def test_a_plug_in_that_fails_changes_nothing() -> None:
    """The target stays, cause and dead letter say why, the next change tries again."""

    class Broken:
        name = "broken"

        def assign(self, view: object) -> None:
            raise RuntimeError("no idea")

    story = Story(lookup=lambda name: Broken() if name == "x:Broken" else get(name))
    story.take(config(FOUR), join("W1"))
    asked = story.at(100).take(config(FOUR, assignor="x:Broken"))
    assert asked.wake_at_ms == asked.group.sessions.clock_ms
    step = story.at(101).take(tick())
    published = snapshot(step)
    assert published.state is GroupState.ASSIGNING
    assert "no idea" in published.cause
    assert published.target.tolist() == [0, 0, 0, 0]
    assert [r.reason for r in step.records if isinstance(r, Rejected)] == ["ASSIGNOR_FAILED"]
    story.at(200).take(config(FOUR))
    assert story.group.state is GroupState.STABLE


def test_a_plug_in_that_failed_once_is_asked_again_in_a_quiet_fleet() -> None:
    """Nothing else changes; the tasks of a member that left still get an owner."""
    calls = []

    class SlowOnce:
        name = "slow_once"

        def assign(self, view: object) -> object:
            calls.append(1)
            if len(calls) == 2:
                raise AssignorError("no answer after 5000 ms")
            return get("sticky").assign(view)

    story = Story(lookup=lambda name: SlowOnce() if name == "x:SlowOnce" else get(name))
    story.take(config(FOUR, assignor="x:SlowOnce"), join("W1"), join("W2"))
    story.take(tick())
    story.at(1_000).take(leave("W2"))
    story.at(1_001).take(tick())  # takes the failure
    assert story.group.state is GroupState.ASSIGNING
    assert story.group.timers.followup_ms == 1_601_000  # ten minutes after the failure
    story.at(601_001).take(report("W1", 1, "0_0", "0_1"))
    story.at(601_002).take(tick())
    assert len(calls) == 3
    assert story.group.target.active.tolist() == [0, 0, 0, 0]


def test_ex_s1_11_a_retriable_failure_is_tried_again_at_once() -> None:
    """A retry is due at once, then every heartbeat interval; the assignment stays."""
    calls = []

    class Flaky(AssignorError):
        retriable = True

    class Sulking:
        name = "sulking"

        def assign(self, view: object) -> object:
            calls.append(1)
            if len(calls) < 3:
                raise Flaky("not now")
            return get("sticky").assign(view)

    story = Story(lookup=lambda name: Sulking() if name == "x:Sulking" else get(name))
    story.take(config(FOUR), join("W1"))
    story.at(100).take(config(FOUR, assignor="x:Sulking"))
    step = story.at(101).take(tick())  # takes the first answer, and asks again
    assert (len(calls), step.wake_at_ms) == (2, story.now_ms)
    step = story.at(102).take(tick())
    assert (len(calls), step.wake_at_ms) == (2, story.now_ms - 1 + 5_000)
    story.at(5_101).take(tick())
    story.at(5_102).take(tick())
    assert (len(calls), story.group.state) == (3, GroupState.STABLE)


LOST = {
    "as recorded": (["0_0", "0_1"], ["0_0", "0_1"]),
    "lacking a task, which W3 gets: no member runs it": (["0_0"], ["0_0"]),
    "granted one more just before": (["0_0", "0_1", "0_3"], ["0_0", "0_1", "0_3"]),
}


@pytest.mark.parametrize("case", LOST)
def test_a_lost_checkpoint(case: str) -> None:
    """All members are asked; nothing is granted while the old coordinator may still run."""
    held, expected = LOST[case]
    story = two_members()
    record = story.group.snapshot()
    story.group, story.epoch = Group.recover(record), 2
    assert story.at(1_000).records(tick()) == {
        "W1": "0_0 0_1 | - | - @1 report",
        "W2": "0_2 0_3 | - | - @1 report",
    }
    records = story.at(2_000).records(join("W3", incarnation=3), report("W1", 1, *held))
    assert records == {"W3": "- | - | - @0 report"}  # the old coordinator may have let it in
    rest = [task for task in ("0_2", "0_3") if task not in held]
    story.at(3_000).take(report("W2", 1, *rest))
    assert story.group.recovery.asked
    story.at(3_000).take(report("W3", 0, epoch=0, incarnation=3))
    assert not story.group.recovery.asked
    assert (story.group.owned.holder == 0).sum() == len(held)
    for ms in (4_000, 15_000):
        story.at(ms).take(tick())
    first = sorted(
        str(story.group.table.task(t)) for t in (story.group.owned.holder == 0).nonzero()[0]
    )
    assert first == expected


def test_a_learner_is_promoted_by_its_report() -> None:
    """The owner keeps the task until the learner is ready, then releases it at once."""
    story = Story()
    story.take(config(STATEFUL, assignor="learner"), join("W1"))
    assert story.at(100).records(join("W2"))["W2"] == "- | - | 0_2 0_3 @2"
    records = story.at(200).records(report("W2", 1, learner=["0_2", "0_3"], ready=["0_2"], epoch=2))
    assert records == {"W1": "0_0 0_1 0_3 | - | - @1"}  # W2 keeps its copy until it may run it
    assert story.group.cause == "learner of 0_2 on W2 ready"
    records = story.at(400).records(report("W1", 2, "0_0", "0_1", "0_3"))
    assert records["W2"] == "0_2 | - | 0_3 @3"


def test_moves_say_where_a_task_was() -> None:
    """The move of a task whose member left or expired names that member as source."""
    for silent_ms, happens, cause in (
        (5_000, leave("W2"), "W2 left"),
        (45_000, tick(), "W2 expired"),
    ):
        story = two_members()
        for ms in range(5_000, silent_ms, 5_000):
            story.at(ms).take(beat("W1", digest("0_0", "0_1")))
        published = snapshot(story.at(silent_ms).take(happens))
        assert [(m.task, m.from_member, m.to_member, m.reason) for m in published.moves] == [
            ("0_2", "W2", "W1", cause),
            ("0_3", "W2", "W1", cause),
        ]


def test_moves_of_tasks_without_an_owner() -> None:
    """A move has no source if no member had the task."""
    story = Story()
    published = snapshot(story.take(config(Subtopology("0", 1)), join("W1")))
    assert [(m.from_member, m.reason) for m in published.moves] == [(None, "had no owner")]


def test_moves_of_a_standby_and_of_renumbered_tasks() -> None:
    """Sources are right for standbys too, and while the task table changes."""
    story = Story()
    both = Subtopology("0", 1), Subtopology("1", 1, stateful=True)
    wanted = {"num_standby_replicas": 1, "assignor": "high-availability"}
    keeps = Holding(standby=TaskSet.of(["1_0"]))
    story.take(config(*both, **wanted), has("W1", "1_0"), join("W2", holding=keeps), join("W3"))
    published = snapshot(story.at(100).take(leave("W2"), config(both[1], **wanted)))
    assert [(m.task, m.role, m.from_member, m.to_member) for m in published.moves] == [
        ("1_0", Role.STANDBY, "W2", "W3")
    ]
    assert published.moves[0].reason == "W2 left; 1 standby wanted"


def test_moves_from_a_fenced_member() -> None:
    """A fenced member is the source of moves, although its tasks are not free yet."""
    story = two_members()
    published = snapshot(story.at(100).take(report("W1", 1, "0_0", "0_1", "0_2")))
    assert [(m.task, m.from_member, m.to_member, m.reason) for m in published.moves] == [
        ("0_0", "W1", "W2", "W1 fenced"),
        ("0_1", "W1", "W2", "W1 fenced"),
    ]


def test_s3_f11_a_worker_has_read_a_newer_config() -> None:
    """Nothing is placed until the group has read the worker's config; then it is placed."""
    story = Story()
    jobs = Connector("c", 1)
    first = story.take(config(jobs, assignor="cooperative"), join("W1", config_offset=4))
    assert "CONFIG_MISMATCH: W1 has read the config up to 4, the group up to 1" in (
        story.group.cause
    )
    assert (story.group.owned.holder.tolist(), first.wake_at_ms) == (
        [-1, -1],
        story.now_ms + 6_000,
    )
    story.at(100).take(tick())
    assert story.group.generation == 1
    read = story.at(200).take(config(jobs, assignor="cooperative"))
    assert (snapshot(read).cause, story.group.owned.holder.tolist()) == (
        "config read up to 4",
        [0, 0],
    )


def test_a_member_claims_a_task_of_one_that_left_in_the_same_batch() -> None:
    """It was not given the task, so it is fenced; the group goes on."""
    story = two_members()
    records = story.at(100).records(leave("W2"), report("W1", 1, "0_0", "0_1", "0_2"))
    assert records["W1"] == "FENCED_MEMBER_EPOCH"
    assert story.group.owned.holder.tolist()[2] == story.group.roster.by_id["W1"]
