"""The job's settings: they are checked, and errors name the key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.protocol.errors import ConfigError
from muster.streams.job_settings import PREFIXES_MAX, SETTINGS, JobConfig, job_config
from muster.streams.spark_session import ALWAYS, POSIX, session_settings

JARS = [Path("/j/spark-sql-kafka.jar"), Path("/j/hadoop-bare-naked-local-fs-0.1.0.jar")]


def test_defaults() -> None:
    """With only a checkpoint given, every setting has its default."""
    assert job_config(checkpoint="/c") == JobConfig(checkpoint="/c")


def test_each_prefix_of_a_key_goes_to_its_owner() -> None:
    """Spark gets spark.*, the clients kafka.*, the job muster.*; the last value of a key wins."""
    config = job_config(
        checkpoint="s3a://bucket/c",
        bootstrap="b:1",
        master="local[4]",
        prefixes=["b", "a", "b"],
        conf=[
            "spark.ui.enabled=true",
            "kafka.security.protocol=SSL",
            "muster.batch.rows.max=10",
            "muster.metrics.port=0",
            "muster.batch.rows.max=20",
        ],
    )
    assert (config.prefixes, config.checkpoint, config.spark) == (
        ("a", "b"),
        "s3a://bucket/c",
        {"spark.ui.enabled": "true"},
    )
    assert config.clients.values == {"security.protocol": "SSL", "bootstrap.servers": "b:1"}
    assert (config.rows_per_batch_max, config.metrics_port) == (20, 0)
    assert (config.cores, config.is_posix) == (4, False)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"checkpoint": ""}, "--checkpoint"),
        ({"master": "mesos://x"}, "--master"),
        ({"prefixes": ["a b"]}, "--topic-prefix"),
        ({"conf": ["spark.x"]}, "--conf"),
        ({"checkpoint": "~no-such-user/c"}, "--checkpoint"),
        ({"signing_keys": "~no-such-user/k"}, "--signing-keys"),
        ({"conf": ["musterbatch=1"]}, "musterbatch"),
        ({"conf": ["muster.batch.rows.max=0"]}, "muster.batch.rows.max"),
        ({"conf": ["muster.metrics.port=x"]}, "muster.metrics.port"),
        ({"command_config": "/no/such/file"}, "--command-config"),
    ],
)
def test_errors_name_the_key(given: dict, key: str) -> None:
    """A bad setting is refused, and the error names its key."""
    with pytest.raises(ConfigError) as caught:
        job_config(**{"checkpoint": "/c", **given})
    assert caught.value.key == key


def test_a_secret_under_a_wrong_key_is_not_shown() -> None:
    """Where `kafka.` is forgotten, the error, which logs keep, does not have the password."""
    with pytest.raises(ConfigError, match=r"sasl\.password") as refusal:
        job_config(checkpoint="/c", conf=["sasl.password=hunter22"])
    assert "hunter22" not in str(refusal.value)


def test_more_prefixes_than_a_row_can_number_are_refused() -> None:
    """85 prefixes are accepted; 86 are refused, and the error says how many are too many."""
    prefixes = [f"p{number}" for number in range(PREFIXES_MAX + 1)]
    assert len(job_config(checkpoint="/c", prefixes=prefixes[1:]).prefixes) == 85
    assert len(job_config(checkpoint="/c", prefixes=[*prefixes[1:], "p1"]).prefixes) == 85
    with pytest.raises(ConfigError, match="'86 prefixes' is not accepted; expected at most 85"):
        job_config(checkpoint="/c", prefixes=prefixes)


def test_a_relative_checkpoint_becomes_absolute() -> None:
    """A relative checkpoint becomes absolute, as executors have other working directories."""
    assert job_config(checkpoint="c").checkpoint == str(Path("c").absolute())


def test_every_setting_has_a_field() -> None:
    """Each row of the table fills a field of `JobConfig`."""
    assert {s.field for s in SETTINGS} <= JobConfig.__dataclass_fields__.keys()


def test_session_of_a_posix_checkpoint() -> None:
    """A local checkpoint sets all latency settings; the file system's jar is on the class path."""
    settings = session_settings(job_config(checkpoint="/c", master="local[3]"), JARS)
    assert settings | ALWAYS | POSIX == settings
    assert settings["spark.jars"] == "/j/spark-sql-kafka.jar"
    assert settings["spark.driver.extraClassPath"] == str(JARS[1])
    assert settings["spark.sql.shuffle.partitions"] == "1"
    assert settings["spark.master"] == "local[3]"


def test_session_of_an_object_store() -> None:
    """For an object store no file settings are set, and without --master no master is set."""
    settings = session_settings(job_config(checkpoint="s3a://b/c", master=None), JARS)
    assert not settings.keys() & {*POSIX, "spark.driver.extraClassPath"}
    assert "spark.master" not in settings


def test_the_users_settings_win() -> None:
    """A user's value replaces the default, but class paths and jars are joined."""
    conf = ["spark.sql.shuffle.partitions=7", "spark.jars=/u.jar", "spark.driver.extraClassPath=/x"]
    settings = session_settings(job_config(checkpoint="/c", conf=conf), JARS)
    assert settings["spark.sql.shuffle.partitions"] == "7"
    assert settings["spark.jars"] == "/j/spark-sql-kafka.jar,/u.jar"
    assert settings["spark.driver.extraClassPath"] == f"{JARS[1]}{os.pathsep}/x"
