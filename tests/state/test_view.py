"""The interface of group and assignor: members' data goes in, and the answer is carried out.

So an example of an assignor alone holds in the running job too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from support.state.story import AT_ONCE, Story, beat, config, join, leave, report, tick

from muster.assignor.model import NO_MEMBER, GroupView, Pairs, Placement, group_view
from muster.assignor.registry import get
from muster.protocol.digest import Holding
from muster.protocol.events import Drain, Lag
from muster.protocol.ids import GroupId, MemberId, Task
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Connector, Subtopology, TaskSet, TaskTable

T0, T1, T2 = (Task("0", number) for number in range(3))


@dataclass
class Noting:
    """Answers as `sticky`, with the next change of a list; records what it is given."""

    changes: list[dict[str, object]] = field(default_factory=list)
    views: list[GroupView] = field(default_factory=list)
    name: str = "sticky"

    def assign(self, view: GroupView) -> Placement:
        """The next answer."""
        self.views.append(view)
        change = self.changes.pop(0) if self.changes else {}
        return replace(get("sticky").assign(view), **change)  # type: ignore[arg-type]


def noted(*changes: dict[str, object]) -> tuple[Story, Noting]:
    """A group and its assignor, whose answers have these changes."""
    noting = Noting(list(changes))
    return Story(lookup=lambda name: noting), noting


def pairs(*rows: tuple[int, int]) -> Pairs:
    """(task, member) pairs."""
    columns = np.array(rows, dtype=np.int32).reshape(len(rows), 2)
    return Pairs.of(columns[:, 0], columns[:, 1])


def test_an_assignor_is_given_what_members_said() -> None:
    """Every field of the view, after two workers joined, restored, drained and disagreed."""
    stays = {name: np.zeros(3, dtype=np.int32) for name in ("active", "destination")}
    copies = {"standby": pairs((0, 1)), "learner": pairs((1, 1), (2, 1)), **stays}
    story, noting = noted({}, copies, copies)
    unit = Subtopology("0", 3, stateful=True)
    settings = {"num_standby_replicas": 1, "acceptable_recovery_lag": 5}
    about = {
        "capacity": 4,
        "rack": "r1",
        "tags": (("zone", "x"),),
        "protocols": ("sessioned", "eager"),
        "static": ("c-0",),
        "config_offset": 7,
    }
    story.take(config(unit, **settings), join("A", capacity=2, topics=("0",)))
    story.at(100).take(join("B", **about))
    holds = {"standby": [T0], "learner": [T1, T2], "ready": [T1]}
    lags = (Lag(T0, 40), Lag(T2, 9))
    story.at(200).take(
        report("A", 1, T0, T1, T2),
        report("B", 1, epoch=2, lags=lags, **holds),
        Drain(group=GroupId("g"), member=MemberId("A")),
    )
    view = noting.views[-1]
    expected = group_view(
        tasks=TaskTable([unit]),
        settings=parse_settings(
            {"num.standby.replicas": 1, "acceptable.recovery.lag": 5, **AT_ONCE}
        ),
        members=("A", "B"),
        capacity=[2, 4],
        active=[0, 0, 0],
        standby=copies["standby"],
        learner=copies["learner"],
        ready=pairs((1, 1)),
        draining=[True, False],
        rack=(None, "r1"),
        tags=({}, {"zone": "x"}),
        topics=(frozenset({"0"}), None),
        static=(frozenset(), frozenset({"c-0"})),
        protocols=((), ("sessioned", "eager")),
        config_offsets=np.array([-1, 7]),
        config_offset=1,
        now_ms=story.now_ms,
    )
    for name in GroupView.__dataclass_fields__:
        if name != "lags":
            assert same(getattr(view, name), getattr(expected, name)), name
    reported = zip(view.lags.task, view.lags.member, view.lags.offsets, strict=True)
    assert {tuple(map(int, each)) for each in reported} >= {(0, 1, 40), (2, 1, 9)}


def test_an_assignor_sees_which_tasks_have_not_reached_their_owner() -> None:
    """A stops a task for B, then one for C. B leaves: its task is A's, which stops it anyway."""
    story, noting = noted()
    story.take(config(Subtopology("0", 3)), join("A"))
    story.at(100).take(join("B"))
    story.at(200).take(join("C"))
    story.at(300).take(leave("B"))
    with_c, without_b = noting.views[-2:]
    assert (with_c.active.tolist(), with_c.pending.tolist()) == ([0, 0, 1], [False, False, True])
    assert without_b.active.tolist() == [0, 1, 0]
    assert without_b.pending.tolist() == [False, True, True]


def same(one: object, other: object) -> bool:
    """Whether two values of a view are equal."""
    if isinstance(one, Pairs) and isinstance(other, Pairs):
        return one.code.tolist() == other.code.tolist()
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return one == other


def test_an_assignor_sees_duplicates_and_members_that_missed_something() -> None:
    """A task claimed twice (EX-I13), and a member without the last generation's record (S3-F09)."""
    story, noting = noted()
    story.take(config(Connector("c", 1), assignor="cooperative"), join("A"))
    assert (len(noting.views[-1].also_active), noting.views[-1].whole_generation) == (0, True)
    claimed = Holding(active=TaskSet.of([Task("c", 0, True)]))
    story.at(100).take(beat("A", 1))  # perhaps it was written before A read what it was given
    story.take(join("B", holding=claimed))
    assert noting.views[-1].whole_generation
    story.at(5_100).take(beat("A", 1), join("C"))  # A has not read it in an interval, either
    view = noting.views[-1]
    assert view.also_active.code.tolist() == pairs((1, 1)).code.tolist()
    assert not view.whole_generation


def test_what_an_assignor_answers_is_carried_out() -> None:
    """Tasks, copies and a warning; a second call after the last release, with its memory."""
    moved = {
        "active": np.array([1, 0, 0], dtype=np.int32),
        "destination": np.array([1, 0, 1], dtype=np.int32),
        "standby": pairs((1, 1)),
        "learner": pairs((2, 1)),
        "memory": {"round": 1},
        "warnings": ("mind the gap",),
        "again": True,
    }
    story, noting = noted({}, moved, {**moved, "again": False})
    story.take(config(Subtopology("0", 3, stateful=True), session_timeout_ms=600_000), join("A"))
    records = story.at(100).records(join("B"))
    assert records == {"A": "0_1 0_2 | - | - @1", "B": "- | 0_1 | 0_2 @2"}
    assert story.group.target.destination.tolist() == [1, 0, 1]
    assert "mind the gap" in story.group.cause
    assert len(noting.views) == 2
    freed = story.at(200).records(report("A", 2, T1, T2))
    assert freed["B"].startswith("0_0 | ")
    assert (len(noting.views), noting.views[-1].memory) == (3, {"round": 1})


def test_a_delay_ends_with_a_generation() -> None:
    """The work of a lost member is placed when the delay is over, not before (S3-F05)."""
    lost = np.full(3, NO_MEMBER, dtype=np.int32)
    waits = {"active": lost, "destination": lost, "delay_ms": 60_000}
    story, noting = noted({**waits, "unassigned": np.arange(3, dtype=np.int32)})
    story.take(config(Subtopology("0", 3), session_timeout_ms=600_000), join("A"))
    story.at(59_999).take(tick())
    assert (len(noting.views), story.group.owned.holder.tolist()) == (1, [NO_MEMBER] * 3)
    story.at(60_000).take(tick())
    assert (len(noting.views), story.group.owned.holder.tolist()) == (2, [0, 0, 0])
    assert story.group.cause == "delay ended"
