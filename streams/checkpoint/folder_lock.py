"""A lock on the checkpoint folder: two processes that stand by would write each other's files.

The lock belongs to the process, so the kernel gives it back when the process ends, and a frozen
process keeps it. Only a folder on a local or POSIX file system has one; on an object store each
process must be given a folder of its own.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

from muster.protocol.errors import ConfigError
from muster.streams.checkpoint.files import LOCK
from muster.streams.job_settings import JobConfig


@contextmanager
def held(config: JobConfig) -> Iterator[None]:
    """Hold the lock of the checkpoint folder within the block.

    Raises:
        ConfigError: another process holds it, or the folder cannot be written.
    """
    if not config.is_posix:
        yield
        return
    with _locked(config.checkpoint):
        yield


def _locked(checkpoint: str) -> TextIO:
    """The locked file; closing it gives the lock back."""
    is_url = checkpoint.startswith("file:")  # file:/a and file:///a are the folder /a
    folder = Path(urlsplit(checkpoint).path if is_url else checkpoint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        accepted = f"a folder that can be written ({error.strerror})"
        raise ConfigError("--checkpoint", checkpoint, accepted) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        accepted = "a folder that no other process uses: each standby needs one of its own"
        if not isinstance(error, BlockingIOError):
            accepted = f"a folder on a file system that has locks ({error.strerror})"
        raise ConfigError("--checkpoint", checkpoint, accepted) from None
    return lock
