"""How many partitions `topics create` gives to topics, for a fleet of a given size."""

from __future__ import annotations

import json

import pytest

from muster.cli.main import main
from muster.kafka.partition_counts import PartitionCounts
from muster.protocol.topics import BY_KIND, TOPICS, TopicKind


@pytest.mark.parametrize(
    ("words", "each", "assignments"),
    [
        ((), 4, 4),
        (("--members", "1000"), 4, 4),
        (("--members", "1001"), 4, 5),
        (("--members", "10000"), 4, 40),
        (("--partitions", "12", "--members", "2000"), 12, 12),
        (("--partitions", "2", "--members", "2000"), 2, 8),
    ],
)
def test_members_decide_about_the_assignments_alone(
    words: tuple[str, ...], each: int, assignments: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A partition of the assignments serves 250 members; other topics keep their number."""
    assert main(["topics", "create", "--dry-run", "--format", "json", *words]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["topic"]: row["partitions"] for row in rows} == {
        t.name(): t.partitions or (assignments if t.kind is TopicKind.ASSIGNMENTS else each)
        for t in TOPICS
    }


def test_no_members(capsys: pytest.CaptureFixture[str]) -> None:
    """A number of members that cannot be is refused."""
    with pytest.raises(SystemExit, match="2"):
        main(["topics", "create", "--dry-run", "--members", "0"])
    assert "--members: '0': expected a whole number, 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "count", "complaint"),
    [
        (PartitionCounts(), 3, None),
        (PartitionCounts(members=900), 3, "partitions is 3, expected at least 4 for 900 members"),
        (PartitionCounts(members=900), 40, None),
        (PartitionCounts(each=2, members=900), 4, None),
        (PartitionCounts(each=2, members=900), 2, "partitions is 2, expected 4"),
        (PartitionCounts(each=2), 3, "partitions is 3, expected 2"),
    ],
)
def test_existing_assignments(wanted: PartitionCounts, count: int, complaint: str | None) -> None:
    """For a number of members, more partitions than needed are fine; too few are named."""
    assert wanted.complaint(BY_KIND[TopicKind.ASSIGNMENTS], count) == complaint
