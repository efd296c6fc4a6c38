"""What the doctor says about claims: how many coordinators there are, and whether one answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cli.examined import NOW, ORDERS, STUCK_MS, VERSION, claim, facts, first_finding, levels
from support.state.snapshots import orders

from muster.doctor import fact_reader
from muster.doctor import job as doctor_job
from muster.doctor.coordinators import is_news
from muster.doctor.facts import Facts, Heard
from muster.doctor.finding import Level
from muster.kafka.client_settings import ClientSettings
from muster.kafka.reader import Row
from muster.protocol.codec import encode
from muster.protocol.events import Join
from muster.protocol.ids import MemberId
from muster.protocol.records import CoordinatorRole, CoordinatorSign
from muster.streams.coordinator_signs import Signed


def test_two_coordinators() -> None:
    """If the older coordinator still writes long after a newer claim, the doctor names both."""
    two = facts(
        claims=(claim(3, NOW - 9_000_000, "a", "h1"), claim(8, NOW - 600_001, "b", "h2")),
        writes=((NOW - 5_000, 3),),
    )
    finding = first_finding(two, "claim")
    assert finding.level is Level.FAIL
    assert "job a on h1 still writes, 5 s ago" in finding.what
    assert "job b on h2" in finding.what
    at_once = replace(two, writes=((NOW - 590_000, 3),))  # it could not know of the new claim yet
    assert levels(at_once)["claim", "muster"] is Level.OK


def test_a_coordinator_that_wrote_late_and_ended() -> None:
    """It was frozen while another took over: a failure for ten minutes, longer only if it lives."""
    older, newest = claim(3, NOW - 9_000_000, "a", "h1"), claim(8, NOW - 7_200_000, "b", "h2")
    late = facts(claims=(older, newest), writes=((NOW - 7_160_000, 3), (NOW - 5_000, 8)))
    assert levels(late)["claim", "muster"] is Level.OK
    for silent_ms, level in ((1_500, Level.FAIL), (60_000, Level.OK)):
        sign = CoordinatorSign(
            job="a",
            host="h1",
            version=VERSION,
            role=CoordinatorRole.RUNNING,
            epoch=3,
            interval_ms=1_000,
        )
        seen = replace(late, signs=[Signed(NOW - silent_ms, sign)])
        assert levels(seen)["claim", "muster"] is level
    assert levels(replace(late, writes=((NOW - 590_000, 3),)))["claim", "muster"] is Level.FAIL


def test_a_group_at_rest_does_not_tell_who_writes() -> None:
    """A snapshot that is published again unchanged is no news; a new generation or epoch is."""
    rests = orders()
    assert not is_news(rests, replace(rests, clock_ms=rests.clock_ms + 600_000))
    assert not is_news(None, rests)
    assert is_news(rests, replace(rests, generation=rests.generation + 1))
    assert is_news(rests, replace(rests, coordinator_epoch=rests.coordinator_epoch + 1))
    assert is_news(replace(rests, coordinator_epoch=rests.coordinator_epoch + 1), rests)


def test_claims_that_come_and_go() -> None:
    """Three claims in ten minutes are a warning until the newest one outlasts them."""

    def thrice(newest_ms: int) -> Facts:
        ago_ms = (newest_ms + 180_000, newest_ms + 60_000, newest_ms)
        claims = tuple(claim(n, NOW - ms, f"j{n}", f"h{n % 2}") for n, ms in enumerate(ago_ms))
        return facts(claims=claims, writes=())

    finding = first_finding(thrice(20_000), "claim")
    assert (finding.level, "3 claims within 10 minutes, from h0, h1" in finding.what) == (
        Level.WARN,
        True,
    )
    (calm, *_) = doctor_job.look(thrice(120_001), "muster", STUCK_MS)
    assert (calm.level, calm.what) == (
        Level.OK,
        "job j2 on h0, epoch 2, for 2 min; last seen 3 s ago; restarted 2 times within 10 min, "
        "steady since",
    )


def test_restarts_in_order_are_no_warning() -> None:
    """A pair is deployed twice within ten minutes: three of the four processes were stopped."""
    claims = tuple(claim(n, NOW - 20_000 * (4 - n), f"j{n}", "h0") for n in range(4))
    stopped = CoordinatorSign(
        job="", host="h0", version=claims[0].record.version, role=CoordinatorRole.STOPPED
    )
    seen = facts(claims=claims, writes=())
    assert levels(seen)["claim", "muster"] is Level.WARN
    signs = [Signed(NOW - 1_000, replace(stopped, job=f"j{n}")) for n in range(3)]
    assert levels(replace(seen, signs=signs))["claim", "muster"] is Level.OK


def test_a_claim_proves_no_life() -> None:
    """If wake-ups or joins go unanswered, the doctor doubts the claim within seconds."""
    late = facts(wakeups={ORDERS: NOW - 6_000}, published_ms=NOW - 12_000)
    finding = first_finding(late, "claim")
    assert (finding.level, finding.what) == (
        Level.WARN,
        "held by job a on h1 for 60 min, life unproven: it should have written about orders 6 s "
        "ago, last seen 12 s ago",
    )
    heard = Heard(
        event_ms=NOW - 1_000, unanswered_ms=NOW - 9_000, joined=frozenset(["w1", "w2", "w3", "w4"])
    )
    started = facts(
        claims=(claim(3, NOW - 25_000),),
        groups={},
        wakeups={},
        heard={ORDERS: heard},
        published_ms=0,
    )
    assert first_finding(started, "claim").what == (
        "held by job a on h1 for 25 s, life unproven: 4 joins waiting"
    )
    for fine in (
        replace(started, heard={ORDERS: replace(heard, unanswered_ms=NOW - 4_000)}),
        replace(started, published_ms=NOW - 8_000),  # it answers other groups
    ):
        assert levels(fine)["claim", "muster"] is Level.OK
    (quiet, *_) = doctor_job.look(replace(started, heard={}), "muster", STUCK_MS)
    assert quiet.what.endswith("life unproven: nothing has asked it for an answer yet")


@pytest.mark.parametrize(
    ("role", "silent_ms", "level"),
    [
        (CoordinatorRole.RUNNING, 1_500, Level.OK),
        (CoordinatorRole.RUNNING, 6_000, Level.WARN),
        (CoordinatorRole.RUNNING, 31_000, Level.FAIL),
        (CoordinatorRole.ENDED, 1_500, Level.FAIL),
        (CoordinatorRole.STOPPED, 1_500, Level.FAIL),
    ],
)
def test_a_process_without_a_sign_of_life(
    role: CoordinatorRole, silent_ms: int, level: Level
) -> None:
    """A pause of seconds is a warning; a silence of half a minute, and a stop, are failures."""
    newest = claim(3, NOW - 3_600_000, "a", "h1")
    newest = replace(newest, record=replace(newest.record, follows=-1))
    sign = CoordinatorSign(
        job="a",
        host="h1",
        version=newest.record.version,
        role=role,
        epoch=3,
        interval_ms=0 if role.is_over else 1_000,
    )
    seen = facts(claims=(newest,), signs=[Signed(NOW - silent_ms, sign)])
    assert levels(seen)["signs", "muster"] is level


def test_joins_are_collected_once(monkeypatch) -> None:
    """Workers that ask again and again for a group: none of their joins copies all others."""
    joins = [
        encode(Join(group=ORDERS, member=MemberId(f"w{n % 100:02}"), incarnation=1))
        for n in range(300)
    ]
    rows = [
        Row(each.key, each.value, "muster.membership", 0, n, NOW + n)
        for n, each in enumerate(joins)
    ]
    copied = []

    def replaced(heard: Heard, **changes: object) -> Heard:
        copied.append(len(changes.get("joined", ())))
        return replace(heard, **changes)

    monkeypatch.setattr(fact_reader, "read", lambda *given, **more: iter(rows))
    monkeypatch.setattr(fact_reader, "replace", replaced)
    heard = fact_reader._heard(ClientSettings({}), "muster", 0, {})
    assert heard[ORDERS].joined == {f"w{n:02}" for n in range(100)}
    assert heard[ORDERS].unanswered_ms == NOW
    assert sum(copied) == 100
