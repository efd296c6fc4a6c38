"""Kafka's released assignors for comparison: compiles `bench/java` and talks to it.

`Kafka` is a running JVM that answers problems (`docs/formats.md`), one a line. A question may take
at most `timeout_s` of CPU time, warm-up and repeats included, and ten times that of elapsed time. A
JVM that does not answer in time is killed, and the next question starts a new one.

The jars are the set ``bench`` of the lock file (`muster.broker.jars`), downloaded once.
"""

from __future__ import annotations

import hashlib
import json
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from muster.broker.jars import cache_dir, jars

SOURCES = Path(__file__).parent / "java"
MEMORY = "3g"


class Slow(Exception):
    """Kafka did not answer in time."""


def compiled(path: str) -> Path:
    """The folder of the compiled harness; compiles if a source has changed."""
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(s.read_bytes() for s in sources)).hexdigest()[:16]
    target = cache_dir() / "bench" / digest
    if not target.exists():
        partial = target.with_suffix(f".{os.getpid()}")
        command = ["javac", "-nowarn", "-cp", path, "-d", str(partial), *map(str, sources)]
        subprocess.run(command, check=True)
        try:
            partial.rename(target)
        except OSError:  # another process was faster
            shutil.rmtree(partial)
    return target


class Kafka:
    """A JVM with Kafka's assignors; a context manager."""

    def __init__(self, timeout_s: float = 60) -> None:
        self.timeout_s = timeout_s
        path = os.pathsep.join(map(str, jars("bench")))
        self._command = ["java", f"-Xmx{MEMORY}", "-cp", f"{compiled(path)}{os.pathsep}{path}"]
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def __enter__(self) -> Kafka:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the JVM."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
            self._rest = b""

    def ask(self, name: str, problem: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """The answer of a class of `Harness.java`, in the form of an answer of `muster assign`.

        There is `more` to ask: `repeat`, `warmup_ms`, `session`, `before`, `delivered`,
        `config_offset`.

        Raises:
            Slow: no answer within `timeout_s`.
            RuntimeError: Kafka's class failed; its message.
        """
        answer = self._talk(json.dumps({"kafka": name, "problem": problem, **more}).encode())
        if answer.get("error") not in (None, "CONFIG_MISMATCH"):
            raise RuntimeError(f"{name}: {answer['error']}")
        return answer

    def _talk(self, line: bytes) -> dict[str, Any]:
        process = self._process or self._start()
        assert process.stdin is not None
        begun, end = self._spent_s(process), time.monotonic() + 10 * self.timeout_s
        process.stdin.write(line + b"\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ)
            chunks = [self._rest]
            while b"\n" not in chunks[-1]:
                while not selector.select(1):
                    if self._spent_s(process) > begun + self.timeout_s or time.monotonic() > end:
                        self.close()
                        raise Slow
                chunk = os.read(process.stdout.fileno(), 1 << 20)
                if not chunk:
                    self.close()
                    raise RuntimeError("the JVM ended")
                chunks.append(chunk)
        line, _, self._rest = b"".join(chunks).partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @staticmethod
    def _spent_s(process: subprocess.Popen[bytes]) -> float:
        spent = psutil.Process(process.pid).cpu_times()
        return float(spent.user + spent.system)

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [*self._command, "muster.bench.Harness"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # slf4j warns that it has no logger
        )
        return self._process
