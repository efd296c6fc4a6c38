"""The coordinator in a process of its own, as an operator would start it.

`Job` runs ``python -m muster.streams.job`` in a temporary folder (started from the checkout,
Spark's workers would find the checkout's folders first). It is ready when its ``/readyz`` says so.
"""

from __future__ import annotations

import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.kafka.brokers import Topics
from support.suite.waiting import PATIENCE_S, until

from muster.broker.embedded_kafka import free_port
from muster.broker.ends_with_parent import Tethered

START_TIMEOUT_S = 240.0
LOG_TAIL = 40
COMMAND = (sys.executable, "-m", "muster.streams.job")


class Job:
    """One coordinator; a context manager that leaves no process behind.

    Attributes:
        topics: where it reads and writes.
        checkpoint: its checkpoint folder, unless that is a URL.
        log_file: what it says.
    """

    def __init__(
        self,
        topics: Topics,
        folder: Path,
        *,
        checkpoint: Path | str | None = None,
        conf: Sequence[str] = (),
        command: Sequence[str] = COMMAND,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            topics: where it reads and writes.
            folder: its log, and the folder it runs in.
            checkpoint: folder or URL; None = a folder of its own in `folder`.
            conf: settings, as ``--conf`` takes them.
            command: what starts it, its options excepted.
            env: its environment; None = ours.
        """
        self.topics = topics
        self.checkpoint = Path(checkpoint or folder / "checkpoint")
        self.log_file = folder / "job.log"
        self._folder = folder
        self._url = str(checkpoint or self.checkpoint)
        self._conf = tuple(conf)
        self._command = tuple(command)
        self._env = env
        self._port = free_port()
        self._process: Tethered | None = None

    def start(self, *, wait: bool = True) -> Job:
        """Start it; if `wait`, return when the query runs."""
        self._folder.mkdir(parents=True, exist_ok=True)
        conf = [f"muster.metrics.port={self._port}", "muster.metrics.host=127.0.0.1", *self._conf]
        command = [
            *self._command,
            *("--bootstrap-server", self.topics.address),
            *("--topic-prefix", self.topics.prefix),
            *("--checkpoint", self._url),
            *(word for setting in conf for word in ("--conf", setting)),
        ]
        with self.log_file.open("ab") as log:
            self._process = Tethered(command, output=log, cwd=self._folder, env=self._env)
        if wait:
            self.await_ready()
        return self

    def await_ready(self) -> None:
        """Wait until the query runs.

        Raises:
            AssertionError: it ended instead; with the last lines of its log.
        """
        until(self._is_ready, "the job is ready", timeout_s=START_TIMEOUT_S, story=self.tail)

    def _is_ready(self) -> bool:
        if self.poll() is not None:
            raise AssertionError(f"the job ended with exit code {self.poll()}\n{self.tail()}")
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a page of its metrics port."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=5) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    @property
    def url(self) -> str:
        """Address of its metrics port."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Process id of the started command."""
        assert self._process is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; return the exit code."""
        assert self._process is not None
        self._process.send(number)
        return self.wait()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for its end; return the exit code."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except TimeoutError:
            raise AssertionError(f"the job did not end in {timeout_s} s\n{self.tail()}") from None

    def kill(self) -> None:
        """Send SIGKILL to the driver, its JVM and its Python workers, like a lost machine."""
        assert self._process is not None
        if self._process.poll() is None:
            family = psutil.Process(self._process.pid).children(recursive=True)
            for one in [psutil.Process(self._process.pid), *family]:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            psutil.wait_procs(family, timeout=10)
        self._process.kill()

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log_file.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL:])

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()


@pytest.fixture(scope="module")
def job(kafka: Topics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A running coordinator, shared by the tests of a module."""
    with Job(kafka, tmp_path_factory.mktemp("job")) as job:
        yield job.start()
