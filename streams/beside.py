"""Small files of ours beside Spark's in a checkpoint, on whatever file system it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing

from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession


def read(spark: SparkSession, checkpoint: str, name: str) -> dict[str, object]:
    """The JSON object in a file; empty when there is no such file."""
    path, system = place(spark, f"{checkpoint}/{name}")
    if not system.exists(path):
        return {}
    with closing(system.open(path)) as stream:
        found: dict[str, object] = json.loads(bytes(stream.readAllBytes()))
    return found


def write(spark: SparkSession, checkpoint: str, name: str, value: Mapping[str, object]) -> None:
    """Write a JSON object over what was there."""
    path, system = place(spark, f"{checkpoint}/{name}")
    with closing(system.create(path, True)) as stream:
        stream.write(json.dumps(value, indent=2, sort_keys=True).encode())


def place(spark: SparkSession, name: str) -> tuple[JavaObject, JavaObject]:
    """A path of Hadoop's, and its file system."""
    jvm, context = spark._jvm, spark.sparkContext
    assert jvm is not None  # the session runs
    path = jvm.org.apache.hadoop.fs.Path(name)
    return path, path.getFileSystem(context._jsc.hadoopConfiguration())
