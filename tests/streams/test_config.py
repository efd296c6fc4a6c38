"""The job's settings: they are checked, and errors name the key."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark
import pytest

from muster.protocol.errors import ConfigError
from muster.streams import spark_session
from muster.streams.job_settings import (
    DEPRECATED,
    NEEDED,
    PREFIXES_MAX,
    REPORTS,
    SETTINGS,
    JobConfig,
    job_config,
)
from muster.streams.spark_session import ALWAYS, LOCAL, POSIX, session_settings

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
        ({"conf": ["spark.master=mesos://x"]}, "spark.master"),
        ({"conf": ["spark.ui.enabled =true"]}, "spark.ui.enabled "),
        ({"conf": [f"{REPORTS}=1"]}, REPORTS),
        ({"conf": ["spark.sql.ansi.enabled=true"]}, "spark.sql.ansi.enabled"),
    ],
)
def test_errors_name_the_key(given: dict, key: str) -> None:
    """A bad setting is refused, and the error names its key."""
    with pytest.raises(ConfigError) as caught:
        job_config(**{"checkpoint": "/c", **given})
    assert caught.value.key == key


@pytest.mark.parametrize("key", NEEDED)
def test_what_muster_cannot_work_with_is_refused(key: str) -> None:
    """Another value of such a setting of Spark is refused; the needed one is Spark's, in any case.

    muster sets each of them, so a file of defaults of Spark's has no other; but not those of which
    Spark warns where they are set.
    """
    needed, why = NEEDED[key]
    assert job_config(checkpoint="/c", conf=[f"{key}={needed.upper()}"]).spark == {
        key: needed.upper()
    }
    with pytest.raises(ConfigError, match=why):
        job_config(checkpoint="/c", conf=[f"{key}=other"])
    assert ALWAYS.get(key) == (None if key in DEPRECATED else needed)


def test_a_master_among_sparks_settings_is_the_master() -> None:
    """It wins, as all settings of Spark's do, and a cluster's driver does not bind to loopback."""
    there = job_config(checkpoint="/c", conf=["spark.master=spark://there:7077"])
    assert (there.master, there.cores, there.spark) == ("spark://there:7077", None, {})
    settings = session_settings(there, JARS)
    assert settings["spark.master"] == "spark://there:7077"
    assert not settings.keys() & LOCAL.keys()
    three = job_config(checkpoint="/c", master="yarn", conf=["spark.master=local[3]"])
    assert (three.master, three.cores) == ("local[3]", 3)


def test_the_python_of_sparks_workers() -> None:
    """The user's setting wins over the environment, and that over this process' interpreter."""
    config = job_config(checkpoint="/c")
    chosen = job_config(checkpoint="/c", conf=["spark.pyspark.python=/env/bin/python"])
    environment = {"PYSPARK_PYTHON": "/other"}
    assert spark_session.python(chosen, environment) == "/env/bin/python"
    assert spark_session.python(config, environment) == "/other"
    assert spark_session.python(config, {}) == sys.executable


def test_a_spark_of_another_version_is_refused(tmp_path: Path) -> None:
    """Only the Spark that PySpark is made for is started; under spark-submit it runs already."""
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-3.5.1.jar").touch()
    other = {"SPARK_HOME": str(tmp_path)}
    with pytest.raises(ConfigError, match=f"expected a Spark {pyspark.__version__}") as refusal:
        spark_session.check_home(other)
    assert refusal.value.key == "SPARK_HOME"
    spark_session.check_home({**other, "PYSPARK_GATEWAY_PORT": "1"})
    spark_session.check_home({})
    for fine in ("", str(Path(pyspark.__file__).parent)):
        spark_session.check_home({"SPARK_HOME": fine})
    (tmp_path / "jars" / f"spark-core_2.13-{pyspark.__version__}-vendor.jar").touch()
    spark_session.check_home(other)


def test_a_secret_under_a_wrong_key_is_not_shown() -> None:
    """Where `kafka.` is forgotten, the error, which logs keep, does not have the password."""
    with pytest.raises(ConfigError, match=r"sasl\.password") as refusal:
        job_config(checkpoint="/c", conf=["sasl.password=hunter22"])
    assert "hunter22" not in str(refusal.value)
    with pytest.raises(ConfigError, match="without blanks") as refusal:
        job_config(checkpoint="/c", conf=["spark.ssl.keyPassword = hunter22"])
    assert "hunter22" not in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("muster.stal.ms", "did you mean muster.stall.ms?"),
        ("muster.xyz", "muster config describe lists all settings"),
        ("stall", "keys begin with spark. (Spark's), kafka."),
    ],
)
def test_a_misspelt_setting_names_the_nearest(key: str, instead: str) -> None:
    """The error blames the key, not its value, and says what to write or where all are listed."""
    with pytest.raises(ConfigError) as refusal:
        job_config(checkpoint="/c", conf=[f"{key}=3"])
    assert str(refusal.value).startswith(f"no setting {key!r}: {instead}")


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
