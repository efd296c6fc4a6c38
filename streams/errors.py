"""Errors of the coordinator's process."""

from __future__ import annotations

from muster.protocol.errors import MusterError


class KafkaUnreachable(MusterError):
    """Kafka did not answer in time, or refused a request.

    Operator action: check --bootstrap-server and --command-config; is the broker up?
    """

    retriable = True


class Superseded(MusterError):
    """Another job has claimed to be the coordinator; this one stops.

    Operator action: none, if the other job is meant to run; else stop it and start this one again.
    """


class OtherTopics(MusterError):
    """The checkpoint belongs to other topics than these.

    Operator action: give a new checkpoint folder; the groups are read back from Kafka.
    """


class StaleCheckpoint(MusterError):
    """A job with another checkpoint was the coordinator after the jobs of this checkpoint.

    Operator action: give a new checkpoint folder; the groups are read back from Kafka.
    """


class UnreadableCheckpoint(MusterError):
    """One of muster's own files in the checkpoint is empty or cut.

    Operator action: give a new checkpoint folder; the groups are read back from Kafka.
    """


class WrongTopics(MusterError):
    """The input topics have settings that the coordinator cannot work with.

    Operator action: run the commands in the message.
    """


class QueryFailed(MusterError):
    """Spark's query ended with an error, or Spark did not start.

    Operator action: read the cause; a restart continues where the query stopped.
    """

    retriable = True


class ThreadDied(MusterError):
    """A thread without which the process is of no use has failed; `part` is its name.

    Operator action: read the log line of its failure; start the process again.
    """

    retriable = True

    def __init__(self, part: str) -> None:
        super().__init__(f"the {part} has died; the log above says why")
