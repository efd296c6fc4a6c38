"""Keys that come and go: a keyring's document before → after. Secrets are made here, none printed.

Nothing here takes effect at once but on purpose. A new key verifies as soon as a reader has the
new file and signs `spread_ms` later, by when everybody must have it; the key it replaces ends
`overlap_ms` after that. So at any time all who sign do so with a key that all who verify have, and
a change says nothing about records that are there already: a micro-batch that is worked off again,
under the newer file, comes to the same verdicts. The same holds for what must be signed.

`muster.keyring` has the format.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from muster.keyring import (
    DEFAULTS,
    GENERATION_ALGORITHM,
    KEY_SIZE,
    KEY_TTL_MS,
    KEYS,
    REQUIRED,
    SIGNATURE_ALGORITHM,
    WINDOW,
    Document,
)
from muster.protocol.signing import Caller

SPREAD_MS = 60_000
"""Within this time a new file reaches everybody who has the old one."""
KEPT_MS = 7 * 24 * 3_600_000
"""How long a key that has ended stays in the file: as long as muster's topics keep events."""

_Scope: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""Groups and callers of a key, sorted."""


def new_key(
    found: Document,
    now_ms: int,
    *,
    from_ms: int | None = None,
    groups: Sequence[str] = ("*",),
    callers: Sequence[str] = tuple(Caller),
) -> Document:
    """The document with one key more, made from the system's randomness.

    Args:
        found: a keyring that `keyring.parsed` accepts, or nothing.
        now_ms: wall clock, epoch milliseconds.
        from_ms: when it begins to sign; None = now.
        groups: whose events it may sign, as in `SigningKey`.
        callers: in what parts.
    """
    values = {**DEFAULTS, **found}
    bits = values[KEY_SIZE] or int(values[GENERATION_ALGORITHM].removeprefix("HmacSHA"))
    taken = {row["id"] for row in found.get(KEYS, ())}
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
    return {**found, KEYS: [key, *found.get(KEYS, ())]}


def rotated(
    found: Document,
    now_ms: int,
    *,
    spread_ms: int = SPREAD_MS,
    overlap_ms: int | None = None,
    only_due: bool = False,
) -> Document:
    """The document with a new key in place of each that signs; those long ended are dropped.

    Args:
        found: a keyring that `keyring.parsed` accepts.
        now_ms: wall clock, epoch milliseconds.
        spread_ms: see `SPREAD_MS`.
        overlap_ms: how long old keys verify after the new ones have begun to sign; None = as long
            as a record may be on its way (their window). 0 = their secret is out.
        only_due: leave keys alone that began to sign less than `KEY_TTL_MS` ago; a TTL of 0 means
            that none is ever due.
    """
    ttl_ms = {**DEFAULTS, **found}[KEY_TTL_MS]
    from_ms = now_ms + spread_ms
    kept = [row for row in found[KEYS] if (row.get("until_ms") or now_ms) > now_ms - KEPT_MS]
    newest: dict[_Scope, int] = {}
    for row in kept:
        if row.get("until_ms") is None:
            newest[_scope(row)] = max(newest.get(_scope(row), 0), row.get("from_ms", 0))
    due = {
        scope
        for scope, since_ms in newest.items()
        if not only_due or (ttl_ms and since_ms + ttl_ms <= now_ms)
    }

    def ended(row: Mapping[str, Any]) -> Document:
        if row.get("until_ms") is not None or _scope(row) not in due:
            return dict(row)
        window_ms = row.get("window_ms", DEFAULTS[WINDOW])
        until_ms = from_ms + (window_ms if overlap_ms is None else overlap_ms)
        return {**row, "until_ms": max(until_ms, row.get("from_ms", 0))}

    result = {**found, KEYS: [ended(row) for row in kept]}
    for groups, callers in sorted(due):
        result = new_key(result, now_ms, from_ms=from_ms, groups=groups, callers=callers)
    return result


def required(found: Document, groups: Sequence[str], from_ms: int) -> Document:
    """The document that demands a signature of every event of some groups from a time on."""
    return {
        **found,
        REQUIRED: [*found.get(REQUIRED, ()), {"groups": list(groups), "from_ms": from_ms}],
    }


def released(found: Document, groups: Sequence[str], until_ms: int) -> Document:
    """The document whose demands on just these groups end at a time."""
    rows = [
        {**row, "until_ms": until_ms}
        if set(row["groups"]) == set(groups) and row.get("until_ms") is None
        else row
        for row in found.get(REQUIRED, ())
    ]
    return {**found, REQUIRED: rows}


def extract(
    found: Document, groups: Sequence[str] | None, callers: Sequence[str] | None
) -> Document:
    """The keyring for a client that signs only so much: keys made for that and nothing else.

    Args:
        found: a keyring that `keyring.parsed` accepts.
        groups: keys whose groups are among these; None = all.
        callers: keys whose callers are among these; None = all.
    """
    rows = [
        row
        for row in found[KEYS]
        for has_groups, has_callers in (_scope(row),)
        if (groups is None or set(has_groups) <= set(groups))
        and (callers is None or set(has_callers) <= set(callers))
    ]
    return {**found, KEYS: rows}


def write(path: str | Path, content: Document) -> None:
    """Replace a keyring's file at once, so that no reader sees half of it.

    A new file is its owner's alone; one that is there keeps its mode.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(content, stream, indent=1)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        beside.chmod(mode)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _scope(row: Mapping[str, Any]) -> _Scope:
    groups, callers = row.get("groups", ["*"]), row.get("callers", list(Caller))
    return tuple(sorted(groups)), tuple(sorted(callers))
