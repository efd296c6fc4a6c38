"""Kafka protocol messages that the library kafka-python lacks, encoded with its codec.

The JSON files in `schemas/` list the fields in the form of Kafka's own message definitions:

- KIP-848's and KIP-1071's describe requests, as of Kafka 4.3;
- what Connect's workers put into JoinGroup (`ConnectWorkerMetadata`) and get from SyncGroup
  (`ConnectWorkerAssignment`): version 0 is the protocol `eager`, 1 `compatible`, 2 `sessioned`.
  In an assignment, task -1 of a connector is the connector itself.
"""

# mypy: disable-error-code="call-arg, misc"
from __future__ import annotations

from kafka.protocol.api_data import ApiData
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

_HERE = "muster.kafka.schemas"


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_HERE):
    """Asks for groups of the consumer protocol (KIP-848)."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_HERE):
    """Members of these groups, with racks, epochs, current and target assignments."""


class StreamsGroupDescribeRequest(ApiMessage, load_json=_HERE):
    """Asks for groups of the streams protocol (KIP-1071)."""


class StreamsGroupDescribeResponse(ApiMessage, load_json=_HERE):
    """Subtopologies and members of these groups, with active, standby and warm-up tasks."""


class ConnectWorkerMetadata(ApiData, load_json=_HERE):
    """A Connect worker's JoinGroup metadata: its URL, its config offset, what it runs."""


class ConnectWorkerAssignment(ApiData, load_json=_HERE):
    """Tasks that a Connect worker is to run and to stop; also the form of `allocation`."""


def subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """Decode a consumer's JoinGroup metadata; some clients write version 1 with version 0's fields.

    Raises:
        Exception: of the codec, for bytes of another protocol.
    """
    try:
        return ConsumerProtocolSubscription.decode(metadata)
    except Exception:
        return ConsumerProtocolSubscription.decode(metadata[2:], version=0, header=False)
