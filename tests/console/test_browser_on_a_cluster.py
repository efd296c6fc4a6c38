"""A real fleet in the browser: a real Kafka, the real Spark job, worker processes, and Chromium.

The test prints how long after its publication each change was on the page; it asserts no time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.console import browser as browsers
from support.console.browser import page
from support.console.pages import delays, members, moves, shows, text
from support.console.served import in_thread
from support.kafka.brokers import Topics
from support.streams.job import Job
from support.suite.waiting import until
from support.worker.fleet import Fleet

from muster.cli.main import main
from muster.console.app import Options
from muster.console.reader import Reader
from muster.console.request_guard import Access
from muster.console.server import Console, ListenAddress
from muster.console.store import Store
from muster.protocol.events import Drain
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.topics import TopicKind

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.broker, pytest.mark.spark]

GROUP = "orders"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser; the tests are skipped where there is none, before anything else is started."""
    with browsers.browser() as made:
        yield made


@pytest.fixture
def console(browser: Browser, kafka: Topics, job: Job) -> Iterator[str]:
    """A console as `muster console --metrics` starts it; gives its URL."""
    assert browser.is_connected()
    store = Store([kafka.prefix])
    options = Options(kafka.clients, metrics=job.url)
    reader = Reader(kafka.clients, store)
    with in_thread(Console(store, reader, options, Access(), ListenAddress(port=0))) as url:
        until(lambda: store.caught_up, "everything has been read", story=lambda: store.fault)
        yield url


def plan_of_the_command_line(kafka: Topics, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The moves of `muster plan --remove-member W2`: task, from → to, reason."""
    where = ["--bootstrap-server", kafka.address, "--topic-prefix", kafka.prefix]
    capsys.readouterr()
    asked = ["plan", "--group", GROUP, "--remove-member", "W2", "--format", "json", *where]
    assert main(asked) == 0
    moves = json.loads(capsys.readouterr().out)["moves"]
    return [[m["task"], f"{m['from']} → {m['to']}", m["reason"]] for m in moves]


def as_it_was(opened: Page, cause: str) -> set[str]:
    """Step back until the page shows the generation with this cause; its members."""
    while cause not in text(opened, "#cause"):
        before = text(opened, "#generation")
        opened.click("#back")
        opened.wait_for_function(
            "before => document.querySelector('#generation').innerText !== before", arg=before
        )
    return set(members(opened))


def test_a_fleet_is_seen_live_and_as_it_was(
    browser: Browser,
    console: str,
    kafka: Topics,
    job: Job,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A join, a drain and a SIGKILL; back in time; what if; and what the job says of itself."""
    fleet = Fleet(kafka, tmp_path, GROUP)
    with fleet, page(browser) as opened:
        fleet.configure(12)
        fleet.start("W1", "W2", "W3")
        fleet.settled()
        opened.goto(f"{console}group?g={GROUP}")
        until(lambda: set(members(opened)) == {"W1", "W2", "W3"}, "the page shows three members")
        seen: dict[str, int] = {}

        def happens(what: str, cause: str, settled: dict[str, int]) -> None:
            """Wait until the page shows the cause, then each member's number of tasks."""
            shows(opened, "#cause", cause)
            seen[what] = delays(opened)[before]
            until(
                lambda: {m: t.count("_") for m, t in members(opened).items()} == settled,
                f"the page shows {settled}",
                story=lambda: members(opened),
            )

        before = len(delays(opened))
        fleet.start("W4")
        happens("join", "W4 joined", dict.fromkeys(("W1", "W2", "W3", "W4"), 3))
        plan = plan_of_the_command_line(kafka, capsys)

        opened.click("#tab-plan")
        opened.locator("#plan-members label", has_text="W2").locator("input").check()
        opened.click("#plan-form button[type=submit]")
        shows(opened, "#plan-count", f"{len(plan)} tasks and copies move")
        assert moves(opened) == plan
        opened.click("#banner-live")

        before = len(delays(opened))
        kafka.write(TopicKind.MEMBERSHIP, Drain(group=GroupId(GROUP), member=MemberId("W2")))
        happens("drain", "W2 draining", {"W1": 4, "W2": 0, "W3": 4, "W4": 4})
        before = len(delays(opened))
        fleet.kill("W3")
        happens("kill", "W3 expired", {"W1": 6, "W2": 0, "W4": 6})

        assert as_it_was(opened, "W2 draining") == {"W1", "W2", "W3", "W4"}
        shows(opened, "#banner-text", "As it was at")
        opened.click("#banner-live")
        shows(opened, "#cause", "W3 expired")
        health_is_shown(opened, console, kafka)
        fleet.stop("W1", "W4")
        fleet.check()
    with capsys.disabled():
        said = ", ".join(f"{what} {ms} ms" for what, ms in seen.items())
        print(f"\nfrom publication to the page: {said}")


def health_is_shown(opened: Page, console: str, kafka: Topics) -> None:
    """The health page: the job's figures, a dead letter decoded, and the whole of the doctor."""
    kafka.write(TopicKind.MEMBERSHIP, Drain(group=GroupId(GROUP), member=MemberId("W9")))
    kafka.write_raw(TopicKind.MEMBERSHIP, GROUP.encode(), b"\xff no event")
    opened.goto(f"{console}health")
    shows(opened, "#findings", "settled")
    shows(opened, "#job", "rows that wait to be read")
    row = opened.locator("#job tr", has_text="from an event to its assignment")
    until(lambda: row.count() == 1, "the percentiles are shown", story=lambda: text(opened, "#job"))
    cells = row.locator("td").all_inner_texts()
    assert int(cells[0]) > 0, cells
    assert all(cell.endswith("s") for cell in cells[1:]), cells
    drain = opened.locator("#letters li", has_text="UNKNOWN_MEMBER_ID")
    drain.wait_for()
    assert f"{kafka.name(TopicKind.MEMBERSHIP)}-" in drain.locator(".origin").inner_text()
    drain.locator("summary").click()
    assert '"member": "W9"' in drain.locator("pre").inner_text()
    other = opened.locator("#letters li", has_text="UNDECODABLE")
    other.wait_for()
    other.locator("summary").click()
    assert "no event, 10 bytes: ff206e6f" in other.locator("pre").inner_text()
    opened.click("#run-doctor")
    for check in ("kafka", "topic", "rights", "job", "group", "rejected"):
        opened.locator("#doctor tr", has_text=check).first.wait_for()
