"""Whether a checkpoint is of these topics."""

from __future__ import annotations

from typing import Any

import pytest
from support.streams.checkpoints import Files, MemoryCheckpoint

from muster.streams.checkpoint import topic_ids
from muster.streams.checkpoint.topic_ids import FILE, check
from muster.streams.errors import OtherTopics

TOPIC = "muster.membership"


@pytest.mark.parametrize("is_new", [False, True])
def test_other_topics(is_new: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job does not go on from its checkpoint; one in which nothing was committed is emptied."""
    monkeypatch.setattr(topic_ids, "ids", lambda *_: {TOPIC: "2"})
    clients: Any = None
    files: Files = {FILE: {TOPIC: "1"}, "offsets": {}}
    checkpoint = MemoryCheckpoint(files, is_new=is_new)
    if not is_new:
        with pytest.raises(OtherTopics, match=f"is of other topics: {TOPIC} were created again"):
            check(checkpoint, clients, [TOPIC])
        return
    assert check(checkpoint, clients, [TOPIC]) == {TOPIC: "2"}
    assert files == {FILE: {TOPIC: "2"}}


@pytest.mark.parametrize("is_new", [False, True])
def test_a_topic_that_is_compared_from_now_on(
    is_new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version did not compare it: its id is written down beside the others."""
    monkeypatch.setattr(topic_ids, "ids", lambda *_: {TOPIC: "1", "muster.coordinator": "5"})
    clients: Any = None
    files: Files = {FILE: {TOPIC: "1"}, "offsets": {}}
    check(MemoryCheckpoint(files, is_new=is_new), clients, [TOPIC])
    assert files == {FILE: {TOPIC: "1", "muster.coordinator": "5"}, "offsets": {}}
