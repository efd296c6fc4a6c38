"""The web app over a real socket, without Kafka: pages, answers, streams, and who may do what."""

from __future__ import annotations

import asyncio
import base64
import gzip
import http.client
import json
import os
import re
import socket
import struct
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import bcrypt
import numpy as np
import psutil
import pytest
from structlog.testing import capture_logs
from support.console.played import PREFIX, demo_life, fleet_of, play, scenario
from support.console.served import LiveGroup, may, served
from support.suite.waiting import until

from muster.console.frames import NAME_CHARS_MAX
from muster.console.request_guard import Access, Passwords, networks
from muster.console.store import GroupKey, Store
from muster.errors import BadInput
from muster.output import wall_ms
from muster.protocol.codec import encode
from muster.protocol.records import Quarantine

HOSTILE = '<img src=x onerror="alert(1)">\u05d0' + "y" * 200

RECORDS = 60


class Answer(NamedTuple):
    """What the console answered."""

    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.text)


def ask(
    url: str, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> Answer:
    """One request; header names with underscores."""
    listen_on = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(listen_on.hostname or "", listen_on.port, timeout=20)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        data = answer.read()
        if answer.headers.get("content-encoding") == "gzip":
            data = gzip.decompress(data)
        return Answer(answer.status, answer.headers, data.decode())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def store() -> Store:
    """Two groups: one of the demo, one with a hostile name."""
    made = Store([PREFIX])
    play(made, demo_life())
    play(made, demo_life(), name=HOSTILE)
    return made


@pytest.fixture(scope="module")
def url(store: Store) -> Iterator[str]:
    """A console that only reads."""
    with served(store) as address:
        yield address


def test_pages_are_closed_to_everything_from_outside(url: str) -> None:
    """No page loads or runs anything that is not a file of ours, and none may be framed."""
    for path in ("/", "/group?g=g", "/health", "/static/map.js", "/nowhere"):
        answer = ask(url, path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"<script(?! src=\"/static/)|<style| style=| on\w+=\"", answer.text), (
            path
        )
        assert "://" not in re.sub(r"http://www\.w3\.org\S+", "", answer.text) or "static" in path


def test_static_files_name_no_other_site() -> None:
    """Scripts and styles load nothing from other sites."""
    folder = Path(__file__).parents[2] / "muster" / "console" / "static"
    for file in folder.iterdir():
        assert "http" not in file.read_text().replace("http://www.w3.org", "").replace(
            "http://COORDINATOR", ""
        ), file
        assert file.stat().st_size < 40_000, file


def test_a_frame_is_the_group_at_a_moment(url: str, store: Store) -> None:
    """The newest, one by number, and one by time."""
    history = store.history(GroupKey(PREFIX, "g"))
    assert history is not None
    assert ask(url, "/api/frame?g=g").json["head"]["generation"] == 4
    second = next(m for m in history.moments if m.generation == 2)
    for query in (f"number={second.number}", f"at={second.at_ms}"):
        assert ask(url, f"/api/frame?g=g&{query}").json["head"]["generation"] == 2
    assert ask(url, "/api/frame?g=g&number=9999").status == 404
    assert ask(url, "/api/frame?g=g&number=-1").status == 400
    assert ask(url, "/api/frame?g=none").json["error"].startswith("no group 'none'")


def test_answers_give_reasons(url: str) -> None:
    """A task's sentence, a generation's moves, and a plan."""
    assert ask(url, "/api/why?g=g&task=0_9").json["sentence"] == "0_9 runs on W4"
    assert ask(url, "/api/why?g=g&task=7_7").status == 404
    assert ask(url, "/api/generation?g=g&generation=4").json["cause"] == "W3 expired"
    plan = ask(url, "/api/plan?g=g&remove=W1").json
    assert plan["count"] == 6
    assert ask(url, "/api/plan?g=g&config=nonsense").status == 400


def test_hostile_names_are_only_ever_text(url: str) -> None:
    """A group whose name is markup: the page has it escaped, and answers carry it as JSON."""
    query = urllib.parse.urlencode({"g": HOSTILE})
    page = ask(url, f"/group?{query}")
    assert page.status == 200
    assert "<img src=x" not in page.text
    assert "&lt;img src=x" in page.text
    frame = ask(url, f"/api/frame?{query}")
    assert frame.headers["content-type"] == "application/json"
    assert len(frame.json["head"]["group"]) <= NAME_CHARS_MAX


def test_requests_under_another_name_are_refused(url: str) -> None:
    """A page of another site that gives its name our address reads nothing."""
    assert ask(url, "/api/frame?g=g", Host="evil.example:8090").status == 421
    assert ask(url, "/api/frame?g=g", Host="localhost:8090").status == 200
    assert ask(url, "/livez", Host="evil.example").status == 200


def test_a_page_of_another_site_asks_nothing(url: str) -> None:
    """A browser says whose page asks; a link to a page of the console may be anywhere."""
    for path in ("/api/plan?g=g&remove=W1", "/api/doctor", "/events/fleet"):
        assert ask(url, path, Sec_Fetch_Site="cross-site").status == 403
        assert ask(url, path, Sec_Fetch_Site="same-site").status == 403
    assert ask(url, "/api/plan?g=g&remove=W1", Sec_Fetch_Site="same-origin").status == 200
    assert ask(url, "/group?g=g", Sec_Fetch_Site="cross-site").status == 200


def test_passwords_of_a_file(store: Store, tmp_path: Path) -> None:
    """Only a name and password of the file are let in; a changed file counts at once."""
    file = tmp_path / "users"

    def write(password: str) -> None:
        hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
        file.write_text(f"# people\nann:{hashed}\n")

    def basic(name: str, password: str) -> dict[str, str]:
        pair = base64.b64encode(f"{name}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}

    write("one")
    with served(store, Access(passwords=Passwords(str(file)))) as url:
        refused = ask(url, "/")
        assert (refused.status, refused.headers["www-authenticate"][:5]) == (401, "Basic")
        assert ask(url, "/", **basic("ann", "one")).status == 200
        assert ask(url, "/", **basic("ann", "one")).status == 200
        for name, password in (("ann", "two"), ("bob", "one"), ("ann", "")):
            assert ask(url, "/", **basic(name, password)).status == 401
        assert ask(url, "/", Authorization="Basic ???").status == 401
        write("two")
        until(lambda: ask(url, "/", **basic("ann", "two")).status == 200, "the new file counts")
        assert ask(url, "/", **basic("ann", "one")).status == 401
        file.write_text("ann:plain\n")
        until(
            lambda: ask(url, "/", **basic("ann", "two")).status == 401, "a broken file lets none in"
        )
        assert ask(url, "/livez").status == 200


def test_a_password_that_is_checked_keeps_no_page_waiting(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check is slow on purpose, and anyone may send wrong passwords."""
    file = tmp_path / "users"
    file.write_text(f"ann:{bcrypt.hashpw(b'one', bcrypt.gensalt(4)).decode()}\n")
    begun, goes_on, answers = threading.Event(), threading.Event(), []

    def slow(*_: bytes) -> bool:
        begun.set()
        return not goes_on.wait(20)

    monkeypatch.setattr(bcrypt, "checkpw", slow)
    with served(store, Access(passwords=Passwords(str(file)))) as url:
        guess = {"Authorization": f"Basic {base64.b64encode(b'ann:two').decode()}"}
        thread = threading.Thread(target=lambda: answers.append(ask(url, "/", **guess).status))
        thread.start()
        assert begun.wait(20)
        assert ask(url, "/livez").status == 200
        assert answers == []
        goes_on.set()
        thread.join()
    assert answers == [401]


@pytest.mark.parametrize(
    "cut",
    [lambda h: h[:-1], lambda h: h[:28], lambda h: f"{h}x", lambda h: h.replace("$04$", "$99$"),
     lambda h: f"{h[:28]}/{h[29:]}"],
)  # fmt: skip
def test_a_hash_that_is_not_whole_is_refused_at_the_start(
    tmp_path: Path, cut: Callable[[str], str]
) -> None:
    """The message names the line; bcrypt takes it for a wrong password, or fails at a login."""
    hashed = bcrypt.hashpw(b"one", bcrypt.gensalt(4)).decode()
    file = tmp_path / "users"
    file.write_text(f"ann:{hashed}\nbob:{cut(hashed)}\n")
    with pytest.raises(BadInput, match="line 2: expected NAME:HASH with a whole bcrypt hash"):
        Passwords(str(file))


def test_the_log_says_why_no_user_is_let_in(tmp_path: Path) -> None:
    """Once for each cause: the file was broken while the console runs."""
    file = tmp_path / "users"
    file.write_text(f"ann:{bcrypt.hashpw(b'one', bcrypt.gensalt(4)).decode()}\n")
    passwords = Passwords(str(file))
    file.write_text("ann:secret\n")
    os.utime(file, ns=(1, 1))  # two writes within one tick of the file system have one time
    with capture_logs() as logged:
        for _ in range(2):
            login = f"Basic {base64.b64encode(b'ann:one').decode()}"
            assert asyncio.run(passwords.user(login)) is None
    (line,) = logged
    assert "users, line 1: expected" in line["why"]
    assert "secret" not in line["why"]


@pytest.mark.parametrize("text", ["ann:secret\n", "", "# nothing\n", ":$2b$\n"])
def test_a_wrong_password_file_is_an_error(tmp_path: Path, text: str) -> None:
    """The message names the file and what is expected, and not what is in it."""
    file = tmp_path / "users"
    file.write_text(text)
    with pytest.raises(BadInput) as error:
        Passwords(str(file))
    assert "secret" not in str(error.value)
    with pytest.raises(BadInput):
        Passwords(str(tmp_path / "none"))


def test_the_users_of_a_reverse_proxy(store: Store) -> None:
    """Its header is believed from its address only."""
    here, there = networks(["127.0.0.1"]), networks(["10.0.0.0/8"])
    with served(store, Access(proxy_header="X-Forwarded-User", proxies=here)) as url:
        assert ask(url, "/").status == 401
        page = ask(url, "/", X_Forwarded_User="ann")
        assert (page.status, "ann" in page.text) == (200, True)
    with served(store, Access(proxy_header="X-Forwarded-User", proxies=there)) as url:
        assert ask(url, "/", X_Forwarded_User="ann").status == 401
    with pytest.raises(BadInput):
        networks(["nonsense"])


def test_a_console_that_only_reads_writes_nothing(url: str) -> None:
    """Even a request with everything right is refused."""
    answer = drain(url)
    assert (answer.status, answer.json["error"]) == (
        400,
        "this console only reads; start it with --allow drain",
    )


def drain(url: str, body: dict[str, Any] | None = None, **change: str) -> Answer:
    """A request to drain W1, as the page makes it."""
    page = ask(url, "/group?g=g")
    token = re.search(r'name="muster-token" content="(\w+)"', page.text)
    assert token is not None
    headers = {
        "content_type": "application/json",
        "origin": url.rstrip("/"),
        "sec_fetch_site": "same-origin",
        "x_muster_token": token[1],
        **change,
    }
    sent = json.dumps(body or {"member": "W1", "on": True, "confirmed": True})
    return ask(url, "/api/drain?g=g", "POST", sent, **headers)


def test_a_write_must_come_from_a_page_of_ours(store: Store) -> None:
    """Another site, another origin, no token, a form: each is refused before anything is read."""
    with served(store, writes=may("drain")) as url:
        for change in (
            {"sec_fetch_site": "cross-site"},
            {"sec_fetch_site": "same-site"},
            {"origin": "https://evil.example"},
            {"origin": ""},
            {"x_muster_token": "0" * 64},
            {"x_muster_token": "ü"},
            {"content_type": "application/x-www-form-urlencoded"},
            {"content_type": "text/plain"},
        ):
            assert drain(url, **change).status == 403, change
        for body, message in (
            ({"member": "W1", "on": True}, "not confirmed"),
            ({"member": "W9", "on": True, "confirmed": True}, "no member 'W9' in this group"),
            ({"member": 3, "on": True, "confirmed": True}, "expected a member"),
            ({"member": "W1", "confirmed": True, "on": True, "x": "y" * 70_000}, "the request is"),
        ):
            answer = drain(url, body)
            assert answer.status in (400, 404)
            assert answer.json["error"].startswith(message)
        assert ask(url, "/api/drain?g=g").status == 405


def test_a_quarantined_group_is_not_drained() -> None:
    """The drain would become a dead letter, so it is not written, and the page says why."""
    store = Store([PREFIX])
    play(store, demo_life())
    snapshot = store.history(GroupKey(PREFIX, "g")).newest
    aside = replace(snapshot, quarantine=Quarantine(1, "it was ended by SIGABRT"))
    store.take(PREFIX, aside, wall_ms(), encode(aside).value or b"")
    with served(store, writes=may("drain")) as url:
        answer = drain(url)
    assert answer.status == 400
    assert answer.json["error"].startswith("group 'g' is quarantined, and its events become dead")


def messages(connection: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The messages of a stream; fails when only signs of life come."""
    quiet = 0
    for raw in connection:
        line = raw.decode()
        quiet = quiet + 1 if line.startswith(": ") else quiet
        assert quiet < 3, "the stream says nothing new"
        if line.startswith("data: "):
            yield json.loads(line[6:])


def stream(url: str, path: str) -> tuple[http.client.HTTPConnection, Iterator[dict[str, Any]]]:
    """A stream of the console."""
    listen_on = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(listen_on.hostname or "", listen_on.port, timeout=20)
    connection.request("GET", path)
    return connection, messages(connection.getresponse())


def test_a_join_is_sent_to_the_open_page() -> None:
    """First the whole group, then what the join changes: no more than that."""
    store = Store([PREFIX])
    life = demo_life()
    life = {**life, "events": life["events"][:3], "until_ms": 9_000}
    group = LiveGroup(store, life)
    with served(store) as url:
        connection, news = stream(url, "/events/group?g=orders")
        first = next(news)
        assert (first["whole"], first["head"]["generation"], len(first["rounds"])) == (True, 1, 2)
        assert first["moments"][-1][2] == 1
        group.happen({"join": {"id": "W4", "rack": "r1"}})
        seen = next(news)
        while seen.get("head", {}).get("generation") != 2:
            seen = next(news)
        assert "whole" not in seen
        assert [row[0] for row in seen["members"].values() if row] != []
        assert len(seen.get("tasks", [])) <= 3
        connection.close()


def test_the_list_is_sent_and_then_only_what_differs() -> None:
    """A second group is one row; the first is not sent again."""
    store = Store([PREFIX])
    play(store, demo_life())
    with served(store) as url:
        connection, news = stream(url, "/events/fleet")
        first = next(news)
        assert list(first["rows"]) == ["muster|g"]
        play(store, demo_life(), name="second")
        second = next(news)
        while "rows" not in second:
            second = next(news)
        assert list(second["rows"]) == ["muster|second"]
        connection.close()


def broken(url: str, path: str) -> Iterator[socket.socket]:
    """Browsers that misbehave: one reads nothing, one sends half a request, one hangs up."""
    listen_on = urllib.parse.urlsplit(url)
    request = f"GET {path} HTTP/1.1\r\nHost: {listen_on.netloc}\r\n\r\n".encode()
    for sent, hangs_up in ((request, False), (request[:20], False), (request, True)):
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        made.connect((listen_on.hostname, listen_on.port))
        made.sendall(sent)
        if hangs_up:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            made.close()  # with a reset, as a browser that was killed
        else:
            yield made


def test_slow_and_broken_browsers_slow_nothing_down() -> None:
    """Twelve of them are there: another page shows the newest record, and nothing piles up."""
    store = Store([PREFIX])
    tasks = [{"subtopology": "0", "partitions": 4_000}]
    LiveGroup(store, scenario(tasks, fleet_of(3), until_ms=9_000))
    with served(store) as url, ExitStack() as stack:
        for _ in range(6):
            for each in broken(url, "/events/group?g=orders"):
                stack.enter_context(each)
        live, news = stream(url, "/events/group?g=orders")
        stack.callback(live.close)
        next(news)
        before = psutil.Process().memory_info().rss
        record, at_ms = store.histories()[0][1].newest, wall_ms()
        assert record is not None
        for number in range(RECORDS):
            named = replace(record, cause=f"cause {number}", holder=np.roll(record.holder, number))
            store.take(PREFIX, named, at_ms + number, encode(named).value or b"")
        seen = next(news)
        while seen.get("head", {}).get("cause") != f"cause {RECORDS - 1}":
            seen = next(news)
        grown = psutil.Process().memory_info().rss - before
        assert grown < 60_000_000, f"{grown:,} bytes more for {RECORDS} records of 4,000 tasks"
