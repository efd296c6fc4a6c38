"""A data directory that the embedded Kafka cannot use."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from muster.broker.embedded_kafka import EmbeddedKafka
from muster.broker.errors import BrokerFailed


@pytest.mark.parametrize("place", ["data", "data/kafka.log/x"])
def test_a_data_directory_that_cannot_be_written_is_named(place: str, tmp_path: Path) -> None:
    """It is named before a JVM is started, with the reason."""
    (tmp_path / "data" / "kafka.log").mkdir(parents=True)  # a folder where the log is to be
    (tmp_path / "data" / "kafka.log" / "x").touch()
    with pytest.raises(BrokerFailed, match=r"cannot be written \((Is a dir|File exists)"):
        EmbeddedKafka(tmp_path / place).start()


def test_a_name_with_other_letters(tmp_path: Path) -> None:
    """Java reads properties as Latin-1; Kafka would use a folder of another name."""
    kafka = EmbeddedKafka(tmp_path / r"dâtä 数据 \n")
    kafka.data_dir.mkdir()
    written = kafka._write_config().read_bytes()
    assert written.isascii()
    assert f"log.dirs={kafka.data_dir}/logs\n" in written.decode("unicode_escape")


def test_a_comma_is_refused(tmp_path: Path) -> None:
    """To Kafka it would be two folders."""
    with pytest.raises(BrokerFailed, match="a,b: Kafka accepts no comma in its data directory"):
        EmbeddedKafka(tmp_path / "a,b").start()
    assert not any(tmp_path.iterdir())


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken for a full disk under the command's output."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(BrokerFailed, match=r"data cannot be written \(No space left on device\)"):
        EmbeddedKafka(tmp_path / "data").start()


def test_no_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says which setting names one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(BrokerFailed, match=r"no temporary folder .*\(No such file .*set TMPDIR"):
        EmbeddedKafka()
