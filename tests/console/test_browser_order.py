"""Open pages while the group changes, answers are late, and the console or its proxy fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from support.console import browser as browsers
from support.console.browser import page
from support.console.pages import shows, text
from support.console.played import PREFIX, demo_life, fleet_of, play, scenario
from support.console.served import LiveGroup, may, served

from muster.broker.embedded_kafka import free_port
from muster.console import drains_and_settings
from muster.console.server import ListenAddress
from muster.console.store import Store
from muster.errors import Unreachable

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

W4 = {"join": {"id": "W4", "rack": "r1", "heartbeat_ms": 3_000}}
HOLD = """
const real = window.fetch;
const released = new Promise((resolve) => { window.release = resolve; });
const shown = () => document.querySelector("#why-sentence")?.innerText ?? "";
window.drawn = 0;
window.fetch = async (url, options) => {
  const answer = await real(url, options);
  if (!String(url).includes("/api/why")) return answer;
  const isOlder = String(url).includes("number=");
  if (isOlder) {
    window.held = true;
    await released;
  }
  const said = await answer.text();
  answer.text = async () => {
    setTimeout(() => { // the page has used the answer by then
      if (isOlder) window.used = { older: JSON.parse(said).sentence, shown: shown() };
      else window.drawn += 1;
    });
    return said;
  };
  return answer;
};
"""
"""Holds the answers about a task at an older moment back until `release` is called, notes what the
page shows as soon as it has used one, and counts the answers about the newest moment."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of the file."""
    with browsers.browser() as made:
        yield made


def three(store: Store) -> LiveGroup:
    """The group orders: W1, W2 and W3 have joined."""
    life = {**demo_life(), "until_ms": 9_000}
    return LiveGroup(store, {**life, "events": life["events"][:3]})


def buttons(opened: Page) -> list[str]:
    """The buttons of the member's panel."""
    found: list[str] = opened.locator("#why .actions button").all_inner_texts()
    return found


def test_a_console_that_starts_again_without_a_group(browser: Browser) -> None:
    """The list drops the group that the page had from the stream before."""
    both, one, port = Store([PREFIX]), Store([PREFIX]), free_port()
    for store, name in ((both, "alpha"), (both, "beta"), (one, "alpha")):
        play(store, demo_life(), name=name)
    with page(browser) as opened:
        with served(both, listen_on=ListenAddress(port=port)) as url:
            opened.goto(url)
            shows(opened, "#summary", "2 groups")
        shows(opened, "#pulse", "no connection")
        with served(one, listen_on=ListenAddress(port=port)):
            shows(opened, "#summary", "1 group")
            assert opened.locator("#rows th a").all_inner_texts() == ["alpha"]


def test_a_stream_that_is_answered_with_an_error_is_asked_again(browser: Browser) -> None:
    """A proxy answers 502 once; the page is live without being loaded again."""
    store = Store([PREFIX])
    play(store, demo_life())
    asked: list[str] = []

    def once(route: Any) -> None:
        asked.append(route.request.url)
        if len(asked) == 1:
            route.fulfill(status=502, body="bad gateway")
        else:
            route.continue_()

    with served(store) as url, page(browser) as opened:
        opened.route("**/events/fleet", once)
        opened.goto(url)
        shows(opened, "#pulse", "live")
        shows(opened, "#rows", "g")
        assert len(asked) == 2


def test_a_group_that_does_not_exist_is_named_when_all_is_read(browser: Browser) -> None:
    """The page was opened while the console still read; What if is empty and does not fail."""
    store = Store([PREFIX])
    with served(store) as url, page(browser) as opened:
        store.caught_up = False
        opened.goto(f"{url}group?g=absent")
        shows(opened, "#pulse", "reading")
        assert opened.locator("#missing").is_hidden()
        opened.click("#tab-plan")
        store.caught_up = True
        opened.wait_for_selector("#missing:visible")


def test_what_became_of_a_drain_stays_when_news_arrive(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka fails after a member has joined meanwhile: the page says so, and goes on saying it."""
    answered = threading.Event()

    def append(*_: object, **__: object) -> None:
        answered.wait(60)
        raise Unreachable("Kafka does not answer")

    monkeypatch.setattr(drains_and_settings, "append", append)
    store = Store([PREFIX])
    group = three(store)
    with served(store, writes=may("drain")) as url, page(browser) as opened:
        opened.goto(f"{url}group?g=orders&member=W2")
        opened.click("text=Drain…")
        opened.click("#confirm-yes")
        group.happen(W4, after_ms=100)
        shows(opened, "#cause", "W4 joined")
        answered.set()
        shows(opened, "#panel-why", "Drain W2: Kafka does not answer")
        group.happen({"leave": "W4"}, after_ms=100)
        shows(opened, "#cause", "W4 left")
        shows(opened, "#panel-why", "Drain W2: Kafka does not answer")


def test_a_members_panel_never_becomes_another_members(browser: Browser) -> None:
    """W3 is killed and W9 gets its slot: the panel of W3 says that it is gone."""
    store = Store([PREFIX])
    group = three(store)
    with served(store, writes=may("drain")) as url, page(browser) as opened:
        opened.goto(f"{url}group?g=orders&member=W3")
        shows(opened, "#why", "Member W3")
        assert buttons(opened) == ["What if it leaves?", "Drain…"]
        group.happen({"crash": "W3"}, after_ms=60_000)
        shows(opened, "#why", "It is not in the group")
        group.happen({"join": {"id": "W9", "rack": "r1", "heartbeat_ms": 3_000}}, after_ms=100)
        shows(opened, "#cause", "W9 joined")
        assert text(opened, "#why h2") == "Member W3"
        assert buttons(opened) == []
        opened.click("#back")
        opened.click("#back")
        shows(opened, "#why", "load")  # it was a member then
        assert buttons(opened) == []


def test_buttons_act_on_the_group_and_not_on_a_plan(browser: Browser) -> None:
    """The plan without W2 draws it as draining; it is not, so its drain cannot be cancelled."""
    store = Store([PREFIX])
    three(store)
    with served(store, writes=may("drain")) as url, page(browser) as opened:
        opened.goto(f"{url}group?g=orders&member=W2")
        opened.click("text=What if it leaves?")
        shows(opened, "#plan-count", "move")
        opened.evaluate(
            "muster.theMap.onPick({kind: 'member', slot: muster.theMap.state.sorted()"
            ".find((each) => each.id === 'W2').slot})"
        )
        shows(opened, "#why", "draining")
        assert buttons(opened) == ["What if it leaves?", "Drain…"]


def test_an_older_answer_replaces_no_newer_one(browser: Browser) -> None:
    """The answer about an older moment comes when the page is live again."""
    store = Store([PREFIX])
    group = three(store)
    group.happen({"drain": "W2"}, after_ms=3_000)
    with served(store) as url, page(browser) as opened:
        opened.add_init_script(HOLD)
        opened.goto(f"{url}group?g=orders&task=0_4")
        shows(opened, "#why-sentence", "0_4 runs on")
        now = text(opened, "#why-sentence")
        opened.click("#back")
        opened.wait_for_function("() => window.held")
        drawn = opened.evaluate("window.drawn")
        opened.click("#banner-live")
        # The newest answer is on the page before the older one comes, so it cannot hide that one.
        opened.wait_for_function("(drawn) => window.drawn > drawn", arg=drawn)
        opened.evaluate("release()")
        opened.wait_for_function("() => window.used")
        used = opened.evaluate("window.used")
        assert used["older"] != now
        assert used["shown"] == now


def test_what_if_offers_the_members_by_keyboard_and_keeps_up(browser: Browser) -> None:
    """The arrow key opens it filled; a member that joins meanwhile is offered too."""
    store = Store([PREFIX])
    group = three(store)
    with served(store) as url, page(browser) as opened:
        opened.goto(f"{url}group?g=orders")
        shows(opened, "#cause", "joined")
        opened.locator("#tab-why").focus()
        opened.keyboard.press("ArrowRight")
        shows(opened, "#plan-members", "W3")
        opened.locator("#plan-members input").nth(1).check()
        group.happen(W4, after_ms=100)
        shows(opened, "#plan-members", "W4")
        assert opened.locator("#plan-members input:checked").count() == 1


FIT = """
([text, width, keeps]) =>
  muster.pen.fit({measureText: (shown) => ({width: shown.length})}, text, width, keeps)
"""


def test_names_that_differ_at_their_ends_look_different(browser: Browser) -> None:
    """Long names on the map and in a member's panel: the cut leaves what tells them apart."""
    store = Store([PREFIX])
    units = [f"{'long-' * 60}{country}" for country in ("eu", "us")]
    tasks = [{"subtopology": name, "partitions": 2} for name in units]
    play(store, scenario(tasks, fleet_of(1), until_ms=5_000))
    with served(store) as url, page(browser) as opened:
        opened.goto(f"{url}group?g=g&member=W1")
        opened.wait_for_selector("#why .chip")
        chips = opened.locator("#why .chip")
        ends = [f"{end}_{n}" for end in ("eu", "us") for n in (0, 1)]
        assert [shown[-4:] for shown in chips.all_inner_texts()] == ends
        chips.nth(2).click()
        shows(opened, "#why-sentence", f"{units[1]}_0 runs on W1")
        for keeps, shown in (("start", "long-lo…"), ("end", "…ng-us_0"), ("ends", "long…s_0")):
            assert opened.evaluate(FIT, [f"{units[1]}_0", 8, keeps]) == shown
        assert opened.evaluate(FIT, ["short", 8, "end"]) == "short"
        assert opened.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
