"""A keyring: signing keys in a JSON file, read and checked.

Its form::

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
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from muster.protocol.errors import ConfigError
from muster.protocol.keyring import (
    ALGORITHMS,
    DEFAULT_ALGORITHM,
    WINDOW_MS,
    Caller,
    Keyring,
    Requirement,
    SigningKey,
)

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
            known = ", ".join(names)
            raise ConfigError("keyring", str(path), f"no key {where + name!r}; known: {known}")
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
