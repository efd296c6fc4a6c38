"""The checkpoint as a value: muster's small JSON files in it, on any of Spark's file systems."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import cast

from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

LOCK = "muster.lock"
"""File in the folder that a standby locks (`folder_lock`)."""


@dataclass(frozen=True)
class Checkpoint:
    """The folder in which Spark keeps offsets and state.

    Attributes:
        spark: gives access to the folder's file system.
        folder: path or URL.
        is_new: no batch was committed in it before this run.
    """

    spark: SparkSession
    folder: str
    is_new: bool

    def read(self, name: str) -> dict[str, object]:
        """Read the JSON object in a file; an empty one if there is no such file."""
        path, system = place(self.spark, f"{self.folder}/{name}")
        if not system.exists(path):
            return {}
        with closing(system.open(path)) as stream:
            return cast("dict[str, object]", json.loads(bytes(stream.readAllBytes())))

    def write(self, name: str, value: Mapping[str, object]) -> None:
        """Write a JSON object; it replaces the file."""
        path, system = place(self.spark, f"{self.folder}/{name}")
        with closing(system.create(path, True)) as stream:
            stream.write(json.dumps(value, indent=2, sort_keys=True).encode())

    def emptied(self) -> Checkpoint:
        """The checkpoint after everything in its folder was deleted, a lock excepted."""
        path, system = place(self.spark, self.folder)
        if system.exists(path):
            for status in system.listStatus(path):
                if status.getPath().getName() != LOCK:
                    system.delete(status.getPath(), True)
        return Checkpoint(self.spark, self.folder, is_new=True)

    def begun_batch(self) -> int | None:
        """Number of the newest batch that Spark has begun; None = there is none."""
        return newest_number(self.spark, f"{self.folder}/offsets")

    def committed_batch(self) -> int | None:
        """Number of the newest batch that Spark has committed; None = there is none."""
        return newest_number(self.spark, f"{self.folder}/commits")


def open_checkpoint(spark: SparkSession, folder: str) -> Checkpoint:
    """The checkpoint as a run finds it."""
    return Checkpoint(spark, folder, newest_number(spark, f"{folder}/commits") is None)


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
