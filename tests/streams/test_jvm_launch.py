"""The start of Spark's JVM: one that hangs is given up, and no process of it is left."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError
from support.suite.waiting import until

from muster.streams import job, jvm_launch
from muster.streams.errors import QueryFailed

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What PySpark starts instead of Spark: a script, to be written."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    script = tmp_path / "bin" / "spark-submit"
    script.parent.mkdir()
    script.touch(mode=0o755)
    yield script
    gc.collect()
    until(has_forgotten_all, "the processes that PySpark has lost are forgotten")


def has_forgotten_all() -> bool:
    """Whether `subprocess` knows of no lost process; one would warn later, in another test."""
    subprocess._cleanup()
    return not subprocess._active


def hanging(submit: Path, tmp_path: Path) -> list[Path]:
    """Have the script hang, and a child of it; returns the files for their process ids."""
    files = [tmp_path / "pid", tmp_path / "child"]
    submit.write_text(
        f"#!/bin/sh\necho $$ > {files[0]}\nsleep 1000 &\necho $! > {files[1]}\nwait\n"
    )
    return files


def are_gone(files: list[Path]) -> bool:
    """Whether none of these processes runs; one that ended may be a zombie."""
    states = [Path("/proc") / file.read_text().strip() / "stat" for file in files]
    return all(not s.exists() or s.read_text().rpartition(")")[2].split()[0] == "Z" for s in states)


def test_a_jvm_that_hangs(submit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has written its port: the start ends with the reason, and its processes end."""
    files = hanging(submit, tmp_path)
    monkeypatch.setattr(jvm_launch, "LAUNCH_S", 2.0)
    with pytest.raises(QueryFailed, match="not ready within 2 s"):
        jvm_launch.launched(SparkConf(loadDefaults=False), {})
    until(lambda: are_gone(files), "no process is left")


def test_a_jvm_that_ends_without_a_fault(submit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0 without a port, for which PySpark goes on waiting."""
    submit.write_text("#!/bin/sh\nexit 0\n")
    monkeypatch.setattr(jvm_launch, "LAUNCH_S", 0.5)
    with pytest.raises(QueryFailed, match="not ready"):
        jvm_launch.launched(SparkConf(loadDefaults=False), {})


def test_a_process_that_ends_while_the_jvm_starts(
    submit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch of a stop signal ends the JVM before it ends the process."""
    files = hanging(submit, tmp_path)
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)

    def end() -> None:
        until(lambda: files[1].exists() and files[1].read_text(), "it hangs")
        job._end_process(0)

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises((PySparkRuntimeError, EOFError)):
        jvm_launch.launched(SparkConf(loadDefaults=False), {})
    thread.join()
    assert ended == [0]
    until(lambda: are_gone(files), "no process is left")


def test_ctrl_c_while_the_jvm_starts(submit: Path, tmp_path: Path) -> None:
    """The JVM ignores Ctrl-C, so its start is ended with this process' wait."""
    files = hanging(submit, tmp_path)

    def interrupt() -> None:
        until(lambda: files[1].exists() and files[1].read_text(), "it hangs")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        jvm_launch.launched(SparkConf(loadDefaults=False), {})
    thread.join()
    until(lambda: are_gone(files), "no process is left")
