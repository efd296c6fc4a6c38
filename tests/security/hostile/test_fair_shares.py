"""One group among many: its ticks, its label in the metrics, and the names it may use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.state.snapshots import orders

from muster.output import table
from muster.protocol import codec
from muster.protocol.digest import Holding
from muster.protocol.errors import DecodeError
from muster.protocol.events import NOWHERE, GroupConfig, Join, Lag, LagReport, Report
from muster.protocol.ids import GroupId, MemberId, Task
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology, TaskSet
from muster.protocol.topics import TopicKind
from muster.state.session_clock import step_of
from muster.streams.heartbeat_covers import Sleeper
from muster.streams.observability.group_stats import GroupStats
from muster.streams.observability.health import Answer, Health
from muster.streams.observability.metrics import Metrics
from muster.streams.wake_up_schedule import BEHIND_TICKS, BURST, SPACING_MS, Schedule

EAGER, CALM = Sleeper("muster", GroupId("eager")), Sleeper("muster", GroupId("calm"))
ESCAPE = "\x1b]0;owned\x07"


def test_a_group_is_ticked_at_most_so_often() -> None:
    """A group that wants a tick every 10 ms gets a burst, then one every `SPACING_MS`.

    Another group is still ticked on time.
    """
    schedule, ticks = Schedule(), []
    schedule.note(CALM, 30_000)
    for now_ms in range(0, 60_000, 10):
        if not any(sleeper == EAGER and at == now_ms for sleeper, at in ticks):
            schedule.note(EAGER, now_ms)
        ticks += [(sleeper, now_ms) for sleeper, _ in schedule.due(now_ms)]
    assert len([1 for sleeper, _ in ticks if sleeper == EAGER]) <= BURST + 60_000 // SPACING_MS
    assert (CALM, 30_000) in ticks


def test_so_many_ticks_at_once_while_the_query_is_behind() -> None:
    """Of 250 due groups each second ticks 100, in turn; then there is no limit again."""
    schedule = Schedule()
    sleepers = [Sleeper("muster", GroupId(f"g{n:03}")) for n in range(250)]
    for sleeper in sleepers:
        schedule.note(sleeper, 5)
    by_ms = {
        now_ms: [sleeper for sleeper, _ in schedule.due(now_ms, is_behind=True)]
        for now_ms in range(10, 1_200, 100)
    }
    assert {now_ms: found for now_ms, found in by_ms.items() if found} == {
        10: sleepers[:BEHIND_TICKS],
        1_010: sleepers[BEHIND_TICKS : 2 * BEHIND_TICKS],
    }
    assert [sleeper for sleeper, _ in schedule.due(1_200)][:50] == sleepers[200:]


def test_short_intervals_beside_a_long_session_are_no_reason_to_tick() -> None:
    """A group is ticked every two heartbeat intervals, but at most 40 times a session."""
    plain = parse_settings({})
    assert step_of(plain) == 2 * plain.heartbeat_interval_ms
    eager = parse_settings({"heartbeat.interval.ms": 10, "session.timeout.ms": 1_800_000})
    assert step_of(eager) == 45_000


def test_groups_with_tasks_have_labels_first() -> None:
    """With two labels, a group with tasks takes the label of a group without tasks."""
    metrics = Metrics()
    fold = GroupStats(metrics, {"muster": 3}, 2)
    empty = np.empty(0, dtype=np.int32)
    bare = replace(
        orders(),
        tasks=(),
        holder=empty,
        target=empty,
        destination=empty,
        revoking=empty.astype(np.bool_),
        lags=np.empty((0, 3), dtype=np.int64),
        lag_ms=np.empty(0, dtype=np.int64),
    )
    for name in ("flood1", "flood2", "flood3"):
        fold.snapshot("muster", replace(bare, group=GroupId(name)), 1, None)
    fold.snapshot("muster", replace(orders(), group=GroupId("real")), 1, None)
    assert sorted(label for _, label, _ in fold.rows()) == ["", "", "flood2", "real"]


@pytest.mark.parametrize("field", ["rack", "instance_id", "tags", "topics"])
def test_names_that_do_not_print_are_refused(field: str) -> None:
    """An escape sequence or a very long name in a member's join is refused."""
    for bad in (ESCAPE, "x" * 1_000):
        value = {"tags": (("k", bad),), "topics": (bad,)}.get(field, bad)
        join = Join(group=GroupId("g"), member=MemberId("m"), incarnation=1, **{field: value})
        encoded = codec.encode(join)
        with pytest.raises(DecodeError, match=r"does not print|characters"):
            codec.decode(TopicKind.MEMBERSHIP, encoded.key, encoded.value, NOWHERE)


def test_units_that_do_not_print_are_refused() -> None:
    """An escape sequence in a subtopology's name or in a rack of its replicas is refused."""
    for unit in (Subtopology(f"0{ESCAPE}", 1), Subtopology("0", 1, source_racks=(((ESCAPE,),),))):
        settings = parse_settings({}, "sticky")
        config = GroupConfig(
            group=GroupId("g"), assignor="sticky", settings=settings, tasks=(unit,)
        )
        encoded = codec.encode(config)
        with pytest.raises(DecodeError, match="does not print"):
            codec.decode(TopicKind.CONFIG, encoded.key, encoded.value, NOWHERE)


@pytest.mark.parametrize("unit", [f"0{ESCAPE}", "a\nb", "x" * 10_000])
@pytest.mark.parametrize("count", [1, 500])
def test_units_that_members_name_print(unit: str, count: int) -> None:
    """A join, report or lag is refused if a unit name does not print or is too long.

    The names may be listed or packed.
    """
    names = [unit, *(f"{'y' * 200}{n}" for n in range(1, count))]
    held = TaskSet([(name, False, np.zeros(1, dtype=np.int32)) for name in names])
    who = {"group": GroupId("g"), "member": MemberId("m")}
    lags = tuple(Lag(Task(name, 0), 1) for name in names)
    for event, kind in (
        (Join(**who, incarnation=1, holding=Holding(active=held)), TopicKind.MEMBERSHIP),
        (
            Report(**who, incarnation=1, epoch=1, revision=1, holding=Holding(ready=held)),
            TopicKind.MEMBERSHIP,
        ),
        (LagReport(**who, lags=lags), TopicKind.LAG),
    ):
        encoded = codec.encode(event)
        with pytest.raises(DecodeError, match=r"does not print|characters|no lines"):
            codec.decode(kind, encoded.key, encoded.value, NOWHERE)


def test_tables_escape_what_was_let_in_before() -> None:
    """Tables escape the control characters of a name."""
    assert table(("NAME",), [(f"a{ESCAPE}\n",)]) == "NAME\na\\x1b]0;owned\\x07\\n"


def test_a_process_that_is_not_well_is_not_ready() -> None:
    """A job that is no longer healthy is not ready either."""
    probe = Health(60, lambda: True)
    probe.running(0)
    probe.caught_up(10)
    assert probe.ready(70) == Answer(True, "ready")
    assert not probe.ready(71).fine
    assert probe.ready(71) == probe.well(71)
