"""The class archive of the driver's JVM (class data sharing): a start costs a third less.

Until its first answer the driver's JVM loads some 25,000 classes from jars and checks them. Java
can map a file instead that has them as they are in memory. That file fits one Java, one class path
and their versions, so each machine makes its own, once:

1. A start without an archive lets the JVM write a list of the classes that it loads.
2. When the query has run for a minute, a process of the lowest priority makes the archive.
3. Later starts use it. Another Java or Spark has a file of its own (`_name`).

Nothing depends on it: without a folder to write to, or with an archive that does not fit, the JVM
starts as usual. ``--conf spark.driver.extraJavaOptions=-Xshare:off`` turns it off.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from muster.broker.ends_with_parent import Tethered
from muster.broker.jars import cache_dir
from muster.streams.background_thread import Loop

AFTER_S = 60.0
"""The archive is made when the query has run for this long and has loaded most classes."""
FOLDER = "classes"
KEPT = 3
"""Archives of this many installations are kept."""
_PREFIX, _SUFFIX, _MAKING, _LISTED = "spark-", ".jsa", ".making", ".list"

_log = structlog.get_logger("muster.streams")


class ClassArchive:
    """The archive of one Java and one class path, made or yet to be made.

    Its place is `file`; this process' JVM lists the classes that it loads in `listed`.
    """

    def __init__(self, home: Path, jars: Sequence[Path], folder: Path | None = None) -> None:
        """Choose the file; only the names, sizes and times of jars are read.

        `home` is that of the Java that runs Spark; `jars` are on the class path, with Spark's own.
        Archives are in `folder`, by default in the user's cache directory.
        """
        self._home = home
        self._folder = (folder or cache_dir() / FOLDER).resolve()
        self.file = self._folder / f"{_PREFIX}{_name(home, jars)}{_SUFFIX}"
        self.listed = self._folder / f"{os.getpid()}{_LISTED}"

    def java_options(self) -> tuple[str, ...]:
        """Options of the driver's JVM: it uses the archive, or lists its classes."""
        if any(mark in str(self._folder) for mark in " \"'\\"):
            return ()  # Spark would cut the option in pieces
        if self.file.exists():
            # Xlog: the JVM does not print that an archive does not fit.
            return (f"-XX:SharedArchiveFile={self.file}", "-Xshare:auto", "-Xlog:cds=error")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._forget_killed()
            self.listed.touch()
        except OSError:
            return ()
        return (f"-XX:DumpLoadedClassList={self.listed}", "-Xlog:cds=error")

    @property
    def is_wanted(self) -> bool:
        """Whether there is a list of classes and no archive."""
        is_listed = self.listed.exists() and self.listed.stat().st_size > 0
        return is_listed and not self.file.exists()

    def forget(self) -> None:
        """Delete the list of classes."""
        with suppress(OSError):
            self.listed.unlink(missing_ok=True)

    def _forget_killed(self) -> None:
        """Delete the lists of processes that were killed."""
        for listed in self._folder.glob(f"*{_LISTED}"):
            try:
                os.kill(int(listed.stem), 0)
            except ProcessLookupError:
                listed.unlink(missing_ok=True)
            except (PermissionError, ValueError):
                continue

    def command(self, class_path: str, output: Path) -> list[str]:
        """The command that makes an archive, with the class path of the JVM that listed."""
        return [
            *("nice", "-n", "19", str(self._home / "bin" / "java")),
            *("-Xshare:dump", "-Xmx512m", "-Xlog:disable"),
            f"-XX:SharedClassListFile={self.listed}",
            f"-XX:SharedArchiveFile={output}",
            *("-cp", class_path),
        ]

    @contextmanager
    def made_by_one(self) -> Iterator[bool]:
        """Whether this process is the one that makes it; others need not."""
        with (self._folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield not self.file.exists()

    def take(self, made: Path) -> None:
        """Put a new archive in its place, and delete the oldest of other versions."""
        made.replace(self.file)
        archives = self._folder.glob(f"{_PREFIX}*{_SUFFIX}")
        for old in sorted(archives, key=lambda each: each.stat().st_mtime, reverse=True)[KEPT:]:
            old.unlink(missing_ok=True)


def _name(home: Path, jars: Sequence[Path]) -> str:
    """A name that changes with everything that makes an archive useless."""
    release = home / "release"
    parts = [str(home), release.read_text(errors="replace") if release.exists() else ""]
    for jar in jars:
        about = jar.stat() if jar.exists() else None
        parts.append(f"{jar} {about and (about.st_size, about.st_mtime_ns)}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


class Maker(Loop):
    """Makes the archive in a thread and a process, if there is none; the process ends with it."""

    def __init__(self, archive: ClassArchive, class_path: str, after_s: float = AFTER_S) -> None:
        super().__init__("muster-class-archive")
        self._archive = archive
        self._class_path = class_path
        self._after_s = after_s

    def _run(self) -> None:
        try:
            if self._archive.is_wanted and not self._closing.wait(self._after_s):
                self._make()
        except OSError as error:
            _log.info("no class archive, so starts take longer", why=str(error))
        finally:
            self._archive.forget()

    def _make(self) -> None:
        made = self._archive.file.with_suffix(_MAKING)
        with self._archive.made_by_one() as mine:
            if not mine:
                return
            try:
                process = Tethered(self._archive.command(self._class_path, made))
                while process.poll() is None and not self._closing.wait(0.2):
                    pass
                if process.poll() is None:
                    process.kill()
                elif process.poll() == 0 and made.exists():
                    self._archive.take(made)
                    _log.info("made a class archive for later starts", file=str(self._archive.file))
            finally:
                made.unlink(missing_ok=True)
