"""Output of Spark's JVM: start-up messages are dropped, everything else is logged."""

from __future__ import annotations

import errno
import os
import threading

import pytest
from structlog.testing import capture_logs

from muster.streams.observability.jvm_output import JvmOutput, as_it_is, as_log, news

GREETINGS = """\
WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/21 08:39:47 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1; using
26/11/21 08:39:47 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
{"level":"WARN","msg":"Unable to load native-hadoop library for your platform","logger":"Native"}
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
Setting Spark log level to "WARN".
26/11/23 03:46:03 WARN OffsetSeqMetadata: Updating the value of conf \
'spark.sql.streaming.internal.stateStore.partitions' in current session from '1' to '3'.
26/11/23 03:23:35 WARN TaskSetManager: [queryId = 188af] [batchId = 0] Stage 0 contains a task of \
very large size (1040 KiB). The maximum recommended task size is 1000 KiB.
26/11/23 03:23:35 WARN StateStore: Loaded state store provider in loadTimeMs=3012 for storeId=x
26/11/26 09:00:53 WARN TaskSetManager: [queryId = d33b0] [batchId = 1] Lost task 0.0 in stage 2.0 \
(TID 3) (vm executor driver): TaskKilled (Stage cancelled: [SPARK_JOB_CANCELLED] Job 1 cancelled \
Query muster [id = d33b027b, runId = 7164c83c] was stopped SQLSTATE: XXKDA)
Starting Streaming TransformWithStateInPandas Python worker.

Streaming TransformWithStateInPandas Python worker received parameters for UDF.

"""
NEWS = """\
26/11/21 08:39:48 WARN KafkaDataConsumer: something is wrong

java.lang.IllegalStateException: it is

\tat a.b.C
"""


def test_greetings_are_no_news() -> None:
    """Every line of a healthy start is dropped; other messages keep their blank lines."""
    assert "".join(news(GREETINGS.splitlines(keepends=True))) == ""
    mixed = (NEWS + GREETINGS + NEWS).splitlines(keepends=True)
    assert "".join(news(mixed)) == NEWS + NEWS


def test_a_broker_that_is_away_is_said_once_a_minute() -> None:
    """Warnings of an unreachable broker pass once a minute, in both formats; other lines pass."""
    away = """\
26/11/23 03:04:24 WARN NetworkClient: [{0}] Connection to node {1} (/127.0.0.1:23718) could not be \
established. Node may not be available.
"""
    clients = ("Producer clientId=producer-1", "AdminClient clientId=adminclient-1")
    once = [away.format(client, node) for client in clients for node in (1, -1)]
    json_line = '{{"level":"WARN","msg":"{0}","logger":"NetworkClient"}}\n'
    once += [json_line.format(line.partition("NetworkClient: ")[2].strip()) for line in once]
    times = iter([0.0, *[30.0] * (len(once) - 1), *[61.0] * len(once)])
    passed_on = [*news([*once, NEWS, *once], clock_s=lambda: next(times))]
    assert passed_on == [once[0], NEWS, once[0]]


FAREWELL = """\
Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/daemon.py", line 262, in manager
  File "/x/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
"""


def test_an_idle_worker_that_ends_is_no_news() -> None:
    """An idle worker's broken pipe is dropped; another error, or one from other code, passes."""
    ours = FAREWELL.replace(
        "BrokenPipe", '  File "/y/muster/streams/batch/group_batch.py", line 1\nBrokenPipe'
    )
    other = FAREWELL.replace("BrokenPipeError", "ValueError")
    cut = FAREWELL.rpartition("Broken")[0].rpartition("BrokenPipeError")[0]
    passed_on = "".join(
        news((FAREWELL + NEWS + ours + FAREWELL + other + cut).splitlines(keepends=True))
    )
    assert passed_on == NEWS + ours + other + cut


def test_what_is_written_into_the_pipe() -> None:
    """Lines from the pipe are passed on, invalid bytes replaced, until it is silent."""
    heard: list[str] = []
    output = JvmOutput(heard.append)
    os.write(output.entrance, GREETINGS.encode() + b"\xff odd\n")
    output.shut()
    output.join(30)
    assert heard == ["\ufffd odd\n"]
    ending = JvmOutput(heard.append)
    ending.is_silent = True
    os.write(ending.entrance, NEWS.encode())
    ending.shut()
    ending.join(30)
    assert heard == ["\ufffd odd\n"]


def test_a_line_that_cannot_be_written_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the log's disk is full for a while, later lines are written again."""
    written: list[str] = []
    refused = threading.Event()

    class Disk:
        def write(self, text: str) -> None:
            """Write a line, the first one in vain."""
            if not refused.is_set():
                refused.set()
                raise OSError(errno.ENOSPC, "No space left on device")
            written.append(text)

        def flush(self) -> None:
            """Do nothing."""

    monkeypatch.setattr("sys.stderr", Disk())
    output = JvmOutput(as_it_is)
    os.write(output.entrance, b"one\n")
    assert refused.wait(60)
    os.write(output.entrance, b"two\n")
    output.shut()
    output.join(60)
    assert written == ["two\n"]


def test_a_json_log_has_no_other_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON lines pass unchanged, and each other line becomes a log event."""
    ready = '{"level":"WARN","msg":"said by Spark"}\n'
    with capture_logs() as said:
        for line in (ready, *NEWS.splitlines(keepends=True), "Caused by: it\n"):
            as_log(line)
    assert capsys.readouterr().err == ready
    assert [(each["log_level"], each["event"]) for each in said] == [
        ("warning", NEWS.splitlines()[0]),
        ("warning", "java.lang.IllegalStateException: it is"),
        ("warning", "\tat a.b.C"),
        ("error", "Caused by: it"),
    ]
