"""The list of groups and the health page: findings, figures of the job, dead letters."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import generate_latest
from support.console.played import PREFIX, demo_life, play, shifted
from support.state.snapshots import orders

from muster.console.fleet import findings, rows
from muster.console.health import figures, letters_json, quantile
from muster.console.store import LETTER_BYTES_MAX, Letter, Store
from muster.protocol.codec import encode
from muster.protocol.events import Drain, Origin
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import Quarantine, Rejected
from muster.simulation.scenario_player import BEGINNING_MS
from muster.streams.observability.metrics import Metrics

END_MS = BEGINNING_MS + 100_000


def test_a_group_has_one_row() -> None:
    """State, members, tasks, generation, last cause and moves of the last hour."""
    store = Store([PREFIX])
    play(store, demo_life())
    row = rows(store, findings(store, END_MS), END_MS)["muster|g"]
    assert {key: row[key] for key in row if key not in ("id", "name", "prefix", "kind")} == {
        "state": "Stable",
        "quarantined": False,
        "members": 3,
        "tasks": 12,
        "generation": 4,
        "cause": "W3 expired",
        "at_ms": BEGINNING_MS + 75_000,
        "moved": 10,
        "level": "",
        "wrong": [],
        "action": "",
    }
    later = rows(store, {}, END_MS + 3_600_000)["muster|g"]
    assert later["moved"] == 0


def test_what_is_wrong_is_said_as_the_doctor_says_it() -> None:
    """A member that owes a release too long, and a quarantined group."""
    store = Store([PREFIX])
    slow = shifted(orders(), BEGINNING_MS)
    store.take(PREFIX, slow, BEGINNING_MS, encode(slow).value or b"")
    bad = replace(slow, group=GroupId("bad"), quarantine=Quarantine(BEGINNING_MS, "it was killed"))
    store.take(PREFIX, bad, BEGINNING_MS, encode(bad).value or b"")
    reported = findings(store, BEGINNING_MS + 400_000)
    lines = rows(store, reported, BEGINNING_MS + 400_000)
    assert lines["muster|bad"]["level"] == "fail"
    assert lines["muster|bad"]["wrong"][0].startswith("is quarantined for 6 min: it was killed")
    assert lines["muster|bad"]["action"].endswith("muster groups release --group bad")
    assert any("waits for W1" in text for text in lines["muster|orders"]["wrong"])


def test_dead_letters_are_decoded() -> None:
    """A drain of an unknown member, and bytes that are no event; newest first."""
    drain = encode(Drain(group=GroupId("g"), member=MemberId("W9")))
    letters = [
        Letter(
            1_000,
            Rejected(
                origin=Origin("muster.membership", 0, 7, 900),
                reason="UNKNOWN_MEMBER_ID",
                message="no member W9",
                key=drain.key,
                value=drain.value or b"",
            ),
        ),
        Letter(
            2_000,
            Rejected(
                origin=Origin("muster.membership", 1, 9, 1_900),
                reason="A_NEWER_WORD",
                message="<b>\u202eboo",
                key=b"\xff\x00",
                value=b"\x01\x02",
            ),
        ),
    ]
    newest, oldest = letters_json(letters, PREFIX)
    assert oldest["event"].startswith('Drain {"group": "g", "member": "W9", "on": true')
    assert oldest["origin"] == "muster.membership-0@7"
    assert oldest["meaning"].startswith("a drain or a lag names a member")
    assert newest["event"] == "no event, 2 bytes: 0102"
    assert newest["message"] == "<b>\\u202eboo"
    assert newest["key"] == "\\xff\\x00"


def test_a_long_letter_is_cut() -> None:
    """A dead letter of a megabyte takes 16 kB."""
    store = Store([PREFIX])
    letter = Rejected(
        origin=Origin("t", 0, 0, 0), reason="TOO_LARGE", message="", value=b"x" * 10**6
    )
    store.reject(PREFIX, letter, 1)
    assert len(store.letters(PREFIX)[0].record.value) == LETTER_BYTES_MAX


def test_figures_come_from_the_jobs_own_metrics_page() -> None:
    """The page that the job serves gives gauges and percentiles, over all prefixes."""
    metrics = Metrics()
    metrics.behind.set(42)
    for _ in range(98):
        metrics.latency.labels("muster").observe(0.03)
    for _ in range(2):
        metrics.latency.labels("other").observe(3.0)
    figures_shown = figures(generate_latest(metrics.registry).decode())
    assert ["rows that wait to be read", 42.0] in figures_shown["gauges"]
    event = figures_shown["times"][0]
    assert (event["count"], event["p99"]) == (100, 2.4)
    assert 0.025 < event["p50"] < 0.05


def test_quantiles_of_histograms() -> None:
    """The straight line within a bucket; beyond all bounds the largest; no values, none."""
    counts = {0.1: 50.0, 0.2: 100.0, float("inf"): 100.0}
    assert quantile(counts, 0.5) == 0.1
    assert quantile(counts, 0.75) == 0.15
    assert quantile({0.1: 0.0, float("inf"): 10.0}, 0.5) == 0.1
    assert quantile({0.1: 0.0, float("inf"): 0.0}, 0.5) is None
    assert quantile({}, 0.5) is None
