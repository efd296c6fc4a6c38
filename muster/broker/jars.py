"""The jars of Kafka and of Spark's Kafka connector: downloaded once, as the lock file lists them.

``jars.lock`` has three sets: ``kafka`` (a whole broker), ``spark`` (what PySpark needs to reach
Kafka) and ``bench`` (Kafka's own assignors, to compare with). `jars` returns the files of a set. It
compares each file with its sha256; a file that differs is deleted and downloaded again, and refused
if it still differs.

Where they come from:

=================  ================================================================
MUSTER_JARS_DIR    a folder with all of them, by file name: nothing is downloaded
MUSTER_MAVEN_URL   base URL of a Maven repository or mirror
otherwise          Maven Central (its address is jgo's constant)
=================  ================================================================

Downloads go to ``jars/`` in the user's cache directory. pooch writes each to a temporary name and
moves it into place, and one process at a time downloads, so processes may call `jars` concurrently.
"""

from __future__ import annotations

import os
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal, TypeAlias

import pooch
from requests import RequestException, Response

from muster.broker.errors import JarsError

JarSet: TypeAlias = Literal["kafka", "spark", "connect", "clients", "bench"]
_Advance: TypeAlias = Callable[[int], None]
OFFLINE_DIR = "MUSTER_JARS_DIR"
BASE_URL = "MUSTER_MAVEN_URL"
ATTEMPTS = 4
CONNECTIONS = 6
TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Jar:
    """One row of the lock file: ``group:artifact:version``, sha256 in hexadecimal, bytes."""

    coordinate: str
    sha256: str
    size: int

    @property
    def name(self) -> str:
        """File name, as in any Maven repository."""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"

    @property
    def path(self) -> str:
        """Path below a repository's base URL."""
        group, artifact, version = self.coordinate.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{self.name}"


def locked(name: JarSet) -> tuple[Jar, ...]:
    """The jars of a set, from the lock file."""
    return _lock()[name]


def jars(name: JarSet) -> tuple[Path, ...]:
    """Files of a set, in the order of the lock file; downloads what is not there yet.

    Raises:
        JarsError: a jar cannot be downloaded, or is not the one in the lock file.
    """
    offline = os.environ.get(OFFLINE_DIR)
    return _offline(Path(offline), locked(name)) if offline else fetch(locked(name), name)


def cache_dir() -> Path:
    """The folder of muster in the user's cache directory (``XDG_CACHE_HOME`` is respected)."""
    return Path(pooch.os_cache("muster"))


def writable(folder: Path) -> Path:
    """A folder in the cache directory, made if it is not there.

    Raises:
        JarsError: it cannot be made, as for a user without a home directory.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from None
    return folder


def _unusable(path: Path, error: OSError) -> JarsError:
    return JarsError(
        f"{path} cannot be made ({error.strerror}); set XDG_CACHE_HOME to a folder that can "
        f"be written, or {OFFLINE_DIR} to a folder with the jars"
    )


def base_url() -> str:
    """Base URL of the Maven repository to download from."""
    mirror = os.environ.get(BASE_URL)
    if mirror:
        return mirror.rstrip("/")
    from jgo.constants import MAVEN_CENTRAL_URL  # imported late: it takes a fifth of a second

    return str(MAVEN_CENTRAL_URL).rstrip("/")


def fetch(wanted: Sequence[Jar], title: str, attempts: int = ATTEMPTS) -> tuple[Path, ...]:
    """Files of some jars in the cache directory; downloads what is missing or damaged.

    `title` is their name on the progress bar.

    Raises:
        JarsError: every attempt failed; the message has the jar, the URL and the reason.
    """
    folder = writable(cache_dir() / "jars")
    paths = tuple(folder / jar.name for jar in wanted)
    if all(_intact(path, jar) for path, jar in zip(paths, wanted, strict=True)):
        return paths
    with _exclusively(folder / ".lock"):
        missing = [j for p, j in zip(paths, wanted, strict=True) if not _intact(p, j)]
        if missing:
            _download(missing, folder, title, attempts)
    return paths


@cache
def _lock() -> dict[str, tuple[Jar, ...]]:
    text = files("muster.broker").joinpath("jars.lock").read_text(encoding="utf-8")
    return {
        name: tuple(Jar(key, row["sha256"], row["bytes"]) for key, row in rows.items())
        for name, rows in tomllib.loads(text).items()
    }


def _intact(path: Path, jar: Jar) -> bool:
    return path.is_file() and bool(pooch.file_hash(str(path)) == jar.sha256)


def _offline(folder: Path, wanted: Sequence[Jar]) -> tuple[Path, ...]:
    missing = [jar.name for jar in wanted if not (folder / jar.name).is_file()]
    if missing:
        raise JarsError(f"{OFFLINE_DIR}={folder} lacks {', '.join(missing)}")
    for jar in wanted:
        if not _intact(folder / jar.name, jar):
            sha256 = pooch.file_hash(str(folder / jar.name))
            raise JarsError(
                f"{folder / jar.name} is refused: its sha256 is {sha256}, "
                f"the lock file says {jar.sha256}; put {jar.coordinate} there"
            )
    return tuple(folder / jar.name for jar in wanted)


# ---------------------------------------------------------------- downloading


@contextmanager
def _exclusively(path: Path) -> Iterator[None]:
    """Hold a file lock: one process downloads, the others wait and then find the files."""
    import fcntl

    with ExitStack() as stack:
        try:
            handle = stack.enter_context(path.open("w"))
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            raise _unusable(path, error) from None
        yield


class _CutOff(Exception):
    """Another download has failed, or Ctrl-C has come."""


def _download(missing: Sequence[Jar], folder: Path, title: str, attempts: int) -> None:
    url = base_url()
    pooch.get_logger().setLevel("WARNING")  # it logs each file; a progress bar shows them all
    store = pooch.create(
        path=folder,
        base_url="",
        registry={jar.name: f"sha256:{jar.sha256}" for jar in missing},
        urls={jar.name: f"{url}/{jar.path}" for jar in missing},
        retry_if_failed=attempts - 1,
    )
    for left in folder.glob("tmp*"):  # of a process that was killed; only this one downloads
        left.unlink(missing_ok=True)
    with _progress(missing, title) as advance, ThreadPoolExecutor(CONNECTIONS) as pool:
        cut_off = threading.Event()

        def advance_or_end(size: int) -> None:
            if cut_off.is_set():
                raise _CutOff
            advance(size)

        tasks = [
            pool.submit(_download_one, store, jar, url, attempts, advance_or_end) for jar in missing
        ]
        try:
            for task in tasks:
                task.result()
        except BaseException:  # Ctrl-C, too: no file is downloaded to its end first
            cut_off.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _download_one(store: pooch.Pooch, jar: Jar, url: str, attempts: int, bar: _Advance) -> None:
    hooks = {"response": _close_refusal}
    downloader = pooch.HTTPDownloader(progressbar=_FileBar(bar), timeout=TIMEOUT_S, hooks=hooks)
    try:
        store.fetch(jar.name, downloader=downloader)
    except (RequestException, OSError) as error:
        raise JarsError(
            f"{jar.coordinate} cannot be downloaded from {url} ({attempts} attempts): {error}; "
            f"set {BASE_URL} to a mirror, or {OFFLINE_DIR} to a folder with the jars"
        ) from error
    except ValueError as error:  # pooch: the hash differs; it has deleted the file
        raise JarsError(
            f"{jar.coordinate} from {url} is refused: it is not the file of the lock file "
            f"(sha256 {jar.sha256})"
        ) from error


def _close_refusal(response: Response, *_: object, **__: object) -> None:
    """Close a refused response: pooch raises without reading it, and would leave it open."""
    if not response.ok:
        response.close()


class _FileBar:
    """pooch's progress-bar interface for one file; adds to one bar for all files."""

    def __init__(self, advance: _Advance) -> None:
        self.total = 0
        self._advance = advance
        self._done = 0

    def update(self, size: int) -> None:
        """`size` more bytes. pooch rounds up to its chunk size, so the sum is cut to the total."""
        step = min(size, max(self.total - self._done, 0))
        self._done += step
        self._advance(step)

    def reset(self) -> None:
        """Do nothing: pooch calls this only to fill a bar, and `update` has filled this one."""

    def close(self) -> None:
        """Do nothing: the bar goes on with the other files."""


@contextmanager
def _progress(missing: Sequence[Jar], title: str) -> Iterator[_Advance]:
    """A bar on standard error if that is a terminal, otherwise one line at the start."""
    total = sum(jar.size for jar in missing)
    if not sys.stderr.isatty():
        size = f"{total / 1e6:.0f} MB"
        sys.stderr.write(f"downloading {len(missing)} {title} jars, {size}, once\n")
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(f"downloading {title} jars, once", total=total)
        yield lambda size: progress.advance(task, size)
