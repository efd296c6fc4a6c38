"""Signing keys: their file, and how running processes follow its changes.

The job, the clock, workers and commands read a keyring, one JSON file, with ``--signing-keys FILE``
(or `MUSTER_SIGNING_KEYS`). Without it no event is signed and no signature is checked::

    {"inter.worker.key.generation.algorithm": "HmacSHA256",
     "inter.worker.key.size": null,
     "inter.worker.key.ttl.ms": 3600000,
     "inter.worker.signature.algorithm": "HmacSHA256",
     "inter.worker.verification.algorithms": ["HmacSHA256"],
     "signature.window.ms": 300000,
     "signature.required": [{"groups": ["*"], "from_ms": 1795240860000}],
     "keys": [{"id": "20261121T060000Z", "secret": "<base64>", "algorithm": "HmacSHA256",
               "from_ms": 1795240800000, "until_ms": null, "window_ms": 300000,
               "groups": ["*"], "callers": ["member", "exporter", "operator", "clock"]}]}

The ``inter.worker.`` names and defaults are KIP-507's and say how `muster keys` makes new keys. A
key must sign with one of the verification algorithms. Only ``keys`` is required, and in a key only
``id`` and ``secret``. `muster.signing.rotation` makes and changes such files. When you edit one by
hand, only add keys or set a key's ``until_ms`` to a future time.

A file that changes is read again within `LOOK_EVERY_S`. If it is missing or cannot be read, the
keys read before stay in force, and it is tried again every `LOOK_EVERY_S`; each fault is logged
once. `muster.protocol.signing` defines what a signature is.
"""

from __future__ import annotations

import argparse
import base64
import json
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from muster.protocol.codec import Encoded
from muster.protocol.errors import ConfigError
from muster.protocol.events import Event
from muster.protocol.keys import whole_key
from muster.protocol.signing import (
    ALGORITHMS,
    DEFAULT_ALGORITHM,
    HEADER,
    WINDOW_MS,
    Caller,
    Keyring,
    Requirement,
    SigningKey,
    Subject,
    caller_of,
    sign,
)

log = logging.getLogger("muster.keyring")

OPTION = "--signing-keys"
VARIABLE = "MUSTER_SIGNING_KEYS"
LOOK_EVERY_S = 1.0

Document: TypeAlias = dict[str, Any]
"""A keyring as parsed JSON, unchecked."""

GENERATION_ALGORITHM = "inter.worker.key.generation.algorithm"
KEY_SIZE = "inter.worker.key.size"
KEY_TTL_MS = "inter.worker.key.ttl.ms"
SIGNATURE_ALGORITHM = "inter.worker.signature.algorithm"
VERIFICATION_ALGORITHMS = "inter.worker.verification.algorithms"
WINDOW = "signature.window.ms"
REQUIRED = "signature.required"
KEYS = "keys"

DEFAULTS: Mapping[str, Any] = {
    GENERATION_ALGORITHM: DEFAULT_ALGORITHM,
    KEY_SIZE: None,
    KEY_TTL_MS: 3_600_000,
    SIGNATURE_ALGORITHM: DEFAULT_ALGORITHM,
    VERIFICATION_ALGORITHMS: [DEFAULT_ALGORITHM],
    WINDOW: WINDOW_MS,
    REQUIRED: [],
}
"""Default of every entry of the file except ``keys``."""
_KEY_FIELDS = ("id", "secret", "algorithm", "from_ms", "until_ms", "window_ms", "groups", "callers")
_REQUIREMENT_FIELDS = ("groups", "from_ms", "until_ms")


class KeyFile:
    """A keyring that follows its file. Safe to use from any thread.

    Raises:
        ConfigError: it cannot be read, or is not a keyring; the message has no secret.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._mark = _mark(path)
        self._keyring = read(path)
        self._fault: str | None = None
        self._looked_s = time.monotonic()

    def current(self) -> Keyring:
        """The keys in the file now, or at most `LOOK_EVERY_S` ago."""
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            with self._lock:
                self._looked_s = time.monotonic()
                self._follow()
        return self._keyring

    def _follow(self) -> None:
        mark = _mark(self.path)
        if mark == self._mark:
            return
        try:
            self._keyring = read(self.path)
        except ConfigError as error:
            if str(error) != self._fault:
                self._fault = str(error)
                log.error("the keys read before stay in force: %s", error)
        else:
            self._mark, self._fault = mark, None
            log.info("signing keys read again: %s", ", ".join(k.id for k in self._keyring.keys))


def add_signing_keys(parser: argparse._ActionsContainer) -> None:
    """Add `OPTION`; read it with `key_file`."""
    parser.add_argument(
        OPTION,
        metavar="FILE",
        help=f"keyring that events are signed with (default: ${VARIABLE}, else they are not)",
    )


def keyring_path(path: str | None) -> str | None:
    """The file of the option, otherwise of `MUSTER_SIGNING_KEYS`; None = nothing is signed."""
    return path or os.environ.get(VARIABLE) or None


def key_file(path: str | None) -> KeyFile | None:
    """The keyring of `keyring_path`.

    Raises:
        ConfigError: as `KeyFile`.
    """
    chosen = keyring_path(path)
    return None if chosen is None else KeyFile(chosen)


def signed(keys: KeyFile | None, encoded: Encoded, event: Event, topic: str) -> Encoded:
    """A record as it is written to a topic: with a signature if there are keys.

    Raises:
        EncodeError: no key may sign it now.
    """
    if keys is None:
        return encoded
    subject = Subject(topic, whole_key(encoded.key), encoded.value)
    now_ms = time.time_ns() // 1_000_000
    signature = sign(keys.current(), event.group, caller_of(event), subject, now_ms)
    return encoded._replace(headers=(*encoded.headers, (HEADER, signature)))


def read(path: str | Path) -> Keyring:
    """Read a keyring.

    Raises:
        ConfigError: it cannot be read, or is not a keyring; the message has no secret.
    """
    return parsed(document(path), path)


def document(path: str | Path) -> Document:
    """Read a keyring as JSON, unchecked.

    Raises:
        ConfigError: it cannot be read, or is no JSON object.
    """
    try:
        content: object = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("keyring", str(path), f"a readable keyring ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError("keyring", str(path), "a keyring, JSON (it is not UTF-8)") from None
    except json.JSONDecodeError as error:
        where = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise ConfigError("keyring", str(path), f"a keyring, JSON ({where})") from None
    if not isinstance(content, dict):
        raise ConfigError("keyring", str(path), "a JSON object with keys")
    return content


def parsed(content: Document, path: str | Path) -> Keyring:
    """Check a keyring and convert it; error messages name the path.

    Raises:
        ConfigError: an unknown key or a value out of bounds; the message has no secret.
    """
    values = {**DEFAULTS, **_known(content, (*DEFAULTS, KEYS), "", path)}
    verified = _algorithms(values, path)
    rows: object = values.get(KEYS)
    if not isinstance(rows, list) or not rows:
        raise _wrong(path, KEYS, "a list with at least one key")
    keys = tuple(_key(row, f"{KEYS}[{at}]", verified, path) for at, row in enumerate(rows))
    if len({key.id for key in keys}) != len(keys):
        raise _wrong(path, KEYS, "ids that differ")
    required: object = values[REQUIRED]
    if not isinstance(required, list):
        raise _wrong(path, REQUIRED, 'a list such as [{"groups": ["*"]}]')
    demands = (_requirement(row, f"{REQUIRED}[{at}]", path) for at, row in enumerate(required))
    return Keyring(keys=keys, required=tuple(demands))


def _algorithms(values: Document, path: str | Path) -> tuple[str, ...]:
    """The verification algorithms. Also checks the settings for making keys."""
    verified = _names(values[VERIFICATION_ALGORITHMS], VERIFICATION_ALGORITHMS, path)
    for name in (GENERATION_ALGORITHM, SIGNATURE_ALGORITHM):
        if values[name] not in tuple(ALGORITHMS):  # a tuple: JSON's lists are not hashable
            raise _wrong(path, name, f"one of {', '.join(ALGORITHMS)}")
    if not set(verified) <= set(ALGORITHMS):
        raise _wrong(path, VERIFICATION_ALGORITHMS, f"some of {', '.join(ALGORITHMS)}")
    if values[SIGNATURE_ALGORITHM] not in verified:
        raise _wrong(path, VERIFICATION_ALGORITHMS, f"{values[SIGNATURE_ALGORITHM]} among them")
    size = values[KEY_SIZE]
    if size is not None and (_whole(size, KEY_SIZE, path) % 8 or not 128 <= size <= 4096):
        raise _wrong(path, KEY_SIZE, "bits, 128 to 4096 by 8, or null")
    _whole(values[KEY_TTL_MS], KEY_TTL_MS, path)
    _whole(values[WINDOW], WINDOW, path)
    return verified


def _key(row: object, where: str, verified: tuple[str, ...], path: str | Path) -> SigningKey:
    if not isinstance(row, dict) or not {"id", "secret"} <= set(row):
        raise _wrong(path, where, "an object with id and secret")
    _known(row, _KEY_FIELDS, f"{where}.", path)
    try:
        secret = base64.b64decode(row["secret"], validate=True)
    except (ValueError, TypeError):
        raise _wrong(path, f"{where}.secret", "base64") from None
    callers = _names(row.get("callers", list(Caller)), f"{where}.callers", path)
    if not set(callers) <= set(Caller):
        raise _wrong(path, f"{where}.callers", f"some of {', '.join(Caller)}")
    algorithm: object = row.get("algorithm", DEFAULT_ALGORITHM)
    if algorithm not in verified:
        raise _wrong(path, f"{where}.algorithm", f"one of {VERIFICATION_ALGORITHMS}")
    from_ms, until_ms = _span(row, where, path)
    key = SigningKey(
        id=str(row["id"]),
        secret=secret,
        algorithm=str(algorithm),
        from_ms=from_ms,
        until_ms=until_ms,
        window_ms=_whole(row.get("window_ms", WINDOW_MS), f"{where}.window_ms", path),
        groups=_names(row.get("groups", ["*"]), f"{where}.groups", path),
        callers=frozenset(map(Caller, callers)),
    )
    fault = key.fault()
    if fault is not None:
        raise _wrong(path, where, fault)
    return key


def _requirement(row: object, where: str, path: str | Path) -> Requirement:
    if not isinstance(row, dict) or "groups" not in row:
        raise _wrong(path, where, "an object with groups")
    _known(row, _REQUIREMENT_FIELDS, f"{where}.", path)
    groups = _names(row["groups"], f"{where}.groups", path)
    return Requirement(groups, *_span(row, where, path))


def _span(row: Document, where: str, path: str | Path) -> tuple[int, int | None]:
    until: object = row.get("until_ms")
    return (
        _whole(row.get("from_ms", 0), f"{where}.from_ms", path),
        None if until is None else _whole(until, f"{where}.until_ms", path),
    )


def _known(row: Document, names: tuple[str, ...], where: str, path: str | Path) -> Document:
    for name in row:
        if name not in names:
            raise _wrong(path, f"{where}{name}", f"one of {', '.join(names)}")
    return row


def _names(value: object, where: str, path: str | Path) -> tuple[str, ...]:
    if not isinstance(value, str | list) or not all(isinstance(word, str) for word in value):
        raise _wrong(path, where, "a list of words")
    names = words(value)
    if not all(names):
        raise _wrong(path, where, "a list of words")
    return names


def words(value: str | Sequence[str]) -> tuple[str, ...]:
    """Groups, callers or algorithms of a keyring: a list, or one text with commas between them."""
    return tuple(word.strip() for word in (value.split(",") if isinstance(value, str) else value))


def _whole(value: object, where: str, path: str | Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise _wrong(path, where, "a whole number, 0 or more")
    return value


def _wrong(path: str | Path, where: str, expected: str) -> ConfigError:
    return ConfigError("keyring", str(path), f"{where}: {expected}")


def _mark(path: str) -> object:
    """A value that changes whenever the file, its owner or its permissions change."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
