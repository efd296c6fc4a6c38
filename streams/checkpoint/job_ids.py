"""The jobs that ran on a checkpoint: their ids, in a file in the checkpoint.

A coordinator that was superseded ends, and its supervisor may start it again on its old checkpoint.
If the job that took over has another checkpoint, the old one is behind: its groups lack the newer
generations and owners, so fencing tokens would go back. The newest claim shows this: the file does
not name its job.

Jobs that share a checkpoint (a replaced driver) write their ids into one file. A checkpoint without
the file (from before the file existed) is accepted and gets one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from muster.kafka.settings import ClientSettings
from muster.logs import KAFKA
from muster.protocol import codec
from muster.protocol.errors import DecodeError
from muster.protocol.records import CoordinatorClaim
from muster.protocol.topics import TopicKind, topic_name
from muster.streams.checkpoint.files import Checkpoint
from muster.streams.errors import KafkaUnreachable, StaleCheckpoint

FILE = "muster-jobs.json"
JOBS_MAX = 100
"""Number of newest ids that are kept; only the job of the newest claim is looked up."""
READ_TIMEOUT_S = 30.0


def check(
    checkpoint: Checkpoint, clients: ClientSettings, prefixes: Iterable[str], job: str
) -> None:
    """Check that the checkpoint is not behind, and write this job's id into its file.

    Args:
        checkpoint: the job's checkpoint; a new one cannot be behind.
        clients: how to reach Kafka.
        prefixes: topic prefixes served.
        job: id of this job, which has not claimed yet.

    Raises:
        StaleCheckpoint: a job with another checkpoint was the coordinator since.
        KafkaUnreachable: the newest claim could not be read.
    """
    claim = overtaken_by(checkpoint, clients, prefixes)
    if claim is not None:
        raise StaleCheckpoint(
            f"the checkpoint {checkpoint.folder} is behind: job {claim.job} on "
            f"{claim.host} has been the coordinator since, on another checkpoint. From "
            "here, fencing tokens would go back. Give --checkpoint a new folder: the groups "
            "are read back from Kafka, and no task moves; or the folder of that job"
        )
    note(checkpoint, job)


def overtaken_by(
    checkpoint: Checkpoint, clients: ClientSettings, prefixes: Iterable[str]
) -> CoordinatorClaim | None:
    """The newest claim, if a job with another checkpoint wrote it; else None.

    Raises:
        KafkaUnreachable: the newest claim could not be read.
    """
    known = jobs(checkpoint.read(FILE))
    if known and not checkpoint.is_new:
        for prefix in prefixes:
            claim = newest_claim(clients, prefix)
            if claim is not None and claim.job not in known:
                return claim
    return None


def note(checkpoint: Checkpoint, job: str) -> None:
    """Add a job's id to the file."""
    known = jobs(checkpoint.read(FILE))
    checkpoint.write(FILE, {"jobs": [*known, job][-JOBS_MAX:]})


def jobs(content: Mapping[str, object]) -> list[str]:
    """The job ids in the file's JSON object, oldest first."""
    listed = content.get("jobs")
    return [str(each) for each in listed] if isinstance(listed, list) else []


def newest_claim(clients: ClientSettings, prefix: str) -> CoordinatorClaim | None:
    """The newest claim of a prefix; None = there is none, or it cannot be decoded.

    Raises:
        KafkaUnreachable: the claim could not be read in time.
    """
    consumer = Consumer(
        clients.librdkafka({"group.id": f"{prefix}.job", "enable.auto.commit": False}),
        logger=KAFKA,
    )
    place = TopicPartition(topic_name(TopicKind.COORDINATOR, prefix), 0)
    try:
        low, high = consumer.get_watermark_offsets(place, timeout=READ_TIMEOUT_S)
        if high <= low:
            return None
        consumer.assign([TopicPartition(place.topic, 0, high - 1)])
        message = consumer.poll(READ_TIMEOUT_S)
        if message is None or message.error() is not None:
            why = "no answer" if message is None else message.error()
            raise KafkaUnreachable(f"the newest claim on {place.topic} cannot be read: {why}")
        record = codec.decode_record(TopicKind.COORDINATOR, message.key(), message.value())
    except DecodeError:
        return None  # not a record of muster
    except KafkaException as error:
        raise KafkaUnreachable(f"{place.topic} cannot be read: {error}") from error
    finally:
        consumer.close()
    return record if isinstance(record, CoordinatorClaim) else None
