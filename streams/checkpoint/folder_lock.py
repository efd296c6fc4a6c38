"""A lock on the checkpoint folder: two standbys on one folder would write each other's files.

The lock belongs to the process, so the kernel gives it back when the process ends, and a frozen
process keeps it. Only a folder on a local or POSIX file system has one; on an object store each
process must be given a folder of its own.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.protocol.errors import ConfigError
from muster.streams.checkpoint.files import LOCK
from muster.streams.job_settings import JobConfig


@contextmanager
def held(config: JobConfig) -> Iterator[None]:
    """Hold the lock of the checkpoint folder within the block.

    Raises:
        ConfigError: another process holds it.
    """
    if not config.is_posix:
        yield
        return
    folder = Path(config.checkpoint.removeprefix("file://"))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                "--checkpoint",
                config.checkpoint,
                "a folder that no other process uses: each standby needs one of its own",
            ) from None
        yield
