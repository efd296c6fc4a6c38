"""The Spark session: every setting that latency and recovery depend on, in one table.

`session_settings` is a pure function of the config and the jars, so it can be tested without a JVM;
`start` builds the session. A comment gives the reason of each setting, with measurements.
The user's settings (``--conf spark.…``) win, except that class paths and JVM options are joined.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from muster.broker.jars import jars
from muster.broker.java import java_home
from muster.kafka.client_settings import HIDDEN_NAMES
from muster.protocol.errors import ConfigError
from muster.streams.class_archive import ClassArchive
from muster.streams.errors import QueryFailed
from muster.streams.job_settings import DEPRECATED, NEEDED, REPORTS, JobConfig
from muster.streams.jvm_launch import launched
from muster.streams.observability import spark_reports
from muster.streams.observability.jvm_output import JvmOutput, as_it_is, as_log

_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
_STREAMING = "org.apache.spark.sql.execution.streaming"

SAFE_PATH = "PYTHONSAFEPATH"
"""Python's option ``-P`` as an environment variable, because Spark starts the workers."""

ALWAYS: Mapping[str, str] = {
    # `NEEDED` says why. Spark's own file of defaults (spark-defaults.conf) may have other values.
    **{key: needed for key, (needed, _) in NEEDED.items() if key not in DEPRECATED},
    # A commit writes what changed, not RocksDB files.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # The operator has no timers, because ticks come through the input topic; a batch without rows
    # would only delay the next one.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # How often an idle query looks for rows: 1 ms costs a tenth of a core and gives a tenth less
    # latency than 10 ms.
    "spark.sql.streaming.pollingDelay": "1ms",
    # The main loop reads these reports four times a second, and each report costs time.
    REPORTS: str(spark_reports.KEPT),
    # Each partition runs a Python task in every batch, with or without rows; with a single one
    # Spark needs no exchange, which saves a fifth of an event's time. More are useful if one core
    # cannot process all heartbeats. A checkpoint fixes the number.
    "spark.sql.shuffle.partitions": "1",
    # Compiling code for a batch of a few rows takes longer than the code saves: without it an event
    # takes a fourteenth less time, and a twentieth fewer heartbeats a second are read.
    "spark.sql.codegen.wholeStage": "false",
    # After an OutOfMemoryError a JVM may hang and log nothing; if it exits, the supervisor starts
    # it again.
    **dict.fromkeys(_JAVA_OPTIONS, "-XX:+ExitOnOutOfMemoryError"),
    # The JVM sends rows to Python in portions of at most this size; Spark's limit by number would
    # put ten thousand rows of a megabyte into one portion, which both would hold in memory.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
    # Workers are forked from a process that has the operator's code loaded.
    "spark.python.daemon.module": "muster.streams.python_daemon",
    # In MiB. Groups that are read back travel to executors within tasks, and Spark refuses a task
    # above 128 MiB: with many large groups no start without a checkpoint would come to its end.
    "spark.rpc.message.maxSize": "1024",
    # A task that waits for a preferred executor takes longer than the whole batch.
    "spark.locality.wait": "0s",
    # Every state call is a round trip to the JVM; over TCP the operator takes 3 times as long.
    "spark.python.unix.domain.socket.enabled": "true",
    # A socket's path may have at most 107 bytes; Spark's default is java.io.tmpdir, and YARN's path
    # for that is longer, so no driver would start. Names of sockets are random, and only their
    # owner may connect.
    "spark.python.unix.domain.socket.dir": "/tmp",  # noqa: S108
    # Python must not import a file of the working folder that has the name of a module.
    f"spark.executorEnv.{SAFE_PATH}": "1",
    # No result may depend on where the job runs.
    "spark.sql.session.timeZone": "UTC",
    # Without a limit, a stop waits as long as the broker does not answer.
    "spark.sql.streaming.stopTimeout": "10s",
    # Spark warns that stateful queries cannot use it.
    "spark.sql.adaptive.enabled": "false",
    # Spark shows settings in its UI and event log; its own pattern hides no jaas and no keys.
    "spark.redaction.regex": f"(?i){HIDDEN_NAMES}",
    # Spark's plans show the options of the Kafka source and sink, which may have passwords.
    "spark.sql.redaction.options.regex": f"(?i)url|{HIDDEN_NAMES}",
    # Saves start time and a port; --conf turns it on.
    "spark.ui.enabled": "false",
    # A service's log needs no progress bar.
    "spark.ui.showConsoleProgress": "false",
    # On INFO, Spark logs a line for each batch and stage.
    "spark.log.level": "WARN",
}

POSIX: Mapping[str, str] = {
    # The default renames through FileContext: walCommit 39 → 11 ms.
    "spark.hadoop.spark.sql.streaming.checkpointFileManagerClass": (
        f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Hadoop's own forks a chmod process for every file it creates: trigger 128 → 72 ms.
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
}
"""Only where the checkpoint is on a local or POSIX file system."""

LOCAL: Mapping[str, str] = {
    # A host name that does not resolve stops the JVM.
    "spark.driver.host": "localhost",
    # In local mode no other machine connects.
    "spark.driver.bindAddress": "127.0.0.1",
}

_CHATTY = (
    # Logs a warning for every group that it meets for the first time.
    "org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkStateServer",
    # Logs a warning at every start that adaptive query execution is off; muster turns it off.
    f"{_STREAMING}.runtime.MicroBatchExecution",
)
"""Loggers of the driver's JVM whose warnings are dropped; their errors are logged."""

_JOINED = {
    "spark.jars": ",",
    **dict.fromkeys(("spark.driver.extraClassPath", "spark.executor.extraClassPath"), os.pathsep),
    **dict.fromkeys(_JAVA_OPTIONS, " "),  # if two options contradict, Java takes the last
}
"""Settings of which the user's value is added to ours, and what stands between the two."""
_BARE_FILE_SYSTEM = "hadoop-bare-naked-local-fs"


def session_settings(
    config: JobConfig, spark_jars: Sequence[Path], driver_options: Sequence[str] = ()
) -> dict[str, str]:
    """All settings of the session; `driver_options` are more options of the driver's JVM."""
    bare = [str(jar) for jar in spark_jars if jar.name.startswith(_BARE_FILE_SYSTEM)]
    chosen = {**ALWAYS, "spark.app.name": "muster"}
    chosen["spark.jars"] = ",".join(str(jar) for jar in spark_jars if str(jar) not in bare)
    if config.is_posix and bare:
        chosen |= POSIX
        # The JVM needs a file system's jar when it starts; spark.jars would be too late.
        chosen["spark.driver.extraClassPath"] = bare[0]
        if config.cores is None:
            chosen["spark.executor.extraClassPath"] = bare[0]
    if config.master is not None and config.master.startswith("local"):
        chosen |= LOCAL
    if config.master is not None:
        chosen["spark.master"] = config.master
    driver = _JAVA_OPTIONS[0]
    chosen[driver] = " ".join((chosen[driver], *driver_options))
    return _joined(chosen, config.spark)


def _joined(ours: Mapping[str, str], users: Mapping[str, str]) -> dict[str, str]:
    """Our settings, overridden by the user's; class paths and JVM options are joined."""
    both = {key: _JOINED[key] for key in _JOINED.keys() & ours.keys() & users.keys()}
    return {**ours, **users, **{k: by.join((ours[k], users[k])) for k, by in both.items()}}


def class_path(spark: SparkSession) -> str:
    """The class path of the driver's JVM."""
    return str(spark._jvm.java.lang.System.getProperty("java.class.path"))  # type: ignore[union-attr]  # it runs


def start(config: JobConfig) -> tuple[SparkSession, ClassArchive]:
    """Start the JVM and the session; also return the archive of the JVM's classes.

    Raises:
        JarsError: a jar is missing, or not the one in the lock file.
        JavaNotFound: there is no Java 17 or newer.
        ConfigError: ``SPARK_HOME`` is of another Spark.
    """
    check_home(os.environ)
    os.environ["PYSPARK_PYTHON"] = python(config, os.environ)
    os.environ.setdefault(SAFE_PATH, "1")  # for local workers; `ALWAYS` sets it for executors
    os.environ["JAVA_HOME"] = str(java_home())
    settings = SparkConf(loadDefaults=False)
    theirs = sorted((Path(str(pyspark.__file__)).parent / "jars").glob("*.jar"))
    archive = ClassArchive(java_home(), (*jars("spark"), *theirs))
    atexit.register(archive.forget)
    chosen = session_settings(config, jars("spark"), archive.java_options())
    settings.setAll([*chosen.items()])
    _launch(settings)
    spark = SparkSession.builder.config(conf=settings).getOrCreate()
    log4j = _log4j(spark)
    for name in _CHATTY:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR)
    return spark, archive


def python(config: JobConfig, environment: Mapping[str, str]) -> str:
    """The Python that Spark runs: the user's setting, the environment's, or this process' own.

    Otherwise Spark runs the first python3 on the path, which may not have muster.
    """
    chosen = config.spark.get("spark.pyspark.python")
    return chosen or environment.get("PYSPARK_PYTHON") or sys.executable


def check_home(environment: Mapping[str, str]) -> None:
    """Refuse a ``SPARK_HOME`` of another Spark than PySpark's: PySpark would start that one's JVM.

    Under spark-submit the JVM runs already.

    Raises:
        ConfigError: it is of another version, or no Spark.
    """
    home = environment.get("SPARK_HOME")
    if not home or "PYSPARK_GATEWAY_PORT" in environment:
        return
    if not any((Path(home) / "jars").glob(f"spark-core_*-{pyspark.__version__}*.jar")):
        accepted = f"a Spark {pyspark.__version__}, as the installed pyspark; or unset it"
        raise ConfigError("SPARK_HOME", home, accepted)


_jvm_outputs: list[JvmOutput] = []
"""The reader of the output of the JVM that this process has started: none or one."""


def _launch(settings: SparkConf) -> None:
    """Start the JVM with a thread that reads its output, unless a JVM runs already."""
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    is_json = settings.get("spark.log.structuredLogging.enabled", "false") == "true"
    output = JvmOutput(as_log if is_json else as_it_is)
    try:
        streams = {"stdout": output.entrance, "stderr": output.entrance}
        gateway = launched(settings, streams)
    except (PySparkRuntimeError, QueryFailed):
        output.shut()
        output.join(5)
        raise
    output.shut()
    SparkContext._ensure_initialized(gateway=gateway)
    _jvm_outputs.append(output)


def has_ended() -> bool:
    """Whether the JVM that this process has started is gone."""
    gateway = SparkContext._gateway
    process = None if gateway is None else getattr(gateway, "proc", None)
    return process is not None and process.poll() is not None


def fall_silent(spark: SparkSession) -> None:
    """Stop all JVM output before a stop: errors of an interrupted batch need no attention.

    The next start repeats that batch.
    """
    for output in _jvm_outputs:
        output.is_silent = True
    with suppress(Py4JError, OSError):  # the JVM has ended already
        spark.sparkContext.setLogLevel("OFF")


@contextmanager
def quietly(spark: SparkSession) -> Iterator[None]:
    """Turn off the JVM's log while a query ends: the next query repeats an interrupted batch."""
    log4j = _log4j(spark)
    level = log4j.LogManager.getRootLogger().getLevel()
    log4j.core.config.Configurator.setRootLevel(log4j.Level.OFF)
    try:
        yield
    finally:
        log4j.core.config.Configurator.setRootLevel(level)


def _log4j(spark: SparkSession) -> Any:  # noqa: ANN401  # a package of the JVM
    return spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]  # it runs
