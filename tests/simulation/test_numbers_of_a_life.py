"""The small cases of `bench/life.py`: results of the coordinator and of Kafka's rules."""

from __future__ import annotations

from support.assignor.kafka_assignors import life

from muster.protocol.tasks import Subtopology


def test_the_table_of_small_cases() -> None:
    """All rows: muster's results are simulated, those of Kafka's rules computed, without Java.

    Ten tasks that restore for a minute, two at a time, take five minutes and the last stop; KIP-441
    waits five probing intervals. A static member's tasks wait for it on both sides. Without ids
    every share moves away and one returns, each move as long as its record takes. Joins one by one
    move the fewest tasks. Nothing starts cold.
    """
    push_s = life.PUSH_MS / 1000
    rows = [(r.unit, round(r.ours, 3), r.theirs) for r in life.rows(None, short=True)]
    assert rows == [
        ("min", round(5 + 1 / 60, 3), {"KIP-441": 50}),
        ("task s", 6 * 4 * 10, {"KIP-345": 6 * 4 * 10}),
        ("task s", round(6 * (4 + 4) * push_s, 3), {"classic": 312, "KIP-429": 96, "KIP-848": 96}),
        ("moves", 57, {"fewest": 57}),
        ("moves", 4, {}),
        ("starts", 0, {}),
    ]


def test_kafkas_heartbeats_are_spread_evenly() -> None:
    """Member 1 of 4 beats at 750, 3750, … ms and learns of a change with its next heartbeat.

    A restart by KIP-848, by hand: 3 members of 2 tasks, beats of members 0 and 1 at 0 and 2.5 s of
    each 5 s. The leaver's tasks wait 0 and 2.5 s; then each member stops one for the newcomer, at
    1 and 3.5 s, who hears with its beat at 5 s, 4 and 1.5 s later.
    """
    assert [life.heard(1, 4, 3_000, since) for since in (0, 750, 751)] == [750, 750, 3_750]
    assert life.group_restart(3, 2) == 2_500 + 4_000 + 1_500


def test_a_cold_start_would_be_seen() -> None:
    """Cold starts are counted: without learners (`sticky`) a join starts its whole share cold."""
    unit = Subtopology("0", 6, stateful=True)
    seen = life.played(unit, [(0, life.comes("A")), (60_000, life.comes("B"))], 120_000)
    assert (seen.cold, sum(seen.moves.values())) == (3, 3)
