"""How many partitions each of muster's topics gets, and whether an existing topic has enough."""

from __future__ import annotations

from dataclasses import dataclass

from muster.protocol.topics import Topic, TopicKind

DEFAULT_PARTITIONS = 4
PARTITIONS_MAX = 100_000
"""Most partitions of a topic that the client accepts."""
MEMBERS_A_PARTITION = 250
"""Most members that share a partition of the assignments; each reads the records of all of them."""


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """How many partitions topics are to have.

    Attributes:
        each: of every topic; None = the default for new topics, any number for existing ones.
        members: how many members all groups together will have; None = not known. Only the
            assignments get more partitions for them, because each member reads its whole partition.
            More partitions of the other topics would make the coordinator's batches slower.
    """

    each: int | None = None
    members: int | None = None

    def new(self, topic: Topic) -> int:
        """Partitions of a new topic."""
        return topic.partitions or max(self.each or DEFAULT_PARTITIONS, self._for_members(topic))

    def complaint(self, topic: Topic, count: int) -> str | None:
        """What is wrong with the number of partitions of an existing topic; None = nothing."""
        least = self._for_members(topic)
        if topic.partitions is None and self.each is None:
            wanted = f"at least {least} for {self.members} members" if count < least else None
        else:
            wanted = str(self.new(topic)) if count != self.new(topic) else None
        return wanted and f"partitions is {count}, expected {wanted}"

    def _for_members(self, topic: Topic) -> int:
        is_read_by_members = topic.kind is TopicKind.ASSIGNMENTS
        return -(-(self.members or 0) // MEMBERS_A_PARTITION) if is_read_by_members else 0


ANY = PartitionCounts()
"""The default number for new topics, any number for existing ones."""
