"""Every Spark setting that the code sets or the pages name exists in the installed Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pyspark

from muster.streams import spark_session

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "docs" / "operations.md", ROOT / "docker" / "kubernetes.yaml")
JARS = Path(pyspark.__file__).parent / "jars"
READERS = ("core", "common-utils", "sql", "sql-api", "catalyst", "yarn", "kubernetes")
"""Spark's jars whose classes read settings."""
OPEN = ("spark.hadoop.", "spark.executorEnv.", "spark.yarn.appMasterEnv.")
"""The name after one of these prefixes is the user's choice."""
ROCKSDB = "spark.sql.streaming.stateStore.rocksdb."
"""The name after this prefix is a constant of its own in Spark."""
SETTING = re.compile(r"(?<![.\w])spark\.[A-Za-z][A-Za-z0-9.]+")
CLASSES = re.compile(r"(?i)conf|package|job|client|hadooputil|rocksdb")


def test_every_setting_is_one_of_this_spark() -> None:
    """Each name is a constant in Spark's classes; a misspelt name is not."""
    ours = {*spark_session.ALWAYS, *spark_session.POSIX, *spark_session.LOCAL}
    recommended = {key.rstrip(".") for page in PAGES for key in SETTING.findall(page.read_text())}
    assert {"spark.yarn.maxAppAttempts", "spark.kubernetes.namespace"} <= recommended
    wrong = "spark.sql.shuffle.partition"
    assert _missing({_constant(key) for key in {*ours, *recommended, wrong}}) == {wrong}


def _constant(key: str) -> str:
    """The part of a setting's name that Spark's code contains."""
    return next((start for start in OPEN if key.startswith(start)), key.removeprefix(ROCKSDB))


def _missing(names: set[str]) -> set[str]:
    left = {b"\1" + len(name).to_bytes(2) + name.encode(): name for name in names}
    for code in _classes():
        for constant in [constant for constant in left if constant in code]:
            del left[constant]
    return set(left.values())


def _classes() -> Iterator[bytes]:
    for part in READERS:
        (file,) = JARS.glob(f"spark-{part}_*.jar")
        with ZipFile(file) as jar:
            for name in jar.namelist():
                if name.endswith(".class") and CLASSES.search(name):
                    yield jar.read(name)
