"""A data directory that the embedded Kafka cannot use."""

from __future__ import annotations

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
