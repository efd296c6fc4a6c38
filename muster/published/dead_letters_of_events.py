"""The dead letters of events that a command has written or read."""

from __future__ import annotations

from typing import Self

from muster.kafka.access_check import NoTopics, Refused
from muster.kafka.client_settings import ClientSettings
from muster.kafka.reader import Follower, Row
from muster.kafka.writer import Place
from muster.protocol.codec import decode_record
from muster.protocol.errors import DecodeError
from muster.protocol.keys import dead_letter_key
from muster.protocol.records import Rejected
from muster.protocol.topics import TopicKind, topic_name


class DeadLetterOf:
    """Looks for the dead letter of one event. Reads each record of ``<prefix>.rejected`` once.

    Close it, or use it in a ``with`` block.
    """

    def __init__(self, settings: ClientSettings, prefix: str, event: Place) -> None:
        self._key = dead_letter_key(event.topic, event.partition, event.offset)
        topic = topic_name(TopicKind.REJECTED, prefix)
        self._follower: Follower | None = Follower(settings, topic, key=self._key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the consumer."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def found(self) -> Rejected | None:
        """The dead letter; None = not yet, or this login may not read the topic.

        Raises:
            Unreachable: the topic cannot be read now.
        """
        try:
            rows = [] if self._follower is None else self._follower.new()
        except (Refused, NoTopics):
            self.close()  # then the command can only wait for the group
            return None
        for row in rows:
            if row.key == self._key and (letter := letter_of(row)) is not None:
                return letter
        return None


def letter_of(row: Row) -> Rejected | None:
    """The dead letter in a record of ``<prefix>.rejected``; None = it is not readable."""
    try:
        record = decode_record(TopicKind.REJECTED, row.key, row.value)
    except DecodeError:
        return None
    return record if isinstance(record, Rejected) else None
