"""The lock of a standby's checkpoint folder."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from muster.protocol.errors import ConfigError
from muster.streams.checkpoint import folder_lock
from muster.streams.checkpoint.files import LOCK
from muster.streams.job_settings import job_config


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_every_name_of_a_folder_is_the_same_folder(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path and Hadoop's URLs lock one file in that folder, and make no other folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "checkpoint"
    with folder_lock.held(job_config(checkpoint=form.format(folder))):
        assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"]
        with (
            pytest.raises(ConfigError, match="no other process uses"),
            folder_lock.held(job_config(checkpoint=str(folder))),
        ):
            pass
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it was given back


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """The error has the option and the reason."""
    (tmp_path / "file").touch()
    config = job_config(checkpoint=str(tmp_path / "file" / "checkpoint"))
    with (
        pytest.raises(ConfigError, match=r"--checkpoint: .*written \(Not a directory\)"),
        folder_lock.held(config),
    ):
        pass


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.EWOULDBLOCK, "no other process uses"), (errno.ENOLCK, "has locks")],
)
def test_why_a_lock_is_not_given(
    number: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without locks, such as some of NFS, is no other process."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(folder_lock.fcntl, "flock", refuse)
    with (
        pytest.raises(ConfigError, match=said),
        folder_lock.held(job_config(checkpoint=str(tmp_path))),
    ):
        pass
