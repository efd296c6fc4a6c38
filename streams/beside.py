"""Muster's small JSON files beside Spark's in a checkpoint, on any of Spark's file systems."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing

from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession


def read(spark: SparkSession, checkpoint: str, name: str) -> dict[str, object]:
    """Read the JSON object in a file; an empty one if there is no such file."""
    path, system = place(spark, f"{checkpoint}/{name}")
    if not system.exists(path):
        return {}
    with closing(system.open(path)) as stream:
        found: dict[str, object] = json.loads(bytes(stream.readAllBytes()))
    return found


def write(spark: SparkSession, checkpoint: str, name: str, value: Mapping[str, object]) -> None:
    """Write a JSON object; it replaces the file."""
    path, system = place(spark, f"{checkpoint}/{name}")
    with closing(system.create(path, True)) as stream:
        stream.write(json.dumps(value, indent=2, sort_keys=True).encode())


def newest_number(spark: SparkSession, folder: str) -> int | None:
    """The highest number that names a file of a folder; None = there is none."""
    path, system = place(spark, folder)
    if not system.exists(path):
        return None
    names = (status.getPath().getName() for status in system.listStatus(path))
    return max((int(name) for name in names if name.isdigit()), default=None)


def place(spark: SparkSession, name: str) -> tuple[JavaObject, JavaObject]:
    """Hadoop's path object of a name, and the path's file system."""
    jvm, context = spark._jvm, spark.sparkContext
    assert jvm is not None  # the session runs
    path = jvm.org.apache.hadoop.fs.Path(name)
    return path, path.getFileSystem(context._jsc.hadoopConfiguration())
