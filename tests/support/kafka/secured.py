"""A Kafka with authentication, TLS and ACLs.

TLS, SASL/SCRAM and, on a second listener, TLS client certificates; KRaft's `StandardAuthorizer`
denies whatever no ACL allows. Certificates are made here, by an authority of the test's own.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from support.suite.waiting import PATIENCE_S, until

from muster.broker.embedded_kafka import EmbeddedKafka, free_port
from muster.broker.ends_with_parent import Tethered
from muster.cli.main import main
from muster.kafka.acls import Role
from muster.kafka.client_settings import ClientSettings

ROOT = "root"
"""The super user, as a cluster's administrators have."""
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
EXPIRED = datetime(2021, 3, 4, 5, 6, 7, tzinfo=UTC)
"""When expired certificates expired."""
YEAR = timedelta(days=365)


class Authority:
    """Signs certificates and stores them in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("muster test authority")
        own = self._builder(self._name, self._key.public_key(), datetime.now(UTC) + YEAR)
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.file = folder / "authority.pem"
        self.file.write_bytes(_pem(own.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, until_: datetime | None = None) -> Path:
        """One PEM file with key and certificate, for a server or a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        ends = until_ or datetime.now(UTC) + YEAR
        asked = self._builder(_named(name), key.public_key(), ends)
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        asked = asked.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        asked = asked.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        file = self.folder / f"{name}.pem"
        file.touch(mode=0o600)
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        file.write_bytes(secret + _pem(asked.sign(self._key, hashes.SHA256())))
        return file

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, ends: datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(ends - 2 * YEAR)
            .not_valid_after(ends)
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


@dataclass
class SecuredKafka:
    """The broker and its users.

    Attributes:
        broker: the node.
        authority: who signed its certificate.
        certificate_port: where clients show a certificate instead of a password.
        passwords: by user.
    """

    broker: EmbeddedKafka
    authority: Authority
    certificate_port: int
    passwords: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The address where clients log in with a password."""
        return self.broker.bootstrap_server

    def properties(self, user: str, password: str | None = None) -> dict[str, str]:
        """Client settings of a user, under the Java client's names."""
        word = self.passwords[user] if password is None else password
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": f'{SCRAM} required username="{user}" password="{word}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.file),
        }

    def certified(self, certificate: Path) -> dict[str, str]:
        """Client settings of a client with a certificate."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self.certificate_port}",
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.file),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificate),
        }

    def file(self, user: str, password: str | None = None) -> Path:
        """`properties`, as a file for ``--command-config``."""
        return self.written(user, self.properties(user, password))

    def written(self, name: str, properties: dict[str, str]) -> Path:
        """Client settings as a file."""
        path = self.authority.folder / f"{name}-{secrets.token_hex(3)}.properties"
        path.touch(mode=0o600)
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return path

    def clients(self, user: str) -> ClientSettings:
        """`properties` as `ClientSettings`."""
        return ClientSettings(self.properties(user))

    def grant(self, prefix: str, **users: str) -> None:
        """Create topics and ACLs: role → user."""
        words = ["topics", "create", "--topic-prefix", prefix, "--partitions", "2", "--acls"]
        for role, user in users.items():
            words += [f"--{role}-principal", f"User:{user}"]
        assert main([*words, "--command-config", str(self.file(ROOT))]) == 0


class Command:
    """A `muster` command in its own process; a context manager that ends it.

    Attributes:
        log_file: all it says.
    """

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_file = folder / f"{words[0]}-{secrets.token_hex(3)}.log"
        with self.log_file.open("wb") as log:
            self._process = Tethered(
                [sys.executable, "-m", "muster.cli.main", *words],
                output=log,
                cwd=folder,
                env={**os.environ, **environment},
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def said(self) -> str:
        """Its output so far."""
        return self.log_file.read_text(errors="replace")

    def await_words(self, words: str) -> None:
        """Wait until its output has a text; fail if it ends first."""

        def heard() -> bool:
            there = words in self.said()
            assert there or self._process.poll() is None, f"ended without {words!r}: {self.said()}"
            return there

        until(heard, f"it says {words!r}", story=self.said)

    def runs(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Wait for its end; return the exit code."""
        return self._process.wait(PATIENCE_S)

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        self._process.send(signal.SIGTERM)
        return self.wait()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()


def passwords(users: Iterable[str]) -> dict[str, str]:
    """A password for each user, unlike any other printed text."""
    return {user: f"pw {user};={secrets.token_hex(8)}" for user in users}


@contextmanager
def secured_kafka(folder: Path, *users: str) -> Iterator[SecuredKafka]:
    """Start the broker; by default each role has a user of its name."""
    words = passwords((ROOT, *(users or tuple(Role))))
    authority = Authority(folder / "tls")
    port = free_port()
    login = f'{SCRAM} required username="{ROOT}" password="{words[ROOT]}";'
    server = {
        "listeners": "SASL_SSL://127.0.0.1:{port},SSL://127.0.0.1:" + str(port) + ","
        "CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": "SASL_SSL://127.0.0.1:{port},SSL://127.0.0.1:" + str(port),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL",
        "inter.broker.listener.name": "SASL_SSL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": login,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("broker")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.file),
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ROOT};User:ANONYMOUS",  # the latter: the controller's own listener
    }
    scram = [f'SCRAM-SHA-256=[name={user},password="{word}"]' for user, word in words.items()]
    given = [word for each in scram for word in ("--add-scram", each)]
    broker = EmbeddedKafka(properties=server, format_arguments=given)
    kafka = SecuredKafka(broker, authority, port, words)
    root = ClientSettings(kafka.properties(ROOT)).librdkafka()
    del root["bootstrap.servers"]
    broker._client = {str(key): str(value) for key, value in root.items()}
    with broker:
        yield kafka
