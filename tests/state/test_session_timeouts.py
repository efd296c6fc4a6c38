"""From when on a changed `session.timeout.ms` counts for a member."""

from __future__ import annotations

from support.state.story import Story, config, join, report

from muster.protocol.tasks import Subtopology

FOUR = Subtopology("0", 4)


def two_members() -> Story:
    """W1 and W2 with two tasks each, and a long session."""
    story = Story()
    story.take(config(FOUR, session_timeout_ms=100_000), join("W1"), join("W2"))
    return story


def timeouts(story: Story) -> list[int]:
    """The timeout of each member."""
    return [member.session_timeout_ms for member in story.group.roster]


def test_a_longer_timeout_counts_at_once() -> None:
    """No member needs to know it."""
    story = two_members()
    story.at(100).take(config(FOUR, session_timeout_ms=200_000))
    assert timeouts(story) == [200_000, 200_000]


def test_a_shorter_timeout_counts_when_it_is_reported() -> None:
    """Every member is asked for a report, and is counted by the new timeout from then on."""
    story = two_members()
    records = story.at(100).records(config(FOUR, session_timeout_ms=10_000))
    assert all(line.endswith("report") for line in records.values())
    story.at(200).take(report("W1", 1, "0_0", "0_2"))  # it has not read the record
    assert timeouts(story) == [100_000, 100_000]
    story.at(300).take(report("W1", 2, "0_0", "0_2"))
    assert timeouts(story) == [10_000, 100_000]


def test_a_report_in_the_batch_of_the_config_acknowledges_nothing() -> None:
    """It names the newest record, but that one still has the longer timeout."""
    story = two_members()
    shorter = config(FOUR, session_timeout_ms=10_000)
    records = story.at(100).records(shorter, report("W1", 1, "0_0", "0_2"))
    assert timeouts(story) == [100_000, 100_000]
    assert all(line.endswith("report") for line in records.values())
    story.at(200).take(report("W1", 2, "0_0", "0_2"))
    assert timeouts(story) == [10_000, 100_000]
