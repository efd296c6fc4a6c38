"""A checkpoint in memory, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from muster.streams.checkpoint.files import Checkpoint, Offsets

Files = dict[str, dict[str, Any]]
"""File name → its JSON object; `ENDS` has where the newest batch ends."""
ENDS = "ends of the newest batch"


class MemoryCheckpoint(Checkpoint):
    """Keeps muster's files in a dictionary.

    Args:
        files: the files that are there; what is written goes into it.
        folder: the name of the checkpoint.
        is_new: whether no batch was committed in it.
    """

    def __init__(self, files: Files, folder: str = "/checkpoint", *, is_new: bool) -> None:
        super().__init__(cast("Any", None), folder, is_new)
        object.__setattr__(self, "_files", files)

    def read(self, name: str) -> dict[str, object]:
        """The JSON object in a file; an empty one if there is no such file."""
        files: Files = self.__dict__["_files"]
        return files.get(name, {})

    def emptied(self) -> MemoryCheckpoint:
        """The checkpoint after all its files were deleted."""
        files: Files = self.__dict__["_files"]
        files.clear()
        return MemoryCheckpoint(files, self.folder, is_new=True)

    def write(self, name: str, value: Mapping[str, object]) -> None:
        """Replace a file."""
        self.__dict__["_files"][name] = dict(value)

    def begun_ends(self) -> Offsets | None:
        """Where the newest batch ends; None = there is none."""
        ends: Offsets | None = self.__dict__["_files"].get(ENDS)
        return ends
