"""Starts Spark's JVM, and gives up one that hangs before it is ready.

PySpark's `launch_gateway` waits until the JVM has written its port into a file, or has ended with
an exit code other than 0; it waits for ever for a JVM that does neither. So a timer ends the
processes of such a start, and writes an empty file, on which PySpark's wait ends.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from muster.streams.errors import QueryFailed

LAUNCH_S = 300.0
"""How long the JVM may take. It needs seconds, on an overloaded machine a minute."""
_starting: list[Mapping[str, Any]] = []
"""The arguments of `Popen` of the start that is under way: none or one."""
_PORT_FILE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""Environment variable with the path of the file into which the JVM writes its port."""


def launched(settings: SparkConf, streams: dict[str, Any]) -> Any:  # noqa: ANN401  # py4j's
    """The gateway to a JVM that was started with these settings; `streams`: arguments of `Popen`.

    Whatever ends the start, Ctrl-C too, ends its processes.

    Raises:
        QueryFailed: the JVM was not ready within `LAUNCH_S`.
        PySparkRuntimeError: it ended.
    """
    gave_up = threading.Event()

    def give_up() -> None:
        gave_up.set()
        end_starts()

    timer = threading.Timer(LAUNCH_S, give_up)
    timer.daemon = True
    timer.start()
    _starting.append(streams)
    try:
        gateway = launch_gateway(settings, streams)  # type: ignore[no-untyped-call]  # Spark's own
    except BaseException as error:
        end_starts()
        if gave_up.is_set() and isinstance(error, Exception):
            raise QueryFailed(
                f"Spark's JVM was not ready within {LAUNCH_S:g} s and was ended; what it printed "
                "is above. Is the machine overloaded, or its disk or its host name's server silent?"
            ) from None
        raise
    finally:
        timer.cancel()
        _starting.clear()
    return gateway


def end_starts() -> None:
    """Kill the processes of a start that is under way, and end PySpark's wait for them.

    They do not end with this process: the JVM looks at its parent only when it is ready.
    """
    for streams in _starting:
        path = streams.get("env", {}).get(_PORT_FILE)
        if path is not None:
            _end(path)


def _end(path: str) -> None:
    """Kill the processes that have the path of this port's file in their environment.

    They are spark-submit, which becomes the JVM, and the JVM that composes its command. Where there
    is no ``/proc``, only PySpark's wait ends.
    """
    mark = os.fsencode(f"{_PORT_FILE}={path}")
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is another user's
            if mark in environment.read_bytes().split(b"\0"):
                os.kill(int(environment.parent.name), signal.SIGKILL)
    with suppress(OSError):
        Path(path).touch()
