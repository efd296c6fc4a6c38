"""A real Kafka in one process: KRaft, one node, from the published jars; no Docker, no install.

For tests, demos and laptops. `EmbeddedKafka` starts the JVM, waits until the broker answers the
Kafka protocol (not until a log line says so), and ends it when it is closed or when this process
ends, even by SIGKILL (`ends_with_parent.py`). A broker that is stopped and started again has the
same port and the same data.

Its data directory holds ``server.properties``, ``kafka.log`` and ``logs/``. Without a directory
given, it makes a temporary one and removes it at the end.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from muster.broker.ends_with_parent import Tethered
from muster.broker.errors import BrokerFailed
from muster.broker.jars import jars
from muster.broker.java import java

VERSION = "4.3.1"
HOST = "127.0.0.1"
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20
PORT_ATTEMPTS = 5
LOG_TAIL = 12
"""Lines of the broker's log shown in an error; stack frames do not count."""

JVM_OPTIONS = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
)
QUICK_JVM_OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""For the short-lived tool that formats the data directory."""

PROPERTIES: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "auto.create.topics.enable": "false",
    # One node: nothing can be replicated.
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Small and quick.
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "16777216",
    # A killed broker can register again only after its old session has ended.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
}
"""Settings of every embedded broker; the caller's properties override them."""

LOG_CONFIG = """\
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c: %m%n
"""


class EmbeddedKafka:
    """One embedded Kafka node; a context manager. Its port is known once it is started."""

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        format_arguments: Sequence[str] = (),
        client: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = JVM_OPTIONS,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            data_dir: data directory, kept; None = a temporary one that `close` removes.
            port: where clients connect; None = a free one.
            properties: more of ``server.properties`` (listeners, SASL, ACLs, ...). ``{port}`` and
                ``{controller_port}`` in a value stand for the ports chosen.
            format_arguments: more arguments for ``kafka-storage format`` (``--add-scram ...``).
            client: client settings that the readiness check needs (librdkafka's names).
            jvm_options: of the broker's JVM.

        Raises:
            BrokerFailed: no temporary folder can be made.
        """
        self._thrown_away = data_dir is None
        self.data_dir = Path(data_dir or temporary_folder("muster-kafka-")).resolve()
        self.port = port
        self._chosen_port = port
        self._properties = dict(properties or {})
        self._format_arguments = tuple(format_arguments)
        self._client = dict(client or {})
        self._jvm_options = tuple(jvm_options)
        self._controller_port: int | None = None
        self._process: Tethered | None = None
        self._log_start = 0

    @property
    def bootstrap_server(self) -> str:
        """``HOST:PORT`` for clients."""
        return f"{HOST}:{self.port}"

    @property
    def log_file(self) -> Path:
        """The broker's log."""
        return self.data_dir / "kafka.log"

    @property
    def pid(self) -> int | None:
        """Process id of the JVM; None when it is not running."""
        return self._process.pid if self.running and self._process else None

    @property
    def running(self) -> bool:
        """Whether the JVM runs."""
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_s: float = START_TIMEOUT_S) -> EmbeddedKafka:
        """Start it and wait until it answers. After `stop`: with the same port and data.

        Raises:
            BrokerFailed: it did not start; the message ends with the last lines of its log, or
                says why nothing can be written into the data directory.
            JarsError, JavaNotFound: its jars or Java are missing.
        """
        if self.running:
            return self
        if "," in str(self.data_dir):
            raise BrokerFailed(f"{self.data_dir}: Kafka accepts no comma in its data directory")
        with self._folder_faults_named():
            self.data_dir.mkdir(parents=True, exist_ok=True)
            self.log_file.open("ab").close()
        for attempt in range(1, PORT_ATTEMPTS + 1):
            may_choose = self._choose_ports()
            try:
                self._launch(timeout_s)
                return self
            except BrokerFailed as error:
                taken = "already in use" in str(error)
                if not (taken and may_choose and attempt < PORT_ATTEMPTS):
                    raise
                # Another process was quicker: choose again.
                self.port = self._controller_port = None
        raise AssertionError("unreachable")

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Shut it down in order (SIGTERM, SIGKILL after `timeout_s`). Data and port stay."""
        if self._process is not None:
            self._process.stop(timeout_s)
            self._process = None

    def kill(self) -> None:
        """Send SIGKILL, as if the broker crashed. Data and port stay."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def freeze(self) -> None:
        """Send SIGSTOP: the broker accepts connections and does not answer."""
        if self._process is not None:
            self._process.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT."""
        if self._process is not None:
            self._process.send(signal.SIGCONT)

    def wait(self) -> BrokerFailed:
        """Wait until it ends by itself; return the error that describes it."""
        code = self._process.wait() if self._process is not None else 0
        return self._failure(f"Kafka ended by itself with exit code {code}")

    def close(self) -> None:
        """Stop it; a temporary data directory is removed. Idempotent."""
        try:
            self.stop()
        finally:
            if self._thrown_away:
                shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> EmbeddedKafka:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ starting

    def _choose_ports(self) -> bool:
        """Choose both ports. Return whether others may be chosen if one of them is taken."""
        may_choose = self._controller_port is None
        if self.port is None:
            self.port = free_port()
        if self._controller_port is None:
            self._controller_port = free_port(besides=self.port)
        return may_choose and self._chosen_port is None

    def _launch(self, timeout_s: float) -> None:
        with self._folder_faults_named():
            config = self._write_config()
        self._log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
        if not (self.data_dir / "logs" / "meta.properties").exists():
            self._format(config)
        with self.log_file.open("ab") as log:
            self._process = self._java(self._jvm_options, ["kafka.Kafka", str(config)], log)
        try:
            self._await_answer(timeout_s)
        except BaseException:
            self.kill()
            raise

    @contextmanager
    def _folder_faults_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BrokerFailed(f"{self.data_dir} cannot be written ({error.strerror})") from None

    def _write_config(self) -> Path:
        (self.data_dir / "log4j2.properties").write_text(LOG_CONFIG)
        ports = {"port": str(self.port), "controller_port": str(self._controller_port)}
        listeners = {
            "listeners": "PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}",
            "advertised.listeners": "PLAINTEXT://{host}:{port}",
            "controller.quorum.voters": "1@{host}:{controller_port}",
            "log.dirs": str(self.data_dir / "logs").replace("\\", r"\\"),
        }
        lines = [
            f"{key}={_filled(value, {'host': HOST, **ports})}"
            for key, value in {**PROPERTIES, **listeners, **self._properties}.items()
        ]
        config = self.data_dir / "server.properties"
        config.touch(mode=0o600)  # may hold passwords
        config.write_text("".join(f"{_in_ascii(line)}\n" for line in lines))
        return config

    def _format(self, config: Path) -> None:
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        cluster = cluster.replace("-", "_")  # a leading dash would be taken for an option
        words = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)]
        with self.log_file.open("ab") as log:
            tool = self._java(QUICK_JVM_OPTIONS, [*words, *self._format_arguments], log)
            with tool:
                code = tool.wait(START_TIMEOUT_S)
        if code != 0:
            raise self._failure(f"Kafka cannot format its data directory (exit code {code})")

    def _java(self, options: Sequence[str], words: Sequence[str], log: IO[bytes]) -> Tethered:
        class_path = os.pathsep.join(map(str, jars("kafka")))
        settings = [
            f"-Dlog4j2.configurationFile={(self.data_dir / 'log4j2.properties').as_uri()}",
            f"-Dkafka.logs.dir={self.data_dir}",
        ]
        return Tethered(
            [str(java()), *options, *settings, "-cp", class_path, *words],
            output=log,
            grace_s=STOP_TIMEOUT_S,
            sweep=self.data_dir if self._thrown_away else None,
        )

    def _await_answer(self, timeout_s: float) -> None:
        """Wait until the broker lists itself, which it does once it serves clients.

        The cluster id distinguishes it from another broker that already has the port.
        """
        meta = (self.data_dir / "logs" / "meta.properties").read_text()
        cluster = meta.partition("cluster.id=")[2].split()[0]
        deadline = time.monotonic() + timeout_s
        admin = AdminClient(
            {
                "bootstrap.servers": self.bootstrap_server,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
                **self._client,
            }
        )
        while True:
            assert self._process is not None
            code = self._process.poll()
            if code is not None:
                raise self._failure(f"Kafka did not start, it ended with exit code {code}")
            reason = f"port {self.port} belongs to another cluster"
            try:
                answer = admin.list_topics(timeout=0.5)
                if answer.brokers and answer.cluster_id == cluster:
                    return
            except KafkaException as error:
                reason = error.args[0].str()
            if time.monotonic() >= deadline:
                raise self._failure(
                    f"Kafka did not start, no answer within {timeout_s:g} s ({reason})"
                )
            time.sleep(0.02)

    def _failure(self, what: str) -> BrokerFailed:
        with self.log_file.open(errors="replace") as log:
            log.seek(self._log_start)
            lines = [line.rstrip() for line in log if not line.startswith("\tat ")]
        tail = "\n".join(f"  {line}" for line in lines[-LOG_TAIL:]) or "  (nothing)"
        path = "" if self._thrown_away else f" ({self.log_file})"
        return BrokerFailed(f"{what}; its log{path} ends with\n{tail}")


def _filled(value: str, variables: Mapping[str, str]) -> str:
    """Replace ``{port}`` and the other variables; keep other braces (JAAS, regular expressions)."""
    for name, text in variables.items():
        value = value.replace(f"{{{name}}}", text)
    return value


def _in_ascii(line: str) -> str:
    """A line of a properties file, which Java reads as Latin-1: other characters are escaped."""
    units = line.encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)


def temporary_folder(prefix: str) -> Path:
    """A new folder among the system's temporary files.

    Raises:
        BrokerFailed: none can be made.
    """
    try:
        return Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        raise BrokerFailed(
            f"no temporary folder can be made ({error.strerror}); set TMPDIR to a folder on a disk "
            "with free space that can be written"
        ) from None


def free_port(besides: int | None = None) -> int:
    """A TCP port on the loopback address that no process listens on.

    It lies below the range the system uses for outgoing connections. A port within that range could
    be taken by any client while the broker is stopped, and its restart would fail.
    """
    low, high = 20_000, min(_first_ephemeral_port(), 60_000)
    candidates = random.sample(range(low, high), k=min(200, max(high - low, 0)))
    for port in [*candidates, 0]:
        if port == besides:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise BrokerFailed(f"no free port on {HOST}")


def _first_ephemeral_port() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
        return int(text.split()[0])
    except (OSError, ValueError, IndexError):
        return 49_152  # IANA's, and macOS's
