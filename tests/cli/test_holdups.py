"""Which member a group waits for, and when the coordinator was last seen, as text."""

from __future__ import annotations

from dataclasses import replace

from support.state.snapshots import orders

from muster.cli import explain, groups
from muster.cli.main import main
from muster.console.explanations import Explainer, clock
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupGone, GroupSnapshot, MemberState, Quarantine
from muster.protocol.settings import parse_settings
from muster.published.coordinator_last_seen import is_overdue, seen_text
from muster.published.holdups import Holdup, PendingReleases
from muster.published.snapshots import Published

ASKED_MS = 1_700_000_000_000  # 22:13:20 UTC
SETTINGS = parse_settings({"rebalance.timeout.ms": 15_000}, "sticky")


def owing(revision: int = 4, deadline_ms: int | None = 9) -> GroupSnapshot:
    """W1 has to give up 0_1 and a standby of 0_2."""
    first, second = orders().members
    asked = replace(first, revoke_revision=revision, deadline_ms=deadline_ms)
    return replace(orders(), settings=SETTINGS, members=(asked, second))


def holdups_after(*records: tuple[int, GroupSnapshot]) -> tuple[Holdup, ...]:
    """The holdups after these records, each at a time in ms after `ASKED_MS`."""
    pending = PendingReleases()
    for after_ms, record in records:
        pending.take(Published(record, ASKED_MS + after_ms))
    return pending.holdups(records[-1][1])


def test_a_member_that_does_not_stop_its_tasks() -> None:
    """A holdup counts from the first record that asked, and gives the time of fencing."""
    (holdup,) = holdups_after((0, owing()), (5_000, replace(owing(), generation=8)))
    assert holdup.text(ASKED_MS + 12_000) == (
        "0_1, 0_2: W1 was asked to stop them 12 s ago; fenced at 22:13:50 UTC"
    )
    late = [holdup.is_late(ASKED_MS + after_ms) for after_ms in (15_000, 15_001)]
    assert late == [False, True]
    assert holdup.as_json(ASKED_MS)["fenced_ms"] == ASKED_MS + 30_000


def test_a_timeout_that_means_never() -> None:
    """A fence of another day has its date, one that never comes the last date there is."""
    for timeout_ms, at in (
        (3 * 86_400_000, "2023-11-17T22:13:35Z"),
        (2**63 - 1, "9999-12-31T23:59:59Z"),
    ):
        settings = parse_settings({"rebalance.timeout.ms": timeout_ms}, "sticky")
        (holdup,) = holdups_after((0, replace(owing(), settings=settings)))
        assert holdup.text(ASKED_MS).endswith(f"W1 was asked to stop them 0 s ago; fenced at {at}")
    assert clock(holdup.fenced_ms) == "23:59:59 UTC"


def test_a_quarantined_group_promises_no_fence(monkeypatch, capsys) -> None:
    """The coordinator decides nothing for it; every view says why it stands still, and the cure."""
    aside = replace(owing(), quarantine=Quarantine(ASKED_MS, "it was ended by SIGABRT"))
    asked, pending = Published(aside, ASKED_MS), PendingReleases()
    pending.take(asked)
    assert groups._waits(aside, pending, ASKED_MS) == []
    notes = [note["text"] for note in Explainer(aside, pending, ASKED_MS).notes()]
    assert notes[0].startswith("quarantined 0 s ago")
    monkeypatch.setattr(explain, "history", lambda *_: iter([asked]))
    assert main(["explain", "--group", "orders"]) == 0
    told = capsys.readouterr().out
    assert told.endswith("then: muster groups release --group orders\n")
    assert not any("fenced at" in each for each in (*notes, told))


def test_a_new_demand_is_another_one() -> None:
    """A new request starts anew; a member that owes nothing is not listed."""
    stopped = replace(
        orders(),
        members=tuple(replace(each, state=MemberState.STABLE) for each in orders().members),
    )
    (holdup,) = holdups_after((0, owing(4)), (5_000, owing(6)))
    assert holdup.asked_ms == ASKED_MS + 5_000
    (again,) = holdups_after((0, owing(4)), (1_000, stopped), (2_000, owing(4)))
    assert again.asked_ms == ASKED_MS + 2_000
    assert holdups_after((0, owing(4)), (1_000, stopped)) == ()
    pending = PendingReleases()
    pending.take(Published(owing(), ASKED_MS))
    pending.take(Published(GroupGone(group=GroupId("orders")), ASKED_MS))
    assert pending.holdups(owing()) == ()


def test_a_member_that_was_fenced() -> None:
    """A fenced member is listed with the time since, and when others get its tasks."""
    (holdup,) = holdups_after((0, owing()), (17_000, owing(deadline_ms=None)))
    assert holdup.is_late(ASKED_MS + 17_000)
    assert holdup.text(ASKED_MS + 20_000) == (
        "0_1, 0_2: W1 did not stop them within 15 s (rebalance.timeout.ms) and was fenced 3 s ago; "
        "others get them when it says that it has stopped, or after its session (45 s)"
    )


def test_when_the_coordinator_was_last_seen() -> None:
    """The text gives the age and says if it is too long for a group with members."""
    alive, empty = orders(), replace(orders(), members=())
    assert seen_text(1_000, 3_000, [alive]) == "coordinator last seen 2 s ago"
    assert seen_text(1_000, 58_000, [alive]) == (
        "coordinator last seen 57 s ago, too long ago for a group with members: muster doctor says "
        "more"
    )
    assert seen_text(1_000, 7_201_000, [empty]) == (
        "coordinator last seen 2 h ago; no group has members, so it writes little"
    )
    assert seen_text(None, 1_000, [alive]) == "coordinator never seen: start `muster run`"
    assert not is_overdue(1_000, 16_000, [alive, empty])
    assert is_overdue(1_000, 16_001, [alive])
