"""Certificates that a connection depends on, and what is wrong with their dates.

A handshake that fails says little. These are read where they lie, in the client's files and
settings, and where the brokers show theirs, so that an error can name the one that has expired.
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

from muster.clients import ClientSettings

HANDSHAKE_S = 3.0


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that a connection depends on.

    Attributes:
        where: the setting and file, or the broker's address.
        subject: whose it is.
        not_before, not_after: when it is valid.
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
    """Those of the client and those its brokers show."""
    return [*own(clients), *shown_by_brokers(clients)]


def own(clients: ClientSettings) -> list[Certificate]:
    """Certificates in the files and settings of a client; what cannot be read is left out."""
    found: list[Certificate] = []
    spoken = {key: str(value) for key, value in clients.librdkafka().items()}
    for key in ("ssl.certificate.location", "ssl.ca.location"):
        if key in spoken:
            with suppress(OSError, ValueError):
                found += _parsed(f"{spoken[key]} ({key})", Path(spoken[key]).read_bytes())
    for key in ("ssl.certificate.pem", "ssl.ca.pem"):
        if key in spoken:
            with suppress(ValueError):
                found += _parsed(key, spoken[key].encode())
    store = spoken.get("ssl.keystore.location")
    if store is not None:
        with suppress(OSError, ValueError):
            word = spoken.get("ssl.keystore.password", "").encode() or None
            _, leaf, _ = pkcs12.load_key_and_certificates(Path(store).read_bytes(), word)
            found += [] if leaf is None else [_described(f"{store} (ssl.keystore.location)", leaf)]
    return found


def shown_by_brokers(clients: ClientSettings) -> Iterator[Certificate]:
    """Certificates that the brokers show, trusted or not: only to read their dates."""
    for address in clients.bootstrap.split(",")[:3]:
        host, _, port = address.strip().rpartition(":")
        with suppress(OSError, ValueError):
            pem = ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=HANDSHAKE_S)
            yield from _parsed(f"the answer of broker {address}", pem.encode())


def _parsed(where: str, pem: bytes) -> list[Certificate]:
    return [_described(where, each) for each in x509.load_pem_x509_certificates(pem)]


def _described(where: str, certificate: x509.Certificate) -> Certificate:
    return Certificate(
        where,
        certificate.subject.rfc4514_string(),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )


def _z(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
