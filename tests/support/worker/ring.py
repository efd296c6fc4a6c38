"""A keyring that tests change as an operator would, and the dead letters of refused events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.kafka.brokers import Topics

from muster.cli.main import main
from muster.protocol.records import Rejected
from muster.protocol.topics import TopicKind


class Ring:
    """The keyring that all processes use, changed with `muster keys`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self("create")

    def __call__(self, action: str, *words: str) -> None:
        """Run one `muster keys` command."""
        assert main(["keys", action, str(self.file), *words]) == 0

    def newest(self) -> str:
        """Id of the newest key."""
        return str(json.loads(self.file.read_text())["keys"][0]["id"])

    def secrets(self) -> list[str]:
        """All secrets."""
        return [row["secret"] for row in json.loads(self.file.read_text())["keys"]]

    @contextmanager
    def away(self) -> Iterator[None]:
        """Remove the file for a while."""
        hidden = self.file.with_suffix(".hidden")
        self.file.rename(hidden)
        try:
            yield
        finally:
            hidden.rename(self.file)


def letters(topics: Topics) -> list[tuple[str, bytes]]:
    """Reason and value of every dead letter."""
    return [
        (r.reason, r.value) for r in topics.records(TopicKind.REJECTED) if isinstance(r, Rejected)
    ]
