"""What one page is told of a group that goes and comes back, and of the list after a reconnect."""

from __future__ import annotations

import json
import threading
import urllib.request
from typing import Any

import pytest
from support.console.kafka_groups import consumer, seen
from support.console.played import PREFIX, demo_life, play
from support.console.served import served

from muster.console import event_streams
from muster.console.event_streams import FleetStream, GroupStream, SharedViews
from muster.console.kafka_groups import PublishedShadows
from muster.console.store import SHADOWED, GroupKey, Store
from muster.output import wall_ms


def told(stream: GroupStream | FleetStream) -> dict[str, Any]:
    """The next message."""
    made: dict[str, Any] = json.loads(stream.message() or "{}")
    return made


def names(message: dict[str, Any]) -> set[str]:
    """The members in a message."""
    return {row[0] for row in message.get("members", {}).values()}


def test_a_group_that_comes_back_is_another_group() -> None:
    """Adopted and handed back: open pages and new ones get the new members and moments."""
    store = Store([PREFIX])
    store.caught_up = True
    views, shadows, now_ms = SharedViews(store), PublishedShadows(store), wall_ms()
    key = GroupKey(SHADOWED, "shop")
    shadows.take(seen(now_ms - 9_000, consumer("A", 0, 1, 2, 3)))
    opened = GroupStream(views, key)
    assert names(told(opened)) == {"A"}
    shadows.keep([])
    assert told(opened)["gone"] is True
    shadows.take(seen(now_ms - 3_000, consumer("C", 0, 1, 2, 3)))
    again = told(opened)
    assert (again["whole"], again["gone"], names(again)) == (True, False, {"C"})
    assert [at_ms for _, at_ms, _ in again["moments"]] == [now_ms - 3_000]
    assert again["rounds"] != []
    assert names(told(GroupStream(views, key))) == {"C"}


def test_topics_made_anew_between_two_messages_are_sent_whole() -> None:
    """The page was never told that the group was gone."""
    store = Store([PREFIX])
    play(store, demo_life())
    opened = GroupStream(SharedViews(store), GroupKey(PREFIX, "g"))
    first = told(opened)
    store.clear()
    play(store, demo_life(), shift_ms=1_000)
    again = told(opened)
    assert again["whole"] is True
    assert [at_ms - 1_000 for _, at_ms, _ in again["moments"]] == [
        at_ms for _, at_ms, _ in first["moments"]
    ]


def test_the_first_message_of_the_list_replaces_all_rows() -> None:
    """After a reconnect the page drops groups that are gone; later messages only change rows."""
    store = Store([PREFIX])
    stream = FleetStream(SharedViews(store))
    assert told(stream)["whole"] is True
    store.fault = "another message"
    assert told(stream) == {"fault": "another message"}


def test_pages_that_ask_at_once_share_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new record wakes all pages of its group, and the frame of a large group takes long."""
    store = Store([PREFIX])
    play(store, demo_life())
    ((key, history),) = store.histories()
    views, begun, goes_on = SharedViews(store), threading.Event(), threading.Event()
    make, asked, given = event_streams.frame, [], []

    def slow(*args: Any) -> Any:
        asked.append(args)
        begun.set()
        assert goes_on.wait(20)
        return make(*args)

    monkeypatch.setattr(event_streams, "frame", slow)
    moment = history.moments[-1]
    pages = [
        threading.Thread(target=lambda: given.append(views.frame(key, moment))) for _ in range(5)
    ]
    for page in pages:
        page.start()
    assert begun.wait(20)
    goes_on.set()
    for page in pages:
        page.join()
    assert len(asked) == 1
    assert [each is given[0] for each in given] == [True] * 5


def test_the_list_of_groups_keeps_no_page_of_a_group_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the rows of a large fleet are computed, the frame of a group is made."""
    store = Store([PREFIX])
    play(store, demo_life())
    ((key, history),) = store.histories()
    views = SharedViews(store)
    made: list[object] = []

    def rows(*_: object) -> dict[str, object]:
        page = threading.Thread(
            target=lambda: made.append(views.frame(key, history.moments[-1])), daemon=True
        )
        page.start()
        page.join(30)
        assert made, "the page waits for the list"
        return {}

    monkeypatch.setattr(event_streams, "rows", rows)
    assert views.fleet() == {}


@pytest.mark.parametrize("page", ["/events/fleet", f"/events/group?prefix={PREFIX}&group=g"])
def test_open_pages_let_the_console_stop(page: str, caplog: pytest.LogCaptureFixture) -> None:
    """Their streams end. A server that gives up waiting for them logs an error."""
    store = Store([PREFIX])
    play(store, demo_life())
    with served(store) as url:
        stream = urllib.request.urlopen(url.rstrip("/") + page, timeout=30)
        assert stream.readline() == b"retry: 1500\n"
    with stream:
        stream.read()  # to its end
    assert [record.getMessage() for record in caplog.records] == []
