"""Records as confluent-kafka's consumer returns them."""

from __future__ import annotations

from muster.protocol import codec
from muster.protocol.records import Record


class Consumed:
    """A message with a record of muster's.

    Args:
        topic: its topic.
        record: encoded as its key and value.
        at_ms: broker time of the record, epoch milliseconds.
        offset: its offset in partition 0.
    """

    def __init__(self, topic: str, record: Record, at_ms: int = 0, offset: int = 0) -> None:
        self._topic, self._encoded, self._at_ms = topic, codec.encode(record), at_ms
        self._offset = offset

    def error(self) -> None:
        """No error."""

    def topic(self) -> str:
        """The topic."""
        return self._topic

    def partition(self) -> int:
        """The partition."""
        return 0

    def offset(self) -> int:
        """The offset."""
        return self._offset

    def key(self) -> bytes:
        """The encoded key."""
        return self._encoded.key

    def value(self) -> bytes | None:
        """The encoded value."""
        return self._encoded.value

    def timestamp(self) -> tuple[int, int]:
        """The broker's timestamp."""
        return 2, self._at_ms

    def headers(self) -> None:
        """No headers."""
