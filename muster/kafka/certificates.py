"""Finds certificates that have expired or are not valid yet.

The error of a failed TLS handshake does not name the certificate. So muster reads the certificates
of the connection from the client's files and settings, and from the brokers.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import pkcs12

from muster.kafka.client_settings import ClientSettings

HANDSHAKE_S = 3.0


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that a connection depends on.

    `where` it is: the setting and file, or the broker's address.
    """

    where: str
    subject: str
    not_before: datetime
    not_after: datetime

    def fault(self, now: datetime) -> str | None:
        """Why it cannot be used now; None when it can."""
        what = f"the certificate of {self.subject} in {self.where}"
        if now > self.not_after:
            return f"{what} expired at {_z(self.not_after)}"
        if now < self.not_before:
            return f"{what} is not valid before {_z(self.not_before)}"
        return None


def involved(clients: ClientSettings) -> list[Certificate]:
    """The client's certificates and those of its brokers."""
    return [*own(clients), *shown_by_brokers(clients)]


def own(clients: ClientSettings) -> list[Certificate]:
    """Certificates in the files and settings of a client; unreadable ones are left out."""
    certificates: list[Certificate] = []
    settings = {key: str(value) for key, value in clients.librdkafka().items()}
    for key in ("ssl.certificate.location", "ssl.ca.location"):
        if key in settings:
            with suppress(OSError, ValueError):
                certificates += _parsed(
                    f"{settings[key]} ({key})", Path(settings[key]).read_bytes()
                )
    for key in ("ssl.certificate.pem", "ssl.ca.pem"):
        if key in settings:
            with suppress(ValueError):
                certificates += _parsed(key, settings[key].encode())
    store = settings.get("ssl.keystore.location")
    if store is not None:
        with suppress(OSError, ValueError):
            password = settings.get("ssl.keystore.password", "").encode() or None
            _, leaf, _ = pkcs12.load_key_and_certificates(Path(store).read_bytes(), password)
            if leaf is not None:
                certificates.append(_described(f"{store} (ssl.keystore.location)", leaf))
    return certificates


def shown_by_brokers(clients: ClientSettings) -> Iterator[Certificate]:
    """Certificates of the brokers, trusted or not, read only for their dates."""
    for address in clients.bootstrap.split(",")[:3]:
        host, _, port = address.strip().rpartition(":")
        with suppress(OSError, ValueError):
            pem = ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=HANDSHAKE_S)
            yield from _parsed(f"the answer of broker {address}", pem.encode())


def _parsed(where: str, pem: bytes) -> list[Certificate]:
    return [_described(where, parsed) for parsed in x509.load_pem_x509_certificates(pem)]


def _described(where: str, certificate: x509.Certificate) -> Certificate:
    return Certificate(
        where,
        certificate.subject.rfc4514_string(),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )


def _z(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
