"""The coordinator's process: it wires the parts together and runs them from start to stop.

1. Check the topics, start Spark, check the checkpoint, write a claim for every prefix.
2. No checkpoint: read the groups back and load them in a first, short run of the query.
3. Run the query until SIGTERM or SIGINT (exit code 0), a later claim (1) or its failure (1).

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
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

if __name__ == "__main__" and sys.path[0] == str(Path(__file__).resolve().parent):
    # spark-submit puts this folder first, where `config` or `clock` would shadow other modules.
    del sys.path[0]

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from muster import logs
from muster.kafka import access
from muster.kafka.acls import Role
from muster.kafka.options import add_prefixes
from muster.protocol.errors import ConfigError, MusterError
from muster.signing.keyring import KeyFile, add_signing_keys, keyring_path
from muster.streams import claim, recovery, session, sink, source, stopping, timestamps
from muster.streams.canary import Canary
from muster.streams.checkpoint import job_ids, last_run, topic_ids, unverified
from muster.streams.checkpoint.files import open_checkpoint
from muster.streams.clock import Clock
from muster.streams.config import DEFAULT_MASTER, SETTINGS, JobConfig, job_config
from muster.streams.discovery import Discovery, Pace
from muster.streams.errors import KafkaUnreachable, QueryFailed, Superseded
from muster.streams.observability.group_gauges import GroupsCollector
from muster.streams.observability.group_stats import Fold
from muster.streams.observability.health import Health
from muster.streams.observability.http import Port
from muster.streams.observability.metrics import Metrics
from muster.streams.observability.observer import Observer
from muster.streams.observability.progress import Progress
from muster.streams.processor import GroupProcessor

_log = structlog.get_logger("muster.streams")

DONE, FAILURE, USAGE = 0, 1, 2
_JSON_LOG = ("spark.log.structuredLogging.enabled=true",)
"""Makes the JVM log in JSON, too."""
LOOK_S = 0.25
"""Seconds between two looks of the main loop at its signals and at Spark's reports."""
_REFUSAL = re.compile(r"Authori[sz]ation|Authentication|SSL|Ssl")
"""Error texts after which the job asks Kafka what it refuses."""
_CALLED = "An error occurred while calling"
"""The line that Py4J puts before Java's message."""
_CAUSED = "Caused by: "
_OURS = re.compile(r"muster\.[\w.]+: (.+)")
"""The last line of a Python traceback of a muster error."""


def run(config: JobConfig) -> int:
    """Run the coordinator until SIGTERM or SIGINT; the exit code is 0 then.

    Raises:
        MusterError: the job ended for another reason.
    """
    try:
        return _begun(config)
    except (QueryFailed, KafkaUnreachable) as error:
        asked = _REFUSAL.search(str(error)) is not None
        refusal = access.why(config.clients, Role.JOB, config.prefixes) if asked else None
        if refusal is not None:
            raise access.Refused(refusal) from error
        raise type(error)(config.clients.hidden(str(error))) from error


def _begun(config: JobConfig) -> int:
    """Run the job; an error of Spark before the query runs becomes a `QueryFailed`.

    Raises:
        QueryFailed: no JVM, a checkpoint on a file system that Spark does not have, …
    """
    try:
        return _run(config)
    except (PySparkException, Py4JError) as error:
        raise QueryFailed(f"Spark does not start: {_cause(error)}") from error


def _run(config: JobConfig) -> int:
    with stopping.signals() as stop, ExitStack() as stack:
        job = uuid.uuid4().hex[:12]
        log = _log.bind(job=job)
        keys = None if config.signing_keys is None else KeyFile(config.signing_keys)
        partitions = access.check(config.clients, Role.JOB, config.prefixes)
        timestamps.check(config.clients, source.input_topics(config.prefixes))
        spark = session.start(config)
        stopping.listen(stop)  # PySpark has set its own handler for SIGINT
        stack.callback(_stop_spark, spark, stop)
        topics = source.input_topics(config.prefixes)
        checkpoint = open_checkpoint(spark, config.checkpoint)
        topic_ids.check(checkpoint, config.clients, topics)
        job_ids.check(checkpoint, config.clients, config.prefixes, job)
        epochs = {prefix: claim.claim(config.clients, prefix, job) for prefix in config.prefixes}
        log.info("claimed", **{f"epoch[{prefix}]": epoch for prefix, epoch in epochs.items()})
        watch = stack.enter_context(claim.Watch(config.clients, epochs, job, stop))
        health, progress, clock = _observed(stack, config, epochs, partitions, watch, keys)
        now_ms = time.time_ns() // 1_000_000
        unverified_until_ms = unverified.until_ms(checkpoint, epochs, now_ms)
        processor = GroupProcessor(
            *(epochs, partitions, topics, config.rebuild_ms, config.writers),
            unverified_until_ms=unverified_until_ms,
            signing_keys=config.signing_keys,
            check_share=config.check_share,
            assignors=config.assignors,
            group_bytes_max=config.group_bytes_max,
            group_tasks_max=config.group_tasks_max,
            assignor_ms_max=config.assignor_ms_max,
            group_cpu_s=config.group_cpu_ms / 1000,
            python_bytes_max=config.python_bytes_max,
            suspect_batch=last_run.suspect_batch(checkpoint),
            canary_ms=config.canary_ms,
        )
        last_run.begins(checkpoint)
        starting = None
        if checkpoint.is_new and not stop.is_set():
            starting = _recover(spark, config, processor, epochs, stop, progress, keys)
        if not stop.is_set():
            query = sink.write(_frame(spark, config, processor, starting, None), config)
            log.info("running", checkpoint=config.checkpoint, bootstrap=config.clients.bootstrap)
            health.running(time.monotonic())
            clock.begin_canary()
            stop.grace_s = stopping.RUN_GRACE_S
            _await(query, stop, progress)
        last_run.ended(checkpoint)
        if watch.story is not None:
            raise Superseded(watch.story)
        log.info("stopped")
        return DONE


def _frame(
    spark: SparkSession,
    config: JobConfig,
    processor: GroupProcessor,
    starting: recovery.Offsets | None,
    initial: DataFrame | None,
) -> DataFrame:
    """The query without its sink."""
    groups = source.read(spark, config, starting).groupBy("lane")
    return groups.transformWithState(
        processor,
        outputStructType=sink.OUTPUT,
        outputMode="Append",
        timeMode="None",
        initialState=None if initial is None else initial.groupBy("lane"),
    )


def _recover(
    spark: SparkSession,
    config: JobConfig,
    processor: GroupProcessor,
    epochs: Mapping[str, int],
    stop: threading.Event,
    progress: Progress,
    keys: KeyFile | None,
) -> recovery.Offsets | None:
    """Load the groups into a new checkpoint; return the source's start if there are none to load.

    A short run of the query loads them and processes every row that is there now. The long run that
    follows has no initial state, whose rows take a slower path into Python.
    """
    recovered = recovery.recover(config.clients, config.prefixes)
    if not recovered.snapshots:
        return recovered.starting
    _log.info("recovering", groups=len(recovered.snapshots), checkpoint=config.checkpoint)
    recovery.wake_all(config.clients, recovered, epochs, keys)
    initial = recovery.initial_state(spark, recovered)
    frame = _frame(spark, config, processor, recovered.starting, initial)
    _await(sink.write(frame, config, once=True), stop, progress)
    return None


def _await(query: StreamingQuery, stop: threading.Event, progress: Progress) -> None:
    """Wait until the query ends, or end it when `stop` is set; record its progress meanwhile.

    Raises:
        QueryFailed: the query ended with an error.
    """
    try:
        # Short waits, because Python runs signal handlers only between them.
        while not query.awaitTermination(LOOK_S):  # type: ignore[arg-type]  # takes fractions
            if stop.is_set():
                session.fall_silent(SparkSession.active())
                query.stop()
                return
            progress.look(query)
    except (PySparkException, Py4JError, OSError) as error:  # the latter two: the JVM is gone
        if not stop.is_set():
            raise QueryFailed(_cause(error)) from error


def _cause(error: Exception) -> str:
    """The line of Spark's error text that says what happened.

    It is the last line of an executor's Python traceback that names a muster error; without one,
    Java's last ``Caused by``; without that, the first line.
    """
    lines = [line.strip(" \t:") for line in str(error).splitlines() if line.strip(" \t:")]
    if lines and lines[0].startswith(_CALLED):
        del lines[0]
    ours = [match[1] for line in lines if (match := _OURS.match(line))]
    caused = [line.removeprefix(_CAUSED) for line in lines if line.startswith(_CAUSED)]
    causes = ours or caused or lines[:1] or [type(error).__name__]
    return causes[-1][:1000]


def _stop_spark(spark: SparkSession, stop: threading.Event) -> None:
    """Stop Spark; end this process if the JVM does not answer within the grace."""
    code = DONE if stop.is_set() else FAILURE
    hung = threading.Timer(stopping.RUN_GRACE_S, os._exit, [code])
    hung.daemon = True
    hung.start()
    spark.stop()
    hung.cancel()


def _observed(
    stack: ExitStack,
    config: JobConfig,
    epochs: Mapping[str, int],
    partitions: Mapping[str, int],
    watch: claim.Watch,
    keys: KeyFile | None,
) -> tuple[Health, Progress, Clock]:
    """Start the clock, the observer and the metrics port; the query waits for none of them."""
    metrics, health = Metrics(), Health(config.stall_ms / 1000, lambda: watch.story is None)
    metrics.claimed(epochs)
    metrics.probed(
        ready=lambda: health.ready(time.monotonic()).fine,
        healthy=lambda: health.well(time.monotonic()).fine,
    )
    progress = Progress(metrics, health)
    looking: list[Observer] = []
    most = 2 * config.rows_per_batch_max
    clock = Clock(
        *(config.clients, config.prefixes, metrics.ticks.inc, keys),
        is_behind=lambda: any(each.rows_behind > most for each in looking),
        canary=Canary(epochs, lambda prefix, s: metrics.canary.labels(prefix).observe(s))
        if config.canary_ms
        else None,
    )
    stack.enter_context(clock)
    pace = Pace(
        interval_ms=config.discovery_ms,
        measure_ms=config.discovery_measure_ms,
        grace_ms=config.discovery_grace_ms,
    )
    discovery = stack.enter_context(Discovery(config.clients, config.prefixes, pace, keys))
    health.depends_on("discovery", lambda: discovery.alive)
    metrics.asleep.set_function(lambda: clock.asleep)
    metrics.overdue.set_function(clock.overdue_s)
    fold = Fold(metrics, epochs, config.metrics_groups_max)
    metrics.registry.register(GroupsCollector(fold, clock.now_ms))
    observer = Observer(
        config.clients,
        partitions,
        config.prefixes,
        metrics=metrics,
        fold=fold,
        health=health,
        read=lambda: progress.read,
        on_late=clock.wake,
    )
    stack.enter_context(observer)
    looking.append(observer)
    health.depends_on("clock", lambda: clock.alive)
    health.depends_on("observer", lambda: observer.alive)
    _port(stack, config, metrics, health)
    return health, progress, clock


def _port(stack: ExitStack, config: JobConfig, metrics: Metrics, health: Health) -> None:
    if config.metrics_port is None:
        return
    try:
        port = Port(metrics, health, config.metrics_host, config.metrics_port)
    except OSError as error:
        raise ConfigError(
            "muster.metrics.port", config.metrics_port, f"a free port ({error.strerror})"
        ) from None
    _log.info("metrics", address=f"http://{config.metrics_host}:{port.number}/metrics")
    stack.enter_context(port)


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
    except ConfigError as error:
        sys.stderr.write(f"muster run: {error}\n")
        return USAGE
    except MusterError as error:
        sys.stderr.write(f"muster run: {error}\n")
        return FAILURE


if __name__ == "__main__":
    sys.exit(main())
