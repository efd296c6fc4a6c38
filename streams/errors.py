"""Errors of the coordinator's process."""

from __future__ import annotations

from muster.protocol.errors import MusterError


class KafkaUnreachable(MusterError):
    """Kafka did not answer in time, or refused.

    Operator action: check --bootstrap-server and --command-config; is the broker up?
    """

    retriable = True


class Superseded(MusterError):
    """Another job has claimed to be the coordinator; this one stops.

    Operator action: none, if the other one is meant to run; else stop it and start this one again.
    """


class OtherTopics(MusterError):
    """The checkpoint was written against topics that are not these.

    Operator action: a new checkpoint folder; the groups are read back from ``<prefix>.groups``.
    """


class WrongTopics(MusterError):
    """The input topics are not as the coordinator needs them.

    Operator action: the commands that the message names.
    """


class QueryFailed(MusterError):
    """Spark's query ended by itself.

    Operator action: read the cause; a restart goes on where the query stopped.
    """

    retriable = True
