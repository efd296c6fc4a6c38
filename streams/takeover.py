"""How a standby coordinator takes over: it rehearses the query, waits for its turn, and claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog
from pyspark.sql import SparkSession

from muster.protocol import codec
from muster.protocol.records import CoordinatorRole, GroupSnapshot
from muster.protocol.topics import TopicKind, topic_name
from muster.streams import (
    claims,
    coordinator_signs,
    rehearsal,
    source,
    spark_session,
    standby_coordinator,
    stopping,
)
from muster.streams.checkpoint import older_than_published, stale_checkpoint, topic_ids
from muster.streams.checkpoint.files import Checkpoint
from muster.streams.errors import QueryFailed, ThreadDied
from muster.streams.job_settings import JobConfig
from muster.streams.monitoring import Seen

_log = structlog.get_logger("muster.streams")


class Claimed(NamedTuple):
    """What a process has claimed, by prefix.

    Attributes:
        epochs: offset of its newest claim.
        predecessors_obey: whether all earlier coordinators obey its ticks.
    """

    epochs: Mapping[str, int]
    predecessors_obey: Mapping[str, bool]


def stand_by(
    spark: SparkSession,
    config: JobConfig,
    job: str,
    signs: coordinator_signs.Signs,
    vigil: standby_coordinator.Vigil,
    seen: Seen,
    partitions: Mapping[str, int],
    stop: stopping.Stop,
) -> None:
    """Rehearse, then wait until it is this process' turn to claim, or `stop` is set.

    Raises:
        QueryFailed: the rehearsal failed, or the JVM has ended.
        ThreadDied: a thread of the process has died.
    """
    sign = codec.encode(signs.sign(CoordinatorRole.STANDBY))

    def is_over() -> bool:
        return vigil.is_due() or stop.is_set()

    if not is_over():
        rehearsal.rehearse(spark, config, job, sign, partitions, is_over)
    if is_over():
        return
    _log.info("standby", job=job, bootstrap=config.clients.bootstrap)
    signs.stands_by()
    seen.health.is_standby = True
    while not stop.is_set() and not vigil.is_due():
        vigil.over.clear()
        vigil.over.wait(1)
        if spark_session.has_ended():
            raise QueryFailed("the JVM of the standby coordinator has ended")
        if part := seen.health.dead_part:
            raise ThreadDied(part)


def claimable(checkpoint: Checkpoint, config: JobConfig, job: str) -> Checkpoint:
    """The checkpoint with which a standby coordinator claims; emptied if it is behind.

    Raises:
        KafkaUnreachable: the claims, or the published records, could not be read.
    """
    look = stale_checkpoint.look(checkpoint, config.clients, config.prefixes)
    if look.overtaken_by is not None:
        return stale_checkpoint.emptied(checkpoint, job, newest=look.overtaken_by.job)
    if why := older_than_published.story(checkpoint, config.clients, config.prefixes):
        return stale_checkpoint.emptied(checkpoint, job, why=why)
    stale_checkpoint.note(checkpoint, job, look)
    return checkpoint


def confirmed(
    checkpoint: Checkpoint, config: JobConfig, job: str, epochs: Mapping[str, int]
) -> Checkpoint:
    """The checkpoint with which the job goes on after its claim.

    If a job with another checkpoint has claimed since this one looked at the claims, the checkpoint
    is behind. A standby empties it, and reads the groups back behind its claim, as after a loss.

    Raises:
        StaleCheckpoint: the checkpoint is behind, and the job is no standby coordinator.
        KafkaUnreachable: the claims, or the topics' ids, could not be read.
    """
    between = stale_checkpoint.claimed_between(checkpoint, config.clients, epochs)
    if between is None:
        return checkpoint
    if not config.standby:
        raise stale_checkpoint.stale(checkpoint, between, is_newest=False)
    checkpoint = stale_checkpoint.emptied(checkpoint, job, newest=between.job)
    topic_ids.check(checkpoint, config.clients, compared_topics(config.prefixes))
    return checkpoint


def compared_topics(prefixes: Sequence[str]) -> list[str]:
    """The topics that must be those of the checkpoint: the job's input, and the claims."""
    claims = (topic_name(TopicKind.COORDINATOR, prefix) for prefix in prefixes)
    return [*source.input_topics(prefixes), *claims]


def claimed(
    config: JobConfig, signs: coordinator_signs.Signs, vigil: standby_coordinator.Vigil
) -> Claimed:
    """Claim every prefix, and say from now on that this process is the coordinator.

    Raises:
        KafkaUnreachable: Kafka did not acknowledge a claim.
    """
    epochs: dict[str, int] = {}
    predecessors_obey: dict[str, bool] = {}
    for prefix in config.prefixes:
        follows = vigil.follows(prefix)
        epochs[prefix] = claims.write(
            config.clients, prefix, signs.job, follows=follows.epoch, alone=follows.obeys
        )
        predecessors_obey[prefix] = follows.predecessors_obey(epochs[prefix])
    signs.runs(epochs)
    return Claimed(epochs, predecessors_obey)


def claimed_above_groups(
    config: JobConfig,
    signs: coordinator_signs.Signs,
    claimed: Claimed,
    snapshots: Sequence[tuple[str, GroupSnapshot]],
) -> Claimed:
    """Claim again where groups that were read back (prefix, snapshot) know a greater epoch.

    Members ignore a coordinator whose epoch is below one that they know. An epoch is the offset of
    a claim: it begins anew if the topic of the claims was made again, or the groups were copied
    from another cluster.

    Raises:
        KafkaUnreachable: Kafka did not answer.
    """
    epochs, predecessors_obey = dict(claimed.epochs), dict(claimed.predecessors_obey)
    for prefix, epoch in claimed.epochs.items():
        known = max((s.coordinator_epoch for p, s in snapshots if p == prefix), default=-1)
        if known < epoch:
            continue
        if claims.read(config.clients, prefix).newest > epoch:
            continue  # a later job has claimed and published meanwhile, and this one stops
        epochs[prefix] = claims.write(
            config.clients, prefix, signs.job, follows=epoch, alone=False, above=known
        )
        predecessors_obey[prefix] = False  # how many there were, the claims do not say any more
        _log.info("claimed above the groups", prefix=prefix, was=epoch, known=known)
    signs.runs(epochs)
    return Claimed(epochs, predecessors_obey)
