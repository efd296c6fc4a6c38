"""The checkpoint as a value: muster's small JSON files in it, on any of Spark's file systems."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TypeAlias

from py4j.java_gateway import JavaObject, is_instance_of
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from muster.streams.errors import UnreadableCheckpoint

Offsets: TypeAlias = dict[str, dict[int, int]]
"""topic → partition → offset."""

_IS_TEMPORARY = re.compile(r"\.muster-.+\.json\..+\.tmp")
_COMMITS, _OFFSETS = "commits", "offsets"
_OURS = re.compile(r"\.?((offsets|commits|sources|state|metadata)(\.[\w.-]+)?|muster[.-].+)")
"""What Spark and muster write into the folder itself: folders, files, their checksums, and the
temporary files of a write that was cut off."""
LOCK = "muster.lock"
"""File in the folder that a standby coordinator locks (`folder_lock`)."""


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
        """Read the JSON object in a file; an empty one if there is no such file.

        Raises:
            UnreadableCheckpoint: the file holds something else.
        """
        content = self._content(name)
        return {} if content is None else json_object(content, f"{self.folder}/{name}")

    def _content(self, name: str) -> bytes | None:
        """What is in a file; None = there is no such file."""
        path, system = place(self.spark, f"{self.folder}/{name}")
        if not system.exists(path):
            return None
        gateway = self.spark.sparkContext._gateway
        if is_instance_of(gateway, system, "org.apache.hadoop.fs.ChecksumFileSystem"):
            # It keeps the checksum in a file of its own, which is renamed a moment later.
            system = system.getRawFileSystem()
        with closing(system.open(path)) as stream:
            return bytes(stream.readAllBytes())

    def write(self, name: str, value: Mapping[str, object]) -> None:
        """Write a JSON object; it replaces the file.

        The file has its former content until the new one is complete: Spark writes that under
        another name and renames it, as it does with its own files. An object store that cannot
        rename onto a file shows a new one only when it is complete.
        """
        jvm, (path, system) = self.spark._jvm, place(self.spark, f"{self.folder}/{name}")
        assert jvm is not None  # the session runs
        managers = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
        hadoop = self.spark.sparkContext._jsc.hadoopConfiguration()
        manager = managers.create(path.getParent(), hadoop)
        kind = manager.getClass().getSimpleName()
        is_atomic = kind != "FileSystemBasedCheckpointFileManager" or manager.isLocal()
        if is_atomic:
            manager.mkdirs(path.getParent())
            stream = manager.createAtomic(path, True)
        else:  # its rename leaves a file that is there as it is; what is not closed is not there
            stream = system.create(path, True)
        try:
            stream.write(json.dumps(value, indent=2, sort_keys=True).encode())
            stream.close()
        except BaseException:
            with suppress(Py4JError, OSError):
                if is_atomic:
                    stream.cancel()
                for status in system.listStatus(path.getParent()):  # a failed `close` leaves it
                    if _IS_TEMPORARY.fullmatch(status.getPath().getName()):
                        system.delete(status.getPath(), False)
            raise

    def emptied(self) -> Checkpoint:
        """The checkpoint after all that Spark and muster wrote in it was deleted, a lock excepted.

        Other files stay: an operator may have named a folder that is not the job's alone.
        What shows that it is not new goes behind Spark's other files, and muster's files go last,
        so that a start after a kill finds the checkpoint behind, as before, or new.
        """
        path, system = place(self.spark, self.folder)
        if system.exists(path):
            paths = [status.getPath() for status in system.listStatus(path)]
            for each in sorted(paths, key=lambda each: _last_to_go(each.getName())):
                if each.getName() != LOCK and _OURS.fullmatch(each.getName()):
                    system.delete(each, True)
        return Checkpoint(self.spark, self.folder, is_new=True)

    def newest_batches(self) -> tuple[int | None, int | None]:
        """Numbers of the newest batch that Spark has begun, and of the newest it has committed."""
        begun = newest_number(self.spark, f"{self.folder}/{_OFFSETS}")
        return begun, newest_number(self.spark, f"{self.folder}/{_COMMITS}")

    def begun_ends(self) -> Offsets | None:
        """Where the newest batch ends that Spark has begun; None = none, or it is not known."""
        begun = newest_number(self.spark, f"{self.folder}/{_OFFSETS}")
        content = None if begun is None else self._content(f"{_OFFSETS}/{begun}")
        return None if content is None else batch_ends(content)


def batch_ends(content: bytes) -> Offsets | None:
    """The end of a batch in Spark's file of it; None where Spark wrote it in another form.

    The file has a line for the version, one for settings, and one for each source. The job has one
    source, whose line is a JSON object: topic → partition → offset behind the last row.
    """
    try:
        _, _, source = content.decode().splitlines()
        return {
            str(topic): {int(partition): int(end) for partition, end in ends.items()}
            for topic, ends in json.loads(source).items()
        }
    except (ValueError, AttributeError, TypeError):
        return None


def json_object(content: bytes, file: str) -> dict[str, object]:
    """The JSON object in a file; `file` is its name, for the error.

    Raises:
        UnreadableCheckpoint: it is none, as when a write was cut off.
    """
    try:
        value = json.loads(content)
    except ValueError as error:
        why = str(error) if content else "it is empty"
    else:
        if isinstance(value, dict):
            return value
        why = "not a JSON object"
    raise UnreadableCheckpoint(
        f"the checkpoint's file {file} cannot be read: {why}. Probably the disk was full, or the "
        "process was killed, while an earlier version wrote it. Give --checkpoint a new folder: "
        "the groups are read back from Kafka, and no task moves"
    )


def _last_to_go(name: str) -> int:
    return 2 if name.lstrip(".").startswith("muster") else int(name == _COMMITS)


def open_checkpoint(spark: SparkSession, folder: str) -> Checkpoint:
    """The checkpoint as a run finds it."""
    return Checkpoint(spark, folder, newest_number(spark, f"{folder}/{_COMMITS}") is None)


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
