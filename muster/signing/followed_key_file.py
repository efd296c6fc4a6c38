"""The file of a process' signing keys, and how the process follows its changes.

The job, the clock, workers and commands take the file from ``--signing-keys FILE`` (or
`MUSTER_SIGNING_KEYS`). Without it no event is signed and no signature is checked.

A file that changes is read again within `LOOK_EVERY_S`. If it is missing or cannot be read, the
keys read before stay in force, and it is tried again every `LOOK_EVERY_S`; each fault is logged
once. `keyring_file` describes what is in it, `muster.protocol.signing` what a signature is.
"""

from __future__ import annotations

import argparse
import logging
import os
import threading
import time

from muster.protocol.codec import Encoded
from muster.protocol.errors import ConfigError
from muster.protocol.events import Event
from muster.protocol.keyring import Keyring, caller_of
from muster.protocol.keys import whole_key
from muster.protocol.signing import HEADER, Subject, sign
from muster.signing.keyring_file import read

log = logging.getLogger("muster.keyring")

OPTION = "--signing-keys"
VARIABLE = "MUSTER_SIGNING_KEYS"
LOOK_EVERY_S = 1.0


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
    """Add `OPTION`; read it with `key_file_of`."""
    parser.add_argument(
        OPTION,
        metavar="FILE",
        help=f"keyring that events are signed with (default: ${VARIABLE}, else they are not)",
    )


def keyring_path(path: str | None) -> str | None:
    """The file of the option, otherwise of `MUSTER_SIGNING_KEYS`; None = nothing is signed."""
    return path or os.environ.get(VARIABLE) or None


def key_file_of(path: str | None) -> KeyFile | None:
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


def _mark(path: str) -> object:
    """A value that changes whenever the file, its owner or its permissions change."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
