"""The archive of the driver's classes: when it is used, made, replaced and left alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.suite.waiting import until

from muster.broker.java import java_home
from muster.streams.class_archive import KEPT, ClassArchive, Maker

MAKES = 'for a; do case $a in -XX:SharedArchiveFile=*) echo made > "${a#*=}";; esac; done'


@pytest.fixture
def archive(tmp_path: Path) -> Callable[[str], ClassArchive]:
    """An archive of a Java that is a shell script."""

    def with_java(script: str) -> ClassArchive:
        java = tmp_path / "java" / "bin" / "java"
        java.parent.mkdir(parents=True, exist_ok=True)
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
        return ClassArchive(tmp_path / "java", [], tmp_path / "cache")

    return with_java


def made(archive: ClassArchive) -> bool:
    """Whether a maker that waits for nothing makes it."""
    archive.listed.write_text("a/Class\n")
    with Maker(archive, "a.jar", after_s=0) as maker:
        until(lambda: not maker.alive, "the maker has ended")
    return archive.file.exists()


def test_a_start_lists_classes_until_there_is_an_archive(archive) -> None:
    """Then it uses the archive; the list is deleted, and so are the oldest of other archives."""
    new = archive(MAKES)
    listing, *_ = new.java_options()
    assert listing == f"-XX:DumpLoadedClassList={new.listed}"
    others = [new.file.with_name(f"spark-{age}.jsa") for age in range(KEPT)]
    for age, other in enumerate(others):
        other.touch()
        os.utime(other, (1_000 - age, 1_000 - age))
    assert made(new)
    assert [other.exists() for other in others] == [True] * (KEPT - 1) + [False]
    assert not new.listed.exists()
    assert new.java_options()[:2] == (f"-XX:SharedArchiveFile={new.file}", "-Xshare:auto")
    before = new.file.stat().st_mtime_ns
    assert made(new), "it is still there"
    assert new.file.stat().st_mtime_ns == before, "and was not made again"


@pytest.mark.parametrize("script", ["exit 1", f"{MAKES}; exit 1", "exit 0"])
def test_an_archive_that_cannot_be_made_leaves_nothing(script: str, archive) -> None:
    """The next start lists its classes again."""
    failed = archive(script)
    failed.java_options()
    assert not made(failed)
    assert sorted(path.name for path in failed.file.parent.iterdir()) == ["lock"]


def test_the_making_ends_with_its_maker(archive) -> None:
    """A coordinator that stops meanwhile waits for nothing, and leaves no process."""
    slow = archive(f"{MAKES}; touch $0.began; exec sleep 900")
    slow.java_options()
    slow.listed.write_text("a/Class\n")
    began = slow._home / "bin" / "java.began"
    with Maker(slow, "a.jar", after_s=0):
        until(began.exists, "the process runs")
    assert not slow.file.exists()
    assert sorted(path.name for path in slow.file.parent.iterdir()) == ["lock"]


def test_a_start_that_lists_nothing_makes_nothing(archive) -> None:
    """Another program has started the JVM, so there is no list."""
    bare = archive(MAKES)
    bare.java_options()
    with Maker(bare, "a.jar", after_s=0) as maker:
        until(lambda: not maker.alive, "the maker has ended")
    assert not bare.file.exists()


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    """The JVM starts without any of it."""
    (file := tmp_path / "file").touch()
    assert ClassArchive(tmp_path, [], file / "below").java_options() == ()
    assert ClassArchive(tmp_path, [], tmp_path / "two words").java_options() == ()


def test_the_list_of_a_killed_process_is_deleted(archive) -> None:
    """That of a living one stays."""
    new = archive(MAKES)
    new.java_options()
    ended = subprocess.Popen(["true"])
    ended.wait()
    lists = [new.listed.with_name(f"{pid}.list") for pid in (ended.pid, os.getppid())]
    for each in lists:
        each.touch()
    new.java_options()
    assert [each.exists() for each in lists] == [False, True]


def test_other_jars_have_another_archive(tmp_path: Path) -> None:
    """An archive fits one Java and one class path."""
    jar = tmp_path / "a.jar"
    names = {ClassArchive(tmp_path, [], tmp_path).file, ClassArchive(tmp_path, [jar]).file}
    jar.write_bytes(b"1")
    names |= {ClassArchive(tmp_path, [jar], tmp_path).file}
    (tmp_path / "release").write_text("JAVA_VERSION=21")
    names |= {ClassArchive(tmp_path, [jar], tmp_path).file}
    assert len({path.name for path in names}) == 4


@pytest.mark.spark
def test_a_real_java_makes_and_uses_it(tmp_path: Path) -> None:
    """The options are those that Java knows, and it says nothing of them."""
    home = java_home()
    archive = ClassArchive(home, [], tmp_path)

    def java(*words: str) -> str:
        command = [str(home / "bin" / "java"), *archive.java_options(), *words, "-version"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout

    assert java() == ""
    assert archive.is_wanted
    with Maker(archive, "", after_s=0) as maker:
        until(lambda: not maker.alive, "the maker has ended")
    assert archive.file.stat().st_size > 1_000_000
    assert java() == ""
    assert str(archive.file) in java("-Xlog:class+path=info,cds=info")
    archive.file.write_bytes(b"cut short")
    assert java() == ""
