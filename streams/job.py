"""The coordinator's process: it wires the parts together and runs them from start to stop.

1. Check the topics, start Spark, check the checkpoint. A standby then rehearses, and waits until
   the coordinator has ended or is silent. Write a claim for every prefix.
2. No checkpoint: read the groups back, claim again if they know a greater epoch, and load them in a
   first, short run of the query.
3. Run the query until SIGTERM or SIGINT (exit code 0), a later claim (1), topics that were created
   again (1) or its failure (1).

A stop is immediate: it cuts off the running batch. The next start replays that batch with the same
rows, and so with the same result.

``python -m muster.streams.job``, ``muster run`` and ``spark-submit …/muster/streams/job.py`` all
start here.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

if __name__ == "__main__" and sys.path[0] == str(Path(__file__).resolve().parent):
    # spark-submit puts this folder first, where `clock` or `query` would shadow other modules.
    del sys.path[0]

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from muster import logs
from muster.errors import BadInput
from muster.kafka import access_check
from muster.kafka.acls import Role
from muster.kafka.command_options import add_prefixes
from muster.output import wall_ms
from muster.protocol.errors import ConfigError, MusterError
from muster.protocol.topics import TopicKind, topic_name
from muster.signing.followed_key_file import KeyFile, add_signing_keys, keyring_path
from muster.streams import (
    claims,
    class_archive,
    coordinator_signs,
    crash_loop,
    input_topic_settings,
    jvm_launch,
    query,
    read_back,
    sink,
    source,
    spark_session,
    standby_coordinator,
    stopping,
    takeover,
)
from muster.streams.batch.group_batch import Publisher
from muster.streams.checkpoint import (
    folder_lock,
    older_than_published,
    stale_checkpoint,
    suspect_batch,
    topic_ids,
    unverified_groups,
)
from muster.streams.checkpoint.files import Checkpoint, Offsets, open_checkpoint
from muster.streams.clock import Clock
from muster.streams.errors import KafkaUnreachable, QueryFailed, Superseded
from muster.streams.job_settings import DEFAULT_MASTER, SETTINGS, JobConfig, job_config
from muster.streams.monitoring import Seen
from muster.streams.processor import GroupProcessor

_log = structlog.get_logger("muster.streams")

DONE, FAILURE, USAGE = 0, 1, 2
_JSON_LOG = ("spark.log.structuredLogging.enabled=true",)
"""Makes the JVM log in JSON, too."""
_REFUSAL = re.compile(r"Authori[sz]ation|Authentication|SSL|Ssl")
"""Error texts after which the job asks Kafka what it refuses."""


def run(config: JobConfig) -> int:
    """Run the coordinator until SIGTERM or SIGINT; the exit code is 0 then.

    Raises:
        MusterError: the job ended for another reason.
    """
    try:
        return _begun(config)
    except (QueryFailed, KafkaUnreachable) as error:
        asked = _REFUSAL.search(str(error)) is not None
        refusal = access_check.why(config.clients, Role.JOB, config.prefixes) if asked else None
        if refusal is not None:
            raise access_check.Refused(refusal) from error
        raise type(error)(config.clients.hidden(str(error))) from error


def _begun(config: JobConfig) -> int:
    """Run the job; an error of Spark before the query runs (no JVM, …) becomes a `QueryFailed`."""
    try:
        return _run(config)
    except (PySparkException, Py4JError) as error:
        raise QueryFailed(f"Spark does not start: {query.cause(error)}") from error


def _run(config: JobConfig) -> int:
    with stopping.signals(_end_process) as stop, ExitStack() as stack:
        job = uuid.uuid4().hex[:12]
        log = _log.bind(job=job)
        keys = None if config.signing_keys is None else KeyFile(config.signing_keys)
        partitions = access_check.check(config.clients, Role.JOB, config.prefixes)
        input_topic_settings.check(
            *(config.clients, source.input_topics(config.prefixes)),
            [topic_name(TopicKind.HEARTBEATS, prefix) for prefix in config.prefixes],
        )
        seen = Seen(config, stack)
        vigil = stack.enter_context(
            standby_coordinator.Vigil(
                *(config.clients, partitions, config.prefixes),
                standby_coordinator.Turn(job, config.prefixes, config.silence_ms / 1000),
            )
        )
        signs = stack.enter_context(
            coordinator_signs.Signs(config.clients, config.prefixes, job, lambda: seen.is_well)
        )
        seen.begins(signs, vigil)
        stop.on_stop += [signs.stops, vigil.over.set]
        if config.standby:
            stack.enter_context(folder_lock.held(config))
        spark, archive = spark_session.start(config)
        stopping.listen(stop)  # PySpark has set its own handler for SIGINT
        stack.callback(stop_spark, spark, stop)
        checkpoint = open_checkpoint(spark, config.checkpoint)
        topic_ids.check(checkpoint, config.clients, takeover.compared_topics(config.prefixes))
        if config.standby:
            takeover.stand_by(spark, config, job, signs, vigil, seen, partitions, stop)
            if stop.is_set():
                log.info("stopped")
                return DONE
            log.info("takes over", why=vigil.why())
            checkpoint = takeover.claimable(checkpoint, config, job)
        else:
            checkpoint = stale_checkpoint.check(checkpoint, config.clients, config.prefixes, job)
        ids = topic_ids.check(checkpoint, config.clients, takeover.compared_topics(config.prefixes))
        claimed = takeover.claimed(config, signs, vigil)
        checkpoint = takeover.confirmed(checkpoint, config, job, claimed.epochs)
        watch = seen.claims(claims.Watch(config.clients, claimed.epochs, job, stop))
        claimed, recovered = _read_back(config, checkpoint, signs, claimed, stop, seen)
        log.info("claimed", **{f"epoch[{p}]": epoch for p, epoch in claimed.epochs.items()})
        kept = topic_ids.Kept(checkpoint.folder, config.clients, ids, stop)
        clock = seen.coordinates(claimed.epochs, partitions, keys, kept.same)
        vigil.end()
        processor = _processor(config, checkpoint, claimed, partitions, _now_ms(recovered))
        suspect_batch.run_begins(checkpoint)
        starting = None
        if recovered is not None and not stop.is_set():
            starting = _load(spark, config, processor, recovered, claimed.epochs, stop, seen, keys)
        if not stop.is_set():
            frame = query.frame(spark, config, processor, starting)
            stack.enter_context(class_archive.Maker(archive, spark_session.class_path(spark)))
            stop.grace_s = stopping.RUN_GRACE_S
            _serve(config, frame, stop, seen, clock, log)
        suspect_batch.run_ended(checkpoint)
        _raise_cause(stop, kept, watch)
        log.info("stopped")
        return DONE


def _end_process(code: int) -> None:
    """End this process at once, and a JVM that is starting."""
    jvm_launch.end_starts()
    os._exit(code)


def _raise_cause(stop: stopping.Stop, kept: topic_ids.Kept, watch: claims.Watch) -> None:
    """Raise what has stopped the job, unless a signal has."""
    if stop.is_signalled:
        return
    if kept.fault is not None:
        raise kept.fault
    if watch.story is not None:
        raise Superseded(watch.story)


def _processor(
    config: JobConfig,
    checkpoint: Checkpoint,
    claimed: takeover.Claimed,
    partitions: Mapping[str, int],
    now_ms: int,
) -> GroupProcessor:
    """The operator; `now_ms` is about when the job claimed."""
    epochs = claimed.epochs
    unverified_until_ms = unverified_groups.unverified_until_ms(checkpoint, epochs, now_ms)
    obeying = unverified_groups.obeying(checkpoint, claimed.predecessors_obey)
    publishers = {
        prefix: Publisher(
            epoch=epoch,
            partitions=partitions,
            rebuild_ms=config.rebuild_ms,
            unverified_until_ms=unverified_until_ms.get(prefix, 0),
            check_share=config.check_share,
            assignors=config.assignors,
            group_bytes_max=config.group_bytes_max,
            group_tasks_max=config.group_tasks_max,
            assignor_ms_max=config.assignor_ms_max,
            predecessors_obey=obeying.get(prefix, False),
        )
        for prefix, epoch in epochs.items()
    }
    return GroupProcessor(
        *(publishers, source.input_topics(config.prefixes), config.writers),
        signing_keys=config.signing_keys,
        group_cpu_s=config.group_cpu_ms / 1000,
        python_bytes_max=config.python_bytes_max,
        suspect_batch=suspect_batch.of(checkpoint),
        careful_until_ms=crash_loop.careful_until_ms(checkpoint, config, epochs),
        canary_ms=config.canary_ms,
    )


def _now_ms(recovered: read_back.Recovered | None) -> int:
    """The broker's time, or later, epoch milliseconds.

    This machine's clock may have been set back. It cannot be earlier than what the broker stamped.
    """
    return max(wall_ms(), 0 if recovered is None else recovered.stamped_ms)


def _read_back(
    config: JobConfig,
    checkpoint: Checkpoint,
    signs: coordinator_signs.Signs,
    claimed: takeover.Claimed,
    stop: threading.Event,
    seen: Seen,
) -> tuple[takeover.Claimed, read_back.Recovered | None]:
    """The claims with which the job goes on, and the groups, if the checkpoint is new."""
    if stop.is_set():
        return claimed, None
    if not checkpoint.is_new:
        older_than_published.note_start(checkpoint, claimed.epochs)
        return claimed, None
    recovered = read_back.groups(config.clients, config.prefixes, seen.gets_on)
    claimed = takeover.claimed_above_groups(config, signs, claimed, recovered.snapshots)
    older_than_published.note_read_back(checkpoint, claimed.epochs, recovered.snapshots)
    return claimed, recovered


def _load(
    spark: SparkSession,
    config: JobConfig,
    processor: GroupProcessor,
    recovered: read_back.Recovered,
    epochs: Mapping[str, int],
    stop: threading.Event,
    seen: Seen,
    keys: KeyFile | None,
) -> Offsets | None:
    """Load the groups into a new checkpoint; return the source's start if there are none to load.

    A short run of the query loads them and ends when it has no more rows; it has answered waiting
    members by then. The long run that follows has no initial state, because rows of a query with
    one take a slower path into Python.
    """
    if not recovered.snapshots:
        return recovered.starting
    _log.info("recovering", groups=len(recovered.snapshots), checkpoint=config.checkpoint)
    read_back.wake_all(config.clients, recovered, epochs, keys, seen.gets_on)
    initial = read_back.initial_state(spark, recovered, seen.gets_on)
    frame = query.frame(spark, config, processor, recovered.starting, initial)
    start = partial(sink.write, frame, config)

    def wait(running: StreamingQuery) -> None:
        query.await_end(running, stop, seen.progress, query.Calm(running))

    query.wait_with_restarts(start(), start, wait)
    return None


def _serve(
    config: JobConfig,
    frame: DataFrame,
    stop: threading.Event,
    seen: Seen,
    clock: Clock,
    log: structlog.stdlib.BoundLogger,
) -> None:
    """Run the query until the job ends."""
    start = partial(sink.write, frame, config)
    running = start()
    log.info("running", checkpoint=config.checkpoint, bootstrap=config.clients.bootstrap)
    seen.runs(clock)
    wait = partial(query.await_end, stop=stop, progress=seen.progress)
    query.wait_with_restarts(running, start, wait)


def stop_spark(spark: SparkSession, stop: stopping.Stop) -> None:
    """Stop Spark; end this process if the JVM does not answer within the grace.

    If the JVM has ended, there is nothing to stop, and the error that ended the job stands.
    """
    code = DONE if stop.is_signalled else FAILURE
    hung = threading.Timer(stopping.RUN_GRACE_S, os._exit, [code])
    hung.daemon = True
    hung.start()
    try:
        with suppress(Py4JError, OSError):
            spark.stop()
    finally:
        hung.cancel()


# ---------------------------------------------------------------- command line


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the job; `muster run` has the same ones."""
    add_signing_keys(add_prefixes(parser))
    spark = parser.add_argument_group("Spark")
    spark.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="folder or URL of the checkpoint, needed; keep it, a restart goes on from there",
    )
    spark.add_argument(
        "--master",
        metavar="M",
        help=f"local[N], spark://HOST:PORT, yarn, k8s://URL (default: {DEFAULT_MASTER}, or what "
        "spark-submit says)",
    )
    spark.add_argument(
        "--standby",
        action="store_true",
        help="wait, warm, while another process is the coordinator; take over within seconds when "
        "it ends, dies or freezes. It needs a checkpoint folder of its own",
    )
    logs.add_log_format(parser)
    spark.add_argument(
        "--conf",
        metavar="K=V",
        action="append",
        default=[],
        help="a setting of Spark (spark.*), of Kafka's clients (kafka.*), or of the job, below; "
        "may be repeated",
    )
    width = max(len(setting.key) for setting in SETTINGS)
    lines = (
        f"{setting.key:<{width}}  {setting.meaning} (default: {_shown(setting.default)})"
        for setting in SETTINGS
    )
    parser.add_argument_group("settings of the job (--conf)", "\n".join(lines))


def _shown(default: object) -> object:
    return "none" if default is None else default


def run_arguments(args: argparse.Namespace) -> int:
    """Run with parsed options.

    Raises:
        MusterError: see `run`; a `ConfigError` when an option cannot be used.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    config = job_config(
        checkpoint=args.checkpoint,
        bootstrap=args.bootstrap_server,
        command_config=args.command_config,
        master=args.master or (None if submitted else DEFAULT_MASTER),
        prefixes=args.topic_prefix,
        signing_keys=keyring_path(args.signing_keys),
        standby=args.standby,
        conf=[*(_JSON_LOG if args.log_format == "json" else ()), *args.conf],
    )
    logs.set_up(args.log_format)
    try:
        return run(config)
    except MusterError as error:
        if args.log_format == "json":  # a reader of the JSON log does not see standard error
            _log.error("ended", why=str(error))
        raise


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``python -m muster.streams.job`` and spark-submit."""
    parser = argparse.ArgumentParser(
        prog="muster.streams.job",
        description="Run muster's coordinator.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    configure(parser)
    try:
        return run_arguments(parser.parse_args(argv))
    except MusterError as error:
        sys.stderr.write(f"muster run: {error}\n")
        return USAGE if isinstance(error, ConfigError | BadInput) else FAILURE


if __name__ == "__main__":
    sys.exit(main())
