"""Muster's own files in a checkpoint: a write that is cut off, and a file that is not whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.streams.checkpoint import files
from muster.streams.checkpoint.files import json_object
from muster.streams.errors import UnreadableCheckpoint

CUT_OFF = """
import json, os, sys
from pyspark import SparkContext
from muster.streams import spark_session
from muster.streams.checkpoint.files import open_checkpoint
from muster.streams.job_settings import job_config

folder = sys.argv[1]
spark, _ = spark_session.start(job_config(checkpoint=folder, master="local[1]"))
checkpoint = open_checkpoint(spark, folder)
checkpoint.write("f.json", {"n": 1})
checkpoint.write("f.json", {"n": 2})
assert checkpoint.read("f.json") == {"n": 2}
assert checkpoint.read("none.json") == {}
try:
    checkpoint.write("f.json", {"n": object()})
except TypeError:
    print("failed", checkpoint.read("f.json"))

def killed(value, **how):
    jvm = SparkContext._gateway.proc
    jvm.kill()
    jvm.wait()
    return "{}"

json.dumps = killed
try:
    checkpoint.write("f.json", {"n": 3})
except Exception:
    print("killed", flush=True)
os._exit(0)
"""
"""Writes a file twice; then a write fails, and the JVM is killed while it writes."""


@pytest.mark.spark
def test_a_write_that_is_cut_off_leaves_the_former_content(tmp_path: Path) -> None:
    """A write replaces the file; one that fails, or whose JVM is killed, leaves it as it was."""
    child = subprocess.run(
        [sys.executable, "-c", CUT_OFF, str(tmp_path / "new")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.stdout.splitlines() == ["failed {'n': 2}", "killed"], child.stderr
    assert json.loads((tmp_path / "new" / "f.json").read_bytes()) == {"n": 2}


class Name(str):
    """A path, its status, and a file system that notes in which order its files are deleted."""

    __slots__ = ()

    def getPath(self) -> Name:
        """The path of a status."""
        return self

    def getName(self) -> str:
        """The name of a path."""
        return str(self)


OTHERS = ("lost+found", "orders.db", "state-of-the-art.pdf", "musterling", ".ssh")
"""What an operator may have in a folder that is given as the checkpoint."""


def test_an_emptied_checkpoint_is_behind_or_new_at_any_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What shows that it is not new goes behind Spark's files, and muster's files go last.

    What neither of them has written stays, for the folder may not be the job's alone.
    """
    names = [
        "muster-jobs.json",
        "commits",
        "muster.lock",
        "state",
        "offsets",
        ".muster-jobs.json.crc",
        *OTHERS,
        ".metadata.7.tmp",
    ]
    deleted: list[str] = []
    system = SimpleNamespace(
        exists=lambda _: True,
        listStatus=lambda _: [Name(name) for name in names],
        delete=lambda path, _: deleted.append(path),
    )
    monkeypatch.setattr(files, "place", lambda *_: (None, system))
    assert files.Checkpoint(cast("Any", None), "/c", is_new=False).emptied().is_new
    assert deleted == [
        *("state", "offsets", ".metadata.7.tmp", "commits"),
        *("muster-jobs.json", ".muster-jobs.json.crc"),
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b'{"jobs": ["a", ', "Expecting value: line 1 column 16"),
        (b'{"jobs": "\xff"}', "codec can't decode"),
        (b"[]", "not a JSON object"),
    ],
)
def test_a_file_that_is_not_whole_is_named(content: bytes, why: str) -> None:
    """The error names the file, what is wrong with it, and what to do."""
    with pytest.raises(UnreadableCheckpoint, match=r"file /c/f\.json cannot be read: ") as error:
        json_object(content, "/c/f.json")
    assert why in str(error.value)
    assert "Give --checkpoint a new folder" in str(error.value)


def test_a_whole_file_is_read() -> None:
    """A JSON object is returned as it is."""
    assert json_object(b'{"jobs": ["a"]}', "/c/f.json") == {"jobs": ["a"]}
