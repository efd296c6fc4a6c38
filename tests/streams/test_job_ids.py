"""A job refuses its checkpoint if a job with another checkpoint has claimed since."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, cast

import pytest
from support.streams.checkpoints import Files, MemoryCheckpoint

from muster.protocol.records import CoordinatorClaim
from muster.streams.checkpoint import job_ids
from muster.streams.checkpoint.job_ids import FILE
from muster.streams.errors import StaleCheckpoint


class Cluster:
    """Checkpoints by folder, and the job that claimed last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: dict[str, Files] = defaultdict(dict)
        self._newest: str | None = None
        monkeypatch.setattr(job_ids, "newest_claim", lambda clients, prefix: self._claim())

    def _claim(self) -> CoordinatorClaim | None:
        job = self._newest
        return None if job is None else CoordinatorClaim(job=job, host="h", version="1")

    def start(self, folder: str, job: str, newest: str | None, *, is_new: bool = False) -> None:
        """Start a job on a checkpoint; `newest` is the job of the newest claim."""
        self._newest = newest
        checkpoint = MemoryCheckpoint(self.files[folder], folder, is_new=is_new)
        job_ids.check(checkpoint, cast("Any", None), ["muster"], job)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster without checkpoints and claims."""
    return Cluster(monkeypatch)


def test_an_overtaken_job_does_not_go_on(cluster: Cluster) -> None:
    """Jobs may share a checkpoint; a claim by a job on another checkpoint makes it stale."""
    cluster.start("/one", "a", None, is_new=True)
    cluster.start("/one", "b", "a")
    cluster.start("/one", "a2", "b")
    cluster.start("/two", "c", "a2", is_new=True)
    with pytest.raises(StaleCheckpoint, match="/one is behind: job c on h"):
        cluster.start("/one", "b2", "c")
    assert cluster.files["/one"] == {FILE: {"jobs": ["a", "b", "a2"]}}
    cluster.start("/two", "c2", "c")
    cluster.start("/one", "b2", "c2", is_new=True)
    with pytest.raises(StaleCheckpoint, match="/two is behind: job b2"):
        cluster.start("/two", "c3", "b2")


def test_a_checkpoint_of_an_earlier_version_is_accepted(cluster: Cluster) -> None:
    """A checkpoint without a list of jobs is accepted and gets a list of bounded length."""
    cluster.start("/old", "n", "another-job")
    assert cluster.files["/old"] == {FILE: {"jobs": ["n"]}}
    for number in range(2 * job_ids.JOBS_MAX):
        cluster.start("/old", f"n{number}", cluster.files["/old"][FILE]["jobs"][-1])
    assert len(cluster.files["/old"][FILE]["jobs"]) == job_ids.JOBS_MAX
