"""A client that sends any request of Kafka's protocol: kafka-python, with muster's client settings.

librdkafka's admin client does not return a member's JoinGroup metadata (subscription, rack, owned
partitions) and supports neither Connect's workers nor KIP-1071's groups. kafka-python has the
requests themselves. The extra ``adopt`` installs it.
"""

from __future__ import annotations

import logging
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

from muster.errors import BadInput, Unreachable
from muster.kafka import access_check
from muster.kafka.access_check import Refused
from muster.kafka.client_settings import HOST_CHECK, ClientSettings, RdKafkaValue
from muster.protocol.errors import ConfigError

TIMEOUT_MS = 15_000
EXPLAIN_S = 5.0
"""How long librdkafka may take to find out why kafka-python does not connect."""
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")


def config(clients: ClientSettings) -> dict[str, Any]:
    """The settings of a client, under kafka-python's names.

    Raises:
        ConfigError: a login or store that kafka-python does not have; the message names the key.
    """
    settings = clients.librdkafka()
    protocol = str(settings.get("security.protocol", "PLAINTEXT")).upper()
    chosen: dict[str, Any] = {
        "bootstrap_servers": [each.strip() for each in clients.bootstrap.split(",")],
        "client_id": str(settings.get("client.id", "muster")),
        "security_protocol": protocol,
        "request_timeout_ms": TIMEOUT_MS,
        "bootstrap_timeout_ms": TIMEOUT_MS,
    }
    if protocol.startswith("SASL"):
        chosen |= _login(settings)
    if protocol.endswith("SSL"):
        chosen["ssl_context"] = _tls(settings)
        chosen["ssl_check_hostname"] = chosen["ssl_context"].check_hostname
    return chosen


def _login(settings: Mapping[str, RdKafkaValue]) -> dict[str, Any]:
    mechanism = str(
        settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "GSSAPI"))
    ).upper()
    if mechanism not in _MECHANISMS:
        raise ConfigError(
            "sasl.mechanism", mechanism, f"for this command one of {', '.join(_MECHANISMS)}"
        )
    login = {"sasl_mechanism": mechanism}
    if mechanism == "GSSAPI":
        service = settings.get("sasl.kerberos.service.name", "kafka")
        return {**login, "sasl_kerberos_service_name": str(service)}
    return {
        **login,
        "sasl_plain_username": str(settings.get("sasl.username", "")),
        "sasl_plain_password": str(settings.get("sasl.password", "")),
    }


def _tls(settings: Mapping[str, RdKafkaValue]) -> ssl.SSLContext:
    """The TLS context that librdkafka's settings describe."""
    text = {key: str(value) for key, value in settings.items() if key.startswith("ssl.")}
    try:
        context = ssl.create_default_context(
            cafile=text.get("ssl.ca.location"), cadata=text.get("ssl.ca.pem")
        )
        _own_certificate(context, text)
    except (OSError, ValueError) as error:
        raise ConfigError("ssl.*", "(certificates)", f"readable PEM files ({error})") from None
    if text.get(HOST_CHECK, "https").lower() == "none":
        context.check_hostname = False
    if str(settings.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _own_certificate(context: ssl.SSLContext, text: Mapping[str, str]) -> None:
    """Load the client's certificate and key; Python's ssl takes them from files only."""
    password = text.get("ssl.key.password")
    pem = text.get("ssl.certificate.pem", "")
    if "ssl.keystore.location" in text:
        store = Path(text["ssl.keystore.location"]).read_bytes()
        secret = text.get("ssl.keystore.password", "").encode() or None
        key, leaf, chain = pkcs12.load_key_and_certificates(store, secret)
        if key is None or leaf is None:
            raise ValueError("a key store without a key")
        own = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        parts = [own, *(each.public_bytes(Encoding.PEM) for each in (leaf, *chain))]
        pem, password = b"".join(parts).decode(), None
    elif pem:
        pem = f"{text.get('ssl.key.pem', '')}\n{pem}"
    if pem:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # mode 0600
            file.write(pem)
            file.flush()
            context.load_cert_chain(file.name, password=password)
    elif "ssl.certificate.location" in text:
        key_file = text.get("ssl.key.location")
        context.load_cert_chain(text["ssl.certificate.location"], key_file, password)


@contextmanager
def connected(clients: ClientSettings) -> Iterator[Any]:
    """A connected `kafka.KafkaAdminClient`, closed at the end.

    Raises:
        BadInput: a client setting is not accepted.
        Unreachable: no answer from Kafka.
        Refused: the login is refused, or a right is missing.
    """
    import kafka.errors as errors  # optional: the extra adopt
    from kafka import KafkaAdminClient

    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # errors are reported once, as errors
    client = None
    started_s = time.monotonic()
    try:
        client = KafkaAdminClient(**config(clients))
        yield client
    except errors.KafkaConfigurationError as error:
        raise BadInput(f"a client setting is not accepted: {_error_text(clients, error)}") from None
    except (errors.SaslAuthenticationFailedError, errors.AuthorizationError) as error:
        raise Refused(
            f"Kafka at {clients.bootstrap} refuses: {_error_text(clients, error)}; this needs"
            " DESCRIBE on the groups, on their topics and on the cluster"
        ) from None
    except errors.KafkaError as error:
        if client is None:
            _explain(clients, time.monotonic() - started_s)
        raise Unreachable(f"Kafka at {clients.bootstrap}: {_error_text(clients, error)}") from None
    finally:
        if client is not None:
            client.close()


def _explain(clients: ClientSettings, waited_s: float) -> None:
    """Raise what librdkafka says about a cluster to which kafka-python does not connect.

    kafka-python says only that it cannot bootstrap, also for a wrong port or security protocol. It
    has tried for `waited_s`.

    Raises:
        Unreachable, Refused: it does not connect either; the message says what is likely wrong.
    """
    try:
        access_check.reach(clients, EXPLAIN_S, waited_s)
    except access_check.Silent as error:
        raise Unreachable(str(error)) from None


def _error_text(clients: ClientSettings, error: Exception) -> str:
    name, text = type(error).__name__, str(error)
    return clients.hidden((text if text.startswith(name) else f"{name}: {text}")[:500])
