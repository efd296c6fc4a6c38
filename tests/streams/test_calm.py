"""The short run that loads groups ends when the members that waited have been answered."""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql.streaming.query import StreamingQuery

from muster.streams.query import CALM_S, CALM_S_MAX, Calm


class Query:
    """What a look sees of a query."""

    lastProgress: object = None  # noqa: N815, Spark's name
    busy = True

    @property
    def status(self) -> dict[str, Any]:
        """As Spark reports it."""
        message = "Processing new data" if self.busy else "Waiting for data to arrive"
        return {"message": message, "isDataAvailable": False, "isTriggerActive": self.busy}


def looks(query: Query) -> tuple[Calm, list[float]]:
    """A watch over a query, and its time: a list of one number."""
    time_s = [100.0]
    return Calm(cast(StreamingQuery, query), lambda: time_s[0]), time_s


def test_it_ends_when_it_is_calm_and_the_first_batch_is_stored() -> None:
    """Idle for a while is not enough: without the first batch the groups are not loaded."""
    query = Query()
    calm, time_s = looks(query)
    query.busy = False
    time_s[0] += CALM_S_MAX + 1
    assert not calm()
    query.busy, query.lastProgress = True, {}
    calm, time_s = looks(query)
    assert not calm()
    query.busy = False
    time_s[0] += CALM_S - 0.1
    assert not calm()
    query.busy = True
    time_s[0] += 0.2
    assert not calm()
    query.busy = False
    time_s[0] += CALM_S
    assert calm()


def test_a_fleet_that_writes_all_the_time_does_not_keep_it() -> None:
    """After the longest time a query that is never idle is ended all the same."""
    query = Query()
    query.lastProgress = {}
    calm, time_s = looks(query)
    time_s[0] += CALM_S_MAX - 1
    assert not calm()
    time_s[0] += 1
    assert calm()
