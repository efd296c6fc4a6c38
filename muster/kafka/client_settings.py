"""Settings of Kafka clients, translated between the two clients that muster uses.

Spark uses the Java client, everything else librdkafka (confluent-kafka). Users write their settings
once, under either client's names: in a ``--command-config FILE.properties`` as Kafka's own tools
take it, or as ``kafka.`` keys of a config. Most names are shared and pass through unchanged; the
tables below have the others (SASL logins and TLS stores). A setting that the other client does not
have is an error that names the key.

This module opens no connection and imports neither client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import javaproperties

from muster.protocol.errors import ConfigError

DEFAULT_BOOTSTRAP = "localhost:9092"
BOOTSTRAP = "bootstrap.servers"
_ADDRESS = re.compile(r"(\w+://)?(\[[^\[\]]+\]|[^\s:\[\]]+)(?::(\d+))?")
"""The parts: protocol, which librdkafka accepts; IPv6 address in brackets, or host; port."""
PORT_MAX, PORT_DIGITS_MAX = 65_535, 5
RdKafkaValue: TypeAlias = str | int | float | bool
HOST_CHECK = "ssl.endpoint.identification.algorithm"
"""To turn it off, Java takes an empty value, librdkafka ``none``."""
HIDDEN = "(hidden)"
SECRET_CHARS_MIN = 4
"""Shorter secrets are not replaced in texts: they would match parts of ordinary words."""

PRODUCER: Mapping[str, str] = {
    # Every client must agree on a key's partition, the Java client and Spark among them.
    "partitioner": "murmur2_random",
    "enable.idempotence": "true",
    "acks": "all",
    "linger.ms": "0",
    "reconnect.backoff.max.ms": "1000",
    # When a topic is given more partitions, its keys belong to other partitions.
    "topic.metadata.refresh.interval.ms": "10000",
}
"""Defaults of every producer, under librdkafka's names; users may change all but the first."""

HIDDEN_NAMES = (
    r"password|passphrase|secret|jaas|token(?!\.endpoint)|access\.?key|keystore\.key|key\.pem"
)
"""Settings whose values are never shown; the pattern means the same in Python and Java."""
_SECRET = re.compile(HIDDEN_NAMES, re.I)

_JAVA_ONLY = re.compile(
    r"""ssl\.(protocol|provider|enabled\.protocols|truststore\.\w+
        |keystore\.(type|key|certificate\.chain|location|password)|engine\.factory\.class
        |(key|trust)manager\.algorithm|secure\.random\.implementation)
    |sasl\.(jaas\.config|login\..*|client\.callback\.handler\.class|kerberos\.kinit\.cmd
        |kerberos\.ticket\..*|kerberos\.min\.time\..*|oauthbearer\.(jwks|clock|expected|scope\.claim
        |sub\.claim|header|jwt\.retriever|jwt\.validator).*)
    |(key|value)\.(de)?serializer|interceptor\.classes|metric\.reporters|metrics\..*
    |default\.api\.timeout\.ms|max\.block\.ms|buffer\.memory|auto\.include\.jmx\.reporter
    |(send|receive)\.buffer\.bytes""",
    re.X,
)
"""Keys that only the Java client has. librdkafka would refuse them, so they are left out."""

_JAAS_TO_RDKAFKA: Mapping[str, str] = {
    "username": "sasl.username",
    "password": "sasl.password",
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
    "keyTab": "sasl.kerberos.keytab",
    "principal": "sasl.kerberos.principal",
}
_RDKAFKA_TO_JAAS = {rdkafka: jaas for jaas, rdkafka in _JAAS_TO_RDKAFKA.items()}

_LOGIN_MODULES: Mapping[str, str] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
}

_PEM_TO_RDKAFKA: Mapping[str, str] = {
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
"""Java's PEM stores -> librdkafka. (A keystore *file* is both a certificate and a key there.)"""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How to reach a Kafka cluster, as the user gave it. `repr` hides secrets.

    Attributes:
        values: key -> value as given, including ``bootstrap.servers``.
    """

    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        """The cluster's address, ``HOST:PORT[,...]``."""
        return self.values.get(BOOTSTRAP, DEFAULT_BOOTSTRAP)

    def librdkafka(self, more: Mapping[str, RdKafkaValue] | None = None) -> dict[str, RdKafkaValue]:
        """Settings for confluent-kafka's clients; `more` overrides the user's values.

        Raises:
            ConfigError: a setting that librdkafka does not have (such as a JKS store).
        """
        values = {BOOTSTRAP: self.bootstrap, **self.values}
        plain = {k: v for k, v in values.items() if not _JAVA_ONLY.fullmatch(k)}
        return {**plain, **_sasl_for_rdkafka(values), **_tls_for_rdkafka(values), **(more or {})}

    def producer(self, more: Mapping[str, RdKafkaValue] | None = None) -> dict[str, RdKafkaValue]:
        """Settings for confluent-kafka's Producer: `PRODUCER`, the user's values, then `more`."""
        chosen = {**PRODUCER, **self.librdkafka(more)}
        return {**chosen, "partitioner": PRODUCER["partitioner"]}

    def reader(
        self, group: str, more: Mapping[str, RdKafkaValue] | None = None
    ) -> dict[str, RdKafkaValue]:
        """Settings for a confluent-kafka Consumer that is assigned partitions and commits nothing.

        librdkafka demands a group id; such a consumer never uses it.
        """
        return self.librdkafka({"group.id": group, "enable.auto.commit": False, **(more or {})})

    def java(self) -> dict[str, str]:
        """Settings for the Java client.

        Raises:
            ConfigError: a setting that the Java client does not have.
        """
        values = {BOOTSTRAP: self.bootstrap, **self.values}
        plain = {k: v for k, v in values.items() if not _RDKAFKA_ONLY.fullmatch(k)}
        return {**plain, **_sasl_for_java(values), **_tls_for_java(values)}

    def spark(self) -> dict[str, str]:
        """Settings for Spark's Kafka source and sink: `java`, each key prefixed with ``kafka.``."""
        return {f"kafka.{key}": value for key, value in self.java().items()}

    def hidden(self, text: str) -> str:
        """A text of a client (an error, a log line), with the secrets in these values hidden."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text

    def _secrets(self) -> set[str]:
        secrets = {key: str(value) for key, value in self.values.items() if is_secret(key)}
        jaas = secrets.pop("sasl.jaas.config", "")
        texts = set(secrets.values())
        for name, quoted, single, bare in _JAAS_OPTION.findall(jaas):
            if is_secret(name):
                texts |= {quoted, re.sub(r"\\(.)", r"\1", quoted), single, bare}
        return {text for text in texts if len(text) >= SECRET_CHARS_MIN}

    def __repr__(self) -> str:
        return f"ClientSettings({redacted(self.values)})"


def client_settings(
    bootstrap: str | None = None,
    command_config: str | Path | None = None,
    kafka: Mapping[str, str] | None = None,
) -> ClientSettings:
    """Collect settings: a Java properties file, then `kafka`, then `bootstrap`.

    The prefix ``kafka.`` of a key is dropped.

    Raises:
        ConfigError: the file cannot be read, or an address is malformed.
    """
    values = {} if command_config is None else read_properties(command_config)
    for key, value in (kafka or {}).items():
        values[key.removeprefix("kafka.")] = value
    if bootstrap is not None:
        values[BOOTSTRAP] = bootstrap
    _check_addresses(values.get(BOOTSTRAP, DEFAULT_BOOTSTRAP))
    return ClientSettings(values)


def _check_addresses(bootstrap: str) -> None:
    """Refuse an address that no client can read; they would wait for its answer."""
    addresses = [address.strip() for address in bootstrap.split(",")]
    for address in filter(None, addresses) if any(addresses) else addresses:
        match = _ADDRESS.fullmatch(address)
        if match is None:
            accepted = "HOST:PORT, several with commas between; IPv6 as [::1]:9092"
            raise ConfigError(BOOTSTRAP, address, accepted)
        port = match[3]  # librdkafka would use only its lower 16 bits
        if port and (len(port) > PORT_DIGITS_MAX or not 1 <= int(port) <= PORT_MAX):
            raise ConfigError(BOOTSTRAP, address, f"a port from 1 to {PORT_MAX}")


def read_properties(path: str | Path) -> dict[str, str]:
    """Read a Java properties file; the prefix ``kafka.`` of a key is dropped.

    Raises:
        ConfigError: the file cannot be read, or is no properties file.
    """
    try:
        with Path(path).open(encoding="utf-8") as lines:
            properties = javaproperties.load(lines)
    except OSError as error:
        problem = f"a readable properties file ({error.strerror})"
        raise ConfigError("--command-config", str(path), problem) from None
    except ValueError as error:
        problem = f"a properties file, UTF-8 ({error})"
        raise ConfigError("--command-config", str(path), problem) from None
    return {str(key).removeprefix("kafka."): str(value) for key, value in properties.items()}


def is_secret(key: str) -> bool:
    """Whether a setting's value must never be printed."""
    return _SECRET.search(key) is not None


def redacted(values: Mapping[str, object]) -> dict[str, object]:
    """The settings with every secret hidden: for logs, errors and `repr`."""
    return {key: HIDDEN if is_secret(key) else value for key, value in values.items()}


# ---------------------------------------------------------------- Java's names -> librdkafka's

_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;]+))""")


def _sasl_for_rdkafka(values: Mapping[str, str]) -> dict[str, str]:
    jaas = values.get("sasl.jaas.config")
    if jaas is None:
        return {}
    settings = {
        _JAAS_TO_RDKAFKA[name]: re.sub(r"\\(.)", r"\1", quoted) or single or bare
        for name, quoted, single, bare in _JAAS_OPTION.findall(jaas)
        if name in _JAAS_TO_RDKAFKA
    }
    if not settings:
        accepted = 'a login such as ...LoginModule required username="U" password="P";'
        raise ConfigError("sasl.jaas.config", HIDDEN, accepted)
    if "sasl.oauthbearer.client.id" in settings:
        settings["sasl.oauthbearer.method"] = "oidc"
    return settings


def _tls_for_rdkafka(values: Mapping[str, str]) -> dict[str, str]:
    settings = {HOST_CHECK: "none"} if values.get(HOST_CHECK) == "" else {}
    if "ssl.ca.location" not in values:
        _refuse_binary_store(values, "ssl.truststore")
        settings |= {new: values[old] for old, new in _PEM_TO_RDKAFKA.items() if old in values}
    store = values.get("ssl.keystore.location")
    kind = values.get("ssl.keystore.type", "JKS").upper()
    if store is not None and kind == "PEM":
        settings |= {"ssl.certificate.location": store, "ssl.key.location": store}
    elif store is not None and kind == "PKCS12":
        settings |= {
            k: values[k] for k in ("ssl.keystore.location", "ssl.keystore.password") if k in values
        }
    elif store is not None:
        raise ConfigError("ssl.keystore.type", kind, "PEM or PKCS12; librdkafka reads no JKS")
    return settings


def _refuse_binary_store(values: Mapping[str, str], store: str) -> None:
    kind = values.get(f"{store}.type", "JKS").upper()
    if f"{store}.location" in values and kind != "PEM":
        accepted = "PEM (or ssl.ca.location beside it); librdkafka reads no JKS or PKCS12 trust"
        raise ConfigError(f"{store}.type", kind, accepted)


# ---------------------------------------------------------------- librdkafka's names -> Java's

_RDKAFKA_ONLY = re.compile(
    r"""sasl\.(username|password|mechanisms|kerberos\.(keytab|principal)
        |oauthbearer\.(method|client\.id|client\.secret|scope|config))
    |ssl\.(ca|certificate|key)\.(location|pem)
    |partitioner|debug|log_level|statistics\.interval\.ms|socket\..*|broker\..*|queue\..*
    |enable\.ssl\.certificate\.verification|topic\.metadata\..*""",
    re.X,
)
"""Keys that only librdkafka has. The Java client would warn about them, so they are left out."""


def _sasl_for_java(values: Mapping[str, str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    mechanism = values.get("sasl.mechanism", values.get("sasl.mechanisms"))
    if mechanism is not None:
        settings["sasl.mechanism"] = mechanism
    options = {jaas: values[key] for key, jaas in _RDKAFKA_TO_JAAS.items() if key in values}
    if not options or "sasl.jaas.config" in values:
        return settings
    module = _LOGIN_MODULES.get((mechanism or "").upper())
    if module is None:
        raise ConfigError("sasl.mechanism", mechanism, f"one of {', '.join(_LOGIN_MODULES)}")
    if "keyTab" in options:
        options["useKeyTab"] = "true"
    login = " ".join(f"{name}={_quoted(value)}" for name, value in options.items())
    settings["sasl.jaas.config"] = f"{module} required {login};"
    return settings


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _tls_for_java(values: Mapping[str, str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    if values.get("enable.ssl.certificate.verification", "true").lower() == "false":
        key = "enable.ssl.certificate.verification"
        raise ConfigError(key, "false", "true; the Java client of Spark always verifies")
    if not any(key.startswith("ssl.truststore.") for key in values):
        authority = {"ssl.ca.location": "location", "ssl.ca.pem": "certificates"}
        stores = {
            f"ssl.truststore.{name}": values[k] for k, name in authority.items() if k in values
        }
        settings |= {**stores, "ssl.truststore.type": "PEM"} if stores else {}
    if values.get(HOST_CHECK) == "none":
        settings[HOST_CHECK] = ""
    return {**settings, **_keystore_for_java(values)}


def _keystore_for_java(values: Mapping[str, str]) -> dict[str, str]:
    if any(key.startswith("ssl.keystore.") for key in values):
        return {}
    certificate, key = values.get("ssl.certificate.location"), values.get("ssl.key.location")
    if certificate is not None:
        if certificate != key:
            accepted = "one PEM file with key and certificates, named by both keys: Java reads one"
            raise ConfigError("ssl.certificate.location", certificate, accepted)
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": certificate}
    if "ssl.certificate.pem" in values:
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": values["ssl.certificate.pem"],
            "ssl.keystore.key": values.get("ssl.key.pem", ""),
        }
    return {}
