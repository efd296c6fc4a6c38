"""The downloader and its lock file."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.suite.waiting import PATIENCE_S, until

from muster.broker import jars as shelf
from muster.broker.errors import JarsError
from muster.broker.jars import Jar

PIECE_BYTES = 1024
CONTENT = b"PK the content of a jar" * 1000


def jar(name: str = "a", content: bytes = CONTENT) -> Jar:
    """A row of a lock file."""
    return Jar(f"org.example:{name}:1.0", hashlib.sha256(content).hexdigest(), len(content))


class Repository:
    """A Maven repository that serves files, counts requests, and can fail first.

    Attributes:
        files: path -> content.
        failures: how many requests are answered with 503 before the first good one.
        requests: paths asked for.
        is_slow: whether it pauses after each piece of a file.
        has_begun, was_left: such a file was sent in part; its client hung up.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.failures = 0
        self.requests: list[str] = []
        self.is_slow = False
        self.has_begun, self.was_left = threading.Event(), threading.Event()
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                repository.requests.append(self.path)
                content = repository.files.get(self.path)
                if len(repository.requests) <= repository.failures:
                    self.send_error(503)
                elif content is None:
                    self.send_error(404)
                else:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.send(content)

            def send(self, content: bytes) -> None:
                try:
                    for at in range(0, len(content), PIECE_BYTES):
                        self.wfile.write(content[at : at + PIECE_BYTES])
                        if repository.is_slow:
                            repository.has_begun.set()
                            repository.was_left.wait(0.02)
                except ConnectionError:
                    repository.was_left.set()

            def log_message(self, *_: object) -> None:
                """Silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/maven2"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def serve(self, jar: Jar, content: bytes = CONTENT) -> None:
        """Serve this content as a jar."""
        self.files[f"/maven2/{jar.path}"] = content


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """A local repository, an empty cache directory, and no pauses between attempts."""
    repository = Repository()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(shelf.BASE_URL, repository.url + "/")
    monkeypatch.delenv(shelf.OFFLINE_DIR, raising=False)
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    yield repository
    repository.server.shutdown()
    repository.server.server_close()


def test_the_lock_file_is_whole() -> None:
    """Both sets name distinct files with well-formed hashes, and matching versions."""
    sets = {name: shelf.locked(name) for name in ("kafka", "spark")}
    for rows in sets.values():
        assert len({row.name for row in rows}) == len(rows)
        assert all(len(bytes.fromhex(row.sha256)) == 32 and row.size > 0 for row in rows)
    sums: dict[str, str] = {}
    for row in sets["kafka"] + sets["spark"]:
        assert sums.setdefault(row.name, row.sha256) == row.sha256
    kafka = {row.coordinate for row in sets["kafka"]}
    assert "org.apache.kafka:kafka_2.13:4.3.1" in kafka
    assert any(c.startswith("org.apache.logging.log4j:log4j-slf4j-impl:") for c in kafka)
    assert {row.coordinate for row in sets["spark"]} == {
        "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0",
        "org.apache.commons:commons-pool2:2.13.1",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    }


def test_downloads_once(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    """A jar is downloaded from its Maven path the first time, and cached the second."""
    repository.serve(jar())
    (path,) = shelf.fetch([jar()], "test")
    assert path == shelf.cache_dir() / "jars" / "a-1.0.jar"
    assert path.read_bytes() == CONTENT
    assert capsys.readouterr().err == "downloading 1 test jars, 0 MB, once\n"
    assert shelf.fetch([jar()], "test") == (path,)
    assert repository.requests == ["/maven2/org/example/a/1.0/a-1.0.jar"]
    assert capsys.readouterr().err == ""


def test_ctrl_c_cuts_a_download_off(repository: Repository) -> None:
    """It does not wait for the end of the file, and keeps no part of it."""
    content = CONTENT * 10
    repository.serve(jar(content=content), content)
    repository.is_slow = True

    def interrupt() -> None:
        assert repository.has_begun.wait(PATIENCE_S)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        shelf.fetch([jar(content=content)], "test")
    interrupting.join()
    until(repository.was_left.is_set, "the download is cut off")
    assert [path.name for path in (shelf.cache_dir() / "jars").iterdir()] == [".lock"]


def test_parts_of_a_killed_download_are_dropped(repository: Repository) -> None:
    """The next download deletes what a process that was killed has left."""
    part = shelf.writable(shelf.cache_dir() / "jars") / "tmpab12"
    part.write_bytes(CONTENT[:100])
    repository.serve(jar())
    (path,) = shelf.fetch([jar()], "test")
    assert path.read_bytes() == CONTENT
    assert not part.exists()


def test_failed_downloads_are_repeated(repository: Repository) -> None:
    """Three attempts succeed after two failures."""
    repository.serve(jar())
    repository.failures = 2
    (path,) = shelf.fetch([jar()], "test", attempts=3)
    assert path.read_bytes() == CONTENT
    assert len(repository.requests) == 3


def test_a_server_that_keeps_failing_is_named(repository: Repository) -> None:
    """If all attempts fail, the error has the jar, the URL and what to do."""
    with pytest.raises(JarsError) as error:
        shelf.fetch([jar()], "test", attempts=2)
    said = str(error.value)
    assert "org.example:a:1.0 cannot be downloaded" in said
    assert repository.url in said
    assert "404" in said
    assert "MUSTER_MAVEN_URL" in said
    assert "MUSTER_JARS_DIR" in said
    assert len(repository.requests) == 2


def test_a_cache_that_cannot_be_written_is_named(repository: Repository) -> None:
    """A folder that is there and read-only, for example."""
    (shelf.cache_dir() / "jars" / ".lock").mkdir(parents=True)
    with pytest.raises(JarsError, match=r"\.lock cannot be made \(Is a dir.*XDG_CACHE_HOME"):
        shelf.fetch([jar()], "test", attempts=1)


def test_a_wrong_checksum_is_refused(repository: Repository) -> None:
    """A file with another hash is an error, and does not stay in the cache."""
    repository.serve(jar(), b"something else")
    with pytest.raises(JarsError, match="refused: it is not the file of the lock file"):
        shelf.fetch([jar()], "test", attempts=2)
    left = [p.name for p in (shelf.cache_dir() / "jars").iterdir()]
    assert left == [".lock"]


def test_a_damaged_file_is_downloaded_again(repository: Repository) -> None:
    """A truncated file in the cache is downloaded again."""
    repository.serve(jar())
    (path,) = shelf.fetch([jar()], "test")
    path.write_bytes(CONTENT[:100])
    shelf.fetch([jar()], "test")
    assert path.read_bytes() == CONTENT


def test_concurrent_processes(repository: Repository) -> None:
    """Four processes that need three jars make three downloads together."""
    wanted = [jar(name) for name in "abc"]
    for row in wanted:
        repository.serve(row)
    code = (
        "import sys; from muster.broker import jars; "
        "rows = [jars.Jar(*r.split('/')[:2], int(r.split('/')[2])) for r in sys.argv[1:]]; "
        "print(*(p.read_bytes() == b'PK the content of a jar' * 1000 "
        "for p in jars.fetch(rows, 't')))"
    )
    rows = [f"{row.coordinate}/{row.sha256}/{row.size}" for row in wanted]
    command = [sys.executable, "-c", code, *rows]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [child.communicate()[0] for child in running] == ["True True True\n"] * 4
    assert sorted(repository.requests) == [f"/maven2/{row.path}" for row in wanted]


def test_offline_folder(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With MUSTER_JARS_DIR files come from there, checked, and nothing is downloaded."""
    monkeypatch.setenv(shelf.OFFLINE_DIR, str(tmp_path))
    monkeypatch.setattr(shelf, "locked", lambda name: (jar("a"), jar("b")))
    (tmp_path / "a-1.0.jar").write_bytes(CONTENT)
    with pytest.raises(JarsError, match=r"lacks b-1\.0\.jar$"):
        shelf.jars("kafka")
    (tmp_path / "b-1.0.jar").write_bytes(b"wrong")
    with pytest.raises(JarsError, match=r"b-1\.0\.jar is refused: its sha256 is [0-9a-f]{64}"):
        shelf.jars("kafka")
    assert (tmp_path / "b-1.0.jar").exists()  # files in the user's folder are refused, not deleted
    (tmp_path / "b-1.0.jar").write_bytes(CONTENT)
    assert shelf.jars("kafka") == (tmp_path / "a-1.0.jar", tmp_path / "b-1.0.jar")
    assert repository.requests == []


def test_without_a_setting_it_is_maven_central(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default base URL is jgo's."""
    from jgo.constants import MAVEN_CENTRAL_URL

    monkeypatch.delenv(shelf.BASE_URL, raising=False)
    assert shelf.base_url() == MAVEN_CENTRAL_URL.rstrip("/")


def test_a_cache_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without a home directory, or with a read-only one, learns which setting helps."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv(shelf.OFFLINE_DIR, raising=False)
    with pytest.raises(JarsError, match=r"made \(Not a directory\); set XDG_CACHE_HOME"):
        shelf.jars("spark")
