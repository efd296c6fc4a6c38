"""A job refuses its checkpoint if a job with another checkpoint has claimed since.

It empties one that lacks what its own job has published (`test_older_checkpoint.py`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from support.kafka.mock_kafka import mock_kafka
from support.state.snapshots import orders
from support.streams.checkpoints import ENDS, Files, MemoryCheckpoint

from muster.kafka.client_settings import ClientSettings, client_settings
from muster.protocol.codec import encode
from muster.protocol.records import CoordinatorClaim, GroupSnapshot
from muster.streams import claims, takeover
from muster.streams.checkpoint import older_than_published, stale_checkpoint, topic_ids
from muster.streams.checkpoint.stale_checkpoint import FILE
from muster.streams.claims import Claims
from muster.streams.errors import StaleCheckpoint
from muster.streams.job_settings import job_config

P = "muster"


class Cluster:
    """Checkpoints by folder, and the jobs that have claimed, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: dict[str, Files] = defaultdict(dict)
        self.claims: list[str] = []
        self.reads: list[int | None] = []
        self.published: list[GroupSnapshot] = []
        monkeypatch.setattr(claims, "read", self._read)
        monkeypatch.setattr(older_than_published, "newest_published", lambda *_: self.published)
        monkeypatch.setattr(topic_ids, "check", lambda *_: None)

    def _read(self, _: ClientSettings, prefix: str, after: int | None = None) -> Claims:
        assert prefix == P
        self.reads.append(after)
        newest = len(self.claims) - 1
        first = newest if after is None else min(after + 1, newest)
        read = {
            epoch: CoordinatorClaim(job=job, host="h", version="1")
            for epoch, job in enumerate(self.claims)
            if epoch >= first
        }
        return Claims(newest, read, {})

    def jobs(self, folder: str) -> list[str]:
        """The ids in the file of a checkpoint."""
        listed: list[str] = self.files[folder][FILE]["jobs"]
        return listed

    def start(
        self, folder: str, job: str, *between: str, is_new: bool = False, standby: bool = False
    ) -> MemoryCheckpoint:
        """Start a job; other jobs claim between its look at the claims and its own claim.

        Returns:
            The checkpoint with which it goes on.
        """
        config = job_config(checkpoint=folder, standby=standby)
        checkpoint = self.checked(folder, job, is_new=is_new, standby=standby)
        self.claims += [*between, job]
        epochs = {P: len(self.claims) - 1}
        goes_on = takeover.confirmed(checkpoint, config, job, epochs)
        assert isinstance(goes_on, MemoryCheckpoint)
        return goes_on

    def checked(
        self, folder: str, job: str, *, is_new: bool = False, standby: bool = False
    ) -> MemoryCheckpoint:
        """Start a job that is killed before it claims."""
        config = job_config(checkpoint=folder, standby=standby)
        checkpoint = MemoryCheckpoint(self.files[folder], folder, is_new=is_new)
        if standby:
            claimable = takeover.claimable(checkpoint, config, job)
            assert isinstance(claimable, MemoryCheckpoint)
            return claimable
        claimable = stale_checkpoint.check(checkpoint, config.clients, [P], job)
        assert isinstance(claimable, MemoryCheckpoint)
        return claimable


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster without checkpoints and claims."""
    return Cluster(monkeypatch)


def test_an_overtaken_job_does_not_go_on(cluster: Cluster) -> None:
    """Jobs may share a checkpoint; a claim by a job on another checkpoint makes it stale."""
    cluster.start("/one", "a", is_new=True)
    cluster.start("/one", "b")
    cluster.start("/one", "a2")
    cluster.start("/two", "c", is_new=True)
    with pytest.raises(StaleCheckpoint, match="/one is behind: job c on h") as error:
        cluster.start("/one", "b2")
    assert str(error.value).endswith("or the folder of that job")
    assert cluster.jobs("/one") == ["a", "b", "a2"]
    cluster.start("/two", "c2")
    cluster.start("/one", "b2", is_new=True)
    with pytest.raises(StaleCheckpoint, match="/two is behind: job b2"):
        cluster.start("/two", "c3")


def test_a_checkpoint_of_an_earlier_version_is_accepted(cluster: Cluster) -> None:
    """A checkpoint without a list of jobs is accepted and gets a list of bounded length.

    One with a list, but without the epochs that were looked at, is judged by the newest claim.
    """
    cluster.claims.append("another-job")
    cluster.start("/old", "n")
    assert cluster.jobs("/old") == ["n"]
    for number in range(2 * stale_checkpoint.JOBS_MAX):
        cluster.start("/old", f"n{number}")
    assert len(cluster.jobs("/old")) == stale_checkpoint.JOBS_MAX
    cluster.files["/old"] = {FILE: {"jobs": cluster.jobs("/old")}}
    cluster.reads.clear()
    cluster.start("/old", "m")
    assert cluster.reads == [None]
    cluster.files["/old"] = {FILE: {"jobs": cluster.jobs("/old")}}
    cluster.claims.append("another-job")
    with pytest.raises(StaleCheckpoint):
        cluster.start("/old", "m2")


def test_starts_whose_claims_are_not_taken_do_not_make_a_checkpoint_stale(cluster: Cluster) -> None:
    """However many starts end before they claim: the job that claimed last is not forgotten."""
    cluster.start("/one", "long ago", is_new=True)
    for number in range(2 * stale_checkpoint.JOBS_MAX):
        cluster.checked("/one", f"n{number}")
    cluster.start("/one", "b")
    assert len(cluster.jobs("/one")) == stale_checkpoint.JOBS_MAX + 1
    cluster.start("/one", "c")
    assert len(cluster.jobs("/one")) == stale_checkpoint.JOBS_MAX


def test_a_claim_between_look_and_claim(cluster: Cluster) -> None:
    """The job does not go on from its checkpoint, nor does the next one on it.

    It does if it is a new checkpoint, or if the job that claimed is one of the same checkpoint.
    """
    assert cluster.start("/new", "n", "other", is_new=True).is_new
    cluster.start("/one", "a", is_new=True)
    cluster.checked("/one", "a2")
    assert not cluster.start("/one", "b", "a2").is_new
    with pytest.raises(StaleCheckpoint, match="/one is behind: job x on h"):
        cluster.start("/one", "c", "x")
    assert "c" in cluster.jobs("/one")
    with pytest.raises(StaleCheckpoint, match="/one is behind: job x on h") as error:
        cluster.start("/one", "d")
    assert str(error.value).endswith("and no task moves")


def test_a_job_that_is_killed_between_its_claim_and_the_second_look(cluster: Cluster) -> None:
    """The newest claim is of a job of this checkpoint, but the one before it is not."""
    cluster.start("/one", "a", is_new=True)
    cluster.checked("/one", "b")
    cluster.claims += ["x", "b"]
    with pytest.raises(StaleCheckpoint, match="/one is behind: job x on h"):
        cluster.start("/one", "c")


def test_a_standby_empties_its_checkpoint_when_another_claims_first(cluster: Cluster) -> None:
    """It goes on with an empty checkpoint behind its claim, and so does the next start on it."""
    cluster.start("/one", "a", is_new=True)
    cluster.files["/one"]["offsets"] = {}
    assert not cluster.start("/one", "b", standby=True).is_new
    assert cluster.start("/one", "c", "x", standby=True).is_new
    assert cluster.files["/one"] == {FILE: {"jobs": ["c"]}}
    assert not cluster.start("/one", "d", standby=True).is_new
    cluster.claims.append("y")
    assert cluster.checked("/one", "e", standby=True).is_new
    assert cluster.files["/one"] == {FILE: {"jobs": ["e"]}}


@pytest.mark.parametrize("standby", [False, True])
def test_a_checkpoint_that_lacks_what_its_own_job_published(
    cluster: Cluster, standby: bool
) -> None:
    """A job empties it, whatever the claims say, and reads the groups back; so does a standby."""
    cluster.start("/one", "a", is_new=True)
    cluster.files["/one"][older_than_published.FILE] = {"epochs": {P: 0}, "taken": {}}
    cluster.files["/one"][ENDS] = {"muster.membership": {0: 9, 1: 40}}
    cluster.published = [replace(orders(), through=(("muster.membership", 1, 39),))]
    assert not cluster.start("/one", "b", standby=standby).is_new
    cluster.published = [replace(orders(), through=(("muster.membership", 1, 40),))]
    assert cluster.start("/one", "c", standby=standby).is_new
    assert cluster.files["/one"] == {FILE: {"jobs": ["c"]}}


def test_a_checkpoint_of_an_earlier_version_is_not_compared(cluster: Cluster) -> None:
    """It does not say which groups were read back into it; from its next start on it does."""
    cluster.start("/one", "a", is_new=True)
    cluster.files["/one"][ENDS] = {"muster.membership": {0: 9, 1: 40}}
    cluster.published = [replace(orders(), through=(("muster.membership", 1, 40),))]
    checkpoint = cluster.start("/one", "b")
    assert not checkpoint.is_new
    older_than_published.note_start(checkpoint, {P: orders().coordinator_epoch})
    assert cluster.start("/one", "c").is_new


@pytest.mark.parametrize("standby", [False, True])
def test_a_first_batch_that_was_cut_off_long_ago(cluster: Cluster, standby: bool) -> None:
    """Nothing was committed in the checkpoint, and another coordinator ran since: it is emptied.

    If no other has claimed, the batch is kept, because its rows may have ended the job.
    """
    cluster.start("/one", "a", is_new=True, standby=standby)
    cluster.files["/one"]["offsets"] = {}
    assert cluster.start("/one", "b", is_new=True, standby=standby).is_new
    assert "offsets" in cluster.files["/one"]
    cluster.start("/two", "y", is_new=True)
    assert cluster.start("/one", "c", is_new=True, standby=standby).is_new
    assert cluster.files["/one"] == {FILE: {"jobs": ["c"]}}


def test_claims_as_kafka_has_them() -> None:
    """The newest claim alone, or all behind an epoch; what is no claim is left out."""
    with mock_kafka() as address:
        clients = client_settings(address)
        assert claims.read(clients, P) == (-1, {}, {})
        assert claims.read(clients, P, 5) == (-1, {}, {})
        producer = Producer(clients.producer())
        for job in ("a", "b", "c"):
            record = encode(CoordinatorClaim(job=job, host="h", version="1"))
            producer.produce("muster.coordinator", record.value, record.key, 0)
        assert producer.flush(10) == 0
        assert _read(clients) == {2: "c"}
        assert _read(clients, -1) == {0: "a", 1: "b", 2: "c"}
        assert _read(clients, 0) == {1: "b", 2: "c"}
        assert _read(clients, 9) == {2: "c"}
        producer.produce("muster.coordinator", b"rubbish", b"key", 0)
        assert producer.flush(10) == 0
        newest, read, _ = claims.read(clients, P, 1)
        assert (newest, [*read]) == (3, [2])
        assert claims.read(clients, P) == (3, {}, {})


def _read(clients: ClientSettings, after: int | None = None) -> dict[int, str]:
    newest, read, _ = claims.read(clients, P, after)
    assert newest == 2
    return {epoch: claim.job for epoch, claim in read.items()}
