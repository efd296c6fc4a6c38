"""What the doctor says about the canary event that the coordinator times for itself."""

from __future__ import annotations

from dataclasses import replace

from support.cli.examined import NOW, facts, first_finding, levels

from muster.doctor.facts import GRACE_MS, CanaryAnswer
from muster.doctor.finding import Level

PLACE = ("canary", "muster")
WELL = CanaryAnswer(epoch=3, event_ms=NOW - 4_000, answer_ms=NOW - 3_900, next_ms=NOW + 6_000)


def test_an_answered_event_proves_that_the_job_works() -> None:
    """An answered canary shows that the job works, even if no group has members."""
    idle = {"groups": {}, "wakeups": {}, "heard": {}, "writes": ()}
    assert levels(facts(canary=WELL))[PLACE] is Level.OK
    assert levels(facts(canary=WELL, **idle))["job", "muster"] is Level.OK
    assert levels(facts(**idle))["job", "muster"] is Level.SKIPPED


def test_a_late_answer_is_reported_with_its_figure() -> None:
    """A slow answer is a warning with its time; one overdue beyond the grace is a failure."""
    slow = first_finding(facts(canary=WELL._replace(event_ms=NOW - 9_900)), "canary")
    assert (slow.level, "answered in 6000 ms" in slow.what) == (Level.WARN, True)
    due = WELL._replace(next_ms=NOW - GRACE_MS)
    assert levels(facts(canary=due))[PLACE] is Level.OK
    late = first_finding(facts(canary=due._replace(next_ms=due.next_ms - 1)), "canary")
    assert late.level is Level.FAIL
    assert "the next answer is 30 s overdue" in late.what


def test_another_coordinators_answer_says_nothing() -> None:
    """Without an answer of the newest claim's epoch there is no canary finding."""
    for canary in (None, WELL._replace(epoch=2)):
        assert PLACE not in levels(facts(canary=canary))
    assert PLACE not in levels(replace(facts(canary=WELL), claims=()))
