"""Checks of `muster doctor`: when certificates end, and whether signing keys sign and rotate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from muster.doctor.finding import Finding, Level
from muster.kafka import certificates
from muster.kafka.certificates import Certificate
from muster.kafka.client_settings import ClientSettings
from muster.output import utc
from muster.protocol.errors import ConfigError
from muster.protocol.keyring import SigningKey
from muster.signing import keyring_file

SOON = timedelta(days=21)
"""A certificate that ends within this time gives a warning."""
LATE = 2
"""A key that has signed for longer than this many times its TTL gives a warning."""
SYNC = "bring the newest file to every part that uses it"


def look(settings: ClientSettings, signing_keys: str | None, now_ms: int) -> Iterator[Finding]:
    """Check certificates of this client and of the brokers it names, and the keys of a keyring.

    Without TLS no certificate is checked; without the file `signing_keys` no key is.
    """
    if "SSL" in settings.values.get("security.protocol", "").upper():
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        yield from of_certificates(certificates.involved(settings), now)
    if signing_keys is not None:
        yield from of_keyring(signing_keys, now_ms)


def of_certificates(certs: Iterable[Certificate], now: datetime) -> Iterator[Finding]:
    """One finding per certificate: when it ends."""
    for each in certs:
        fault = each.fault(now)
        what = f"{each.where}: valid until {each.not_after:%Y-%m-%d}"
        if fault is not None:
            action = f"renew the certificate of {each.subject}, or set the clock"
            yield Finding("certificate", each.subject, Level.FAIL, fault, action)
        elif each.not_after - now < SOON:
            action = f"renew the certificate of {each.subject}"
            yield Finding("certificate", each.subject, Level.WARN, what, action)
        else:
            yield Finding("certificate", each.subject, Level.OK, what)


def of_keyring(path: str, now_ms: int) -> Iterator[Finding]:
    """One finding per pair of groups and callers: which key signs since when, or that none does."""
    try:
        content = keyring_file.document(path)
        ring = keyring_file.parsed(content, path)
    except ConfigError as error:
        yield Finding("keys", path, Level.FAIL, str(error), SYNC)
        return
    ttl_ms = int(
        content.get(keyring_file.KEY_TTL_MS, keyring_file.DEFAULTS[keyring_file.KEY_TTL_MS])
    )
    for groups, callers in sorted({_scope(key) for key in ring.keys}):
        keys = [key for key in ring.keys if _scope(key) == (groups, callers)]
        subject = f"{','.join(callers)} of {','.join(groups)}"
        signing = [key for key in keys if key.signs(now_ms)]
        if not signing:
            what = "no key signs now: the coordinator refuses what these write"
            yield Finding(
                "keys", subject, Level.FAIL, what, f"muster keys create {path}, then {SYNC}"
            )
            continue
        yield _of_key(max(signing, key=lambda key: key.from_ms), subject, path, ttl_ms, now_ms)


def _scope(key: SigningKey) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Groups and callers of a key, in one order: a rotation sorts them."""
    return tuple(sorted(key.groups)), tuple(sorted(key.callers))


def _of_key(key: SigningKey, subject: str, path: str, ttl_ms: int, now_ms: int) -> Finding:
    age_ms = now_ms - key.from_ms
    until = "" if key.until_ms is None else f", until {utc(key.until_ms)}"
    what = f"{key.id} signs since {utc(key.from_ms)}{until}"
    if ttl_ms and age_ms > LATE * ttl_ms:
        action = f"rotate, best by a timer: muster keys rotate {path} --if-due; then {SYNC}"
        return Finding(
            "keys", subject, Level.WARN, f"{what}; {keyring_file.KEY_TTL_MS}={ttl_ms}", action
        )
    return Finding("keys", subject, Level.OK, what)
