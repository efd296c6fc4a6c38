"""A job refuses its checkpoint if a job with another checkpoint has claimed since."""

from __future__ import annotations

from typing import Any, cast

import pytest

from muster.protocol.records import CoordinatorClaim
from muster.streams import beside, succession
from muster.streams.errors import StaleCheckpoint

File = dict[str, Any]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, File]:
    """Checkpoint → the file beside it."""
    found: dict[str, File] = {}
    monkeypatch.setattr(beside, "read", lambda _, checkpoint, name: found.get(checkpoint, {}))
    monkeypatch.setattr(
        beside, "write", lambda _, checkpoint, name, value: found.update({checkpoint: value})
    )
    return found


def start(
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: str,
    job: str,
    last: str | None,
    *,
    is_new: bool = False,
) -> None:
    """Start a job; `last` is the job of the newest claim."""
    claim = None if last is None else CoordinatorClaim(job=last, host="h", version="1")
    monkeypatch.setattr(succession, "newest_claim", lambda clients, prefix: claim)
    none = cast("Any", None)
    succession.check(none, checkpoint, none, ["muster"], job, is_new=is_new)


def test_who_was_overtaken_does_not_go_on(
    files: dict[str, File], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs may share a checkpoint; a claim by a job on another checkpoint makes it stale."""
    start(monkeypatch, "/one", "a", None, is_new=True)
    start(monkeypatch, "/one", "b", "a")
    start(monkeypatch, "/one", "a2", "b")
    start(monkeypatch, "/two", "c", "a2", is_new=True)
    with pytest.raises(StaleCheckpoint, match="/one is behind: job c on h"):
        start(monkeypatch, "/one", "b2", "c")
    assert files["/one"] == {"jobs": ["a", "b", "a2"]}
    start(monkeypatch, "/two", "c2", "c")
    start(monkeypatch, "/one", "b2", "c2", is_new=True)
    with pytest.raises(StaleCheckpoint, match="/two is behind: job b2"):
        start(monkeypatch, "/two", "c3", "b2")


def test_a_checkpoint_of_an_earlier_version_is_taken_at_its_word(
    files: dict[str, File], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint without a list of jobs is accepted and gets a list of bounded length."""
    start(monkeypatch, "/old", "n", "another-job")
    assert files["/old"] == {"jobs": ["n"]}
    for number in range(2 * succession.JOBS_MAX):
        start(monkeypatch, "/old", f"n{number}", files["/old"]["jobs"][-1])
    assert len(files["/old"]["jobs"]) == succession.JOBS_MAX
