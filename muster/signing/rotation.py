"""Rotates signing keys: functions from a keyring's document to its next version.

A change takes effect later, so that all processes have the new file by then. A new key verifies as
soon as a reader has the new file, and signs from `spread_ms` later. The key it replaces ends
`overlap_ms` after that. So every process that signs uses a key that every process that verifies
already has. A change never concerns records written before it: a micro-batch that is repeated with
the newer file accepts and refuses the same records. Requirements to sign change in the same way.

Secrets are made here and never printed. `muster.signing.keyring_file` describes the file's format.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from muster.protocol.errors import ConfigError
from muster.protocol.keyring import Caller, SigningKey
from muster.signing.keyring_file import (
    DEFAULTS,
    GENERATION_ALGORITHM,
    KEY_SIZE,
    KEY_TTL_MS,
    KEYS,
    REQUIRED,
    SIGNATURE_ALGORITHM,
    WINDOW,
    Document,
    words,
)

SPREAD_MS = 60_000
"""Time for a new file to reach every process that has the old one."""
KEPT_MS = 7 * 24 * 3_600_000
"""How long a key that has ended stays in the file: as long as muster's topics keep events."""

_Scope: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""Groups and callers of a key, sorted."""


def new_key(
    document: Document,
    now_ms: int,
    *,
    from_ms: int | None = None,
    groups: Sequence[str] = ("*",),
    callers: Sequence[str] = tuple(Caller),
) -> Document:
    """The document, which may be empty, with a new random key for these groups and callers.

    The document is one that `keyring_file.parsed` accepts. The key begins to sign at `from_ms`, or
    now; times are epoch milliseconds.
    """
    values = {**DEFAULTS, **document}
    bits = values[KEY_SIZE] or int(values[GENERATION_ALGORITHM].removeprefix("HmacSHA"))
    taken = {row["id"] for row in document.get(KEYS, ())}
    stamp = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    names = (stamp, *(f"{stamp}-{n}" for n in range(2, len(taken) + 3)))
    key = {
        "id": next(name for name in names if name not in taken),
        "secret": base64.b64encode(os.urandom(int(bits) // 8)).decode(),
        "algorithm": values[SIGNATURE_ALGORITHM],
        "from_ms": now_ms if from_ms is None else from_ms,
        "until_ms": None,
        "window_ms": values[WINDOW],
        "groups": list(groups),
        "callers": list(callers),
    }
    return {**document, KEYS: [key, *document.get(KEYS, ())]}


def rotated(
    document: Document,
    now_ms: int,
    *,
    spread_ms: int = SPREAD_MS,
    overlap_ms: int | None = None,
    only_due: bool = False,
) -> Document:
    """The document with a new key for each that signs. Keys that ended `KEPT_MS` ago are dropped.

    Args:
        document: a keyring that `keyring_file.parsed` accepts.
        now_ms: wall clock, epoch milliseconds.
        spread_ms: see `SPREAD_MS`.
        overlap_ms: how long old keys verify after the new ones have begun to sign; None = their
            window, the longest time a record may be on its way. 0 = their secret is compromised.
        only_due: keep keys that began to sign less than `KEY_TTL_MS` ago; with a TTL of 0 no key is
            ever due.
    """
    ttl_ms = {**DEFAULTS, **document}[KEY_TTL_MS]
    from_ms = now_ms + spread_ms
    recent = [row for row in document[KEYS] if (row.get("until_ms") or now_ms) > now_ms - KEPT_MS]
    newest: dict[_Scope, int] = {}
    for row in recent:
        if row.get("until_ms") is None:
            newest[_scope(row)] = max(newest.get(_scope(row), 0), row.get("from_ms", 0))
    due = {
        scope
        for scope, since_ms in newest.items()
        if not only_due or (ttl_ms and since_ms + ttl_ms <= now_ms)
    }

    def ended(row: Mapping[str, Any]) -> Document:
        begins_ms, ends_ms = row.get("from_ms", 0), row.get("until_ms")
        if _scope(row) not in due or (ends_ms is not None and overlap_ms is None):
            return dict(row)
        if overlap_ms is None:
            until_ms = max(from_ms + row.get("window_ms", DEFAULTS[WINDOW]), begins_ms)
            return {**row, "until_ms": until_ms}
        # An earlier rotation may have let it verify for longer, or begin later than the new key.
        until_ms = from_ms + overlap_ms
        if ends_ms is not None and ends_ms <= until_ms:
            return dict(row)
        return {**row, "from_ms": min(begins_ms, until_ms), "until_ms": until_ms}

    result = {**document, KEYS: [ended(row) for row in recent]}
    for groups, callers in sorted(due):
        result = new_key(result, now_ms, from_ms=from_ms, groups=groups, callers=callers)
    return result


def required(document: Document, groups: Sequence[str], from_ms: int) -> Document:
    """The document that also requires signatures on every event of these groups from a time on."""
    return {
        **document,
        REQUIRED: [*document.get(REQUIRED, ()), {"groups": list(groups), "from_ms": from_ms}],
    }


def released(document: Document, groups: Sequence[str], until_ms: int) -> Document:
    """The document in which the requirements for exactly these groups end at a time.

    Raises:
        ConfigError: none is for exactly these groups, or it ends already.
    """
    rows = document.get(REQUIRED, ())
    ending = [
        set(words(row["groups"])) == set(groups) and row.get("until_ms") is None for row in rows
    ]
    if not any(ending):
        known = "; ".join(",".join(words(r["groups"])) for r in rows if r.get("until_ms") is None)
        accepted = f"exactly the groups of a requirement in force ({known or 'there is none'})"
        raise ConfigError("--group", ",".join(groups), accepted)
    ended = [
        {**row, "until_ms": until_ms} if ends else row
        for row, ends in zip(rows, ending, strict=True)
    ]
    return {**document, REQUIRED: ended}


def extract(
    document: Document, groups: Sequence[str] | None, callers: Sequence[str] | None
) -> Document:
    """The keyring for one client: only the keys made for its groups and callers; None = all.

    The document is one that `keyring_file.parsed` accepts.
    """
    rows = [
        row
        for row in document[KEYS]
        for has_groups, has_callers in (_scope(row),)
        if (groups is None or set(has_groups) <= set(groups))
        and (callers is None or set(has_callers) <= set(callers))
    ]
    return {**document, KEYS: rows}


def write(path: str | Path, content: Document, check: Callable[[], None] = lambda: None) -> None:
    """Replace a keyring's file atomically, so that no reader sees a part of it.

    Only the owner can read a new file; an existing file keeps its mode and, where this process may
    give files away, its owner. `check` is called last; if it raises, the file stays as it is.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    before = path.stat() if path.exists() else None
    mode = 0o600 if before is None else before.st_mode & 0o777
    # A file that is there is left over, or another user's who would read the secrets in it.
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(content, stream, indent=1)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        if before is not None:  # root's cron rotates what a service's user reads
            with suppress(PermissionError):
                os.chown(temporary, before.st_uid, before.st_gid)
        temporary.chmod(mode)
        check()
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _scope(row: Mapping[str, Any]) -> _Scope:
    groups, callers = row.get("groups", ["*"]), row.get("callers", list(Caller))
    return tuple(sorted(words(groups))), tuple(sorted(words(callers)))


def state_of(key: SigningKey, now_ms: int) -> str:
    """What a key does now: new (only verifies yet), signs, ending or ended."""
    if key.until_ms is not None and now_ms > key.until_ms:
        return "ended"
    if now_ms < key.from_ms:
        return "new"
    return "signs" if key.until_ms is None else "ending"
