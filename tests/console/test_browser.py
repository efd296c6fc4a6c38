"""The console in a real browser: live, as it was, what if, by keyboard, for screen readers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.console import browser as browsers
from support.console.browser import NARROW, WIDE, page, serious
from support.console.kafka_groups import consumer, seen
from support.console.pages import members, moves, shows, text
from support.console.played import PREFIX, demo_life, fleet_of, play, scenario, with_records_within
from support.console.served import LiveGroup, may, served
from support.repository.sources import ROOT
from support.suite.waiting import until

from muster.console import drains_and_settings
from muster.console import report as reports
from muster.console.kafka_groups import PublishedShadows
from muster.console.plans import Question
from muster.console.report import plan_html, report_html
from muster.console.store import GroupKey, Store
from muster.kafka.writer import Place
from muster.output import wall_ms
from muster.protocol.client_tags import GOVERNED
from muster.protocol.codec import encode
from muster.protocol.events import Drain
from muster.protocol.records import Quarantine
from muster.simulation.scenario_player import BEGINNING_MS
from muster.whatif import planned

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

PICTURE_BYTES_MAX = 150_000
HOSTILE = '<img src=x onerror="alert(1)">"\'&<script>alert(2)</script>\u05d0'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of the file."""
    with browsers.browser() as made:
        yield made


def lags(most: int) -> dict[str, int]:
    """Lags of copies of unit 0, each another one."""
    return {f"0_{n}": most - (n * 7_919) % (most // 2) for n in range(18)}


def orders(store: Store) -> LiveGroup:
    """A group with racks, weights and state: a member is draining, learners catch up."""
    tasks = [
        {"subtopology": "0", "partitions": 18, "stateful": True},
        {"subtopology": "1", "partitions": 6, "weight": 2},
    ]
    life = scenario(
        tasks,
        [
            *fleet_of(5, restore_ms=20_000, ack_ms=200),
            {"at_ms": 60_000, "join": {"id": "W6", "rack": "r0", "restore_ms": 20_000}},
            {"at_ms": 120_000, "config": {"num.standby.replicas": 1}},
            {"at_ms": 200_000, "drain": "W2"},
            {"at_ms": 260_000, "crash": "W3"},
            {"at_ms": 340_000, "join": {"id": "W7", "rack": "r1", "restore_ms": None}},
            {"at_ms": 341_000, "lag": {"member": "W7", **lags(90_000)}},
            {"at_ms": 345_000, "lag": {"member": "W7", **lags(30_000)}},
        ],
        until_ms=346_000,
        assignor="high-availability",
    )
    return LiveGroup(store, life)


@pytest.fixture(scope="module")
def busy() -> Iterator[str]:
    """A console with some groups, one of which is stuck."""
    store = Store([PREFIX])
    orders(store)
    now_ms = wall_ms() - BEGINNING_MS
    for number in range(9):
        shift = now_ms - 100_000 - number * 400_000
        play(store, demo_life(), name=f"payments-{number}", shift_ms=shift)
    stuck = scenario(
        [{"subtopology": "0", "partitions": 12}],
        [*fleet_of(3, ack_ms=400_000), {"at_ms": 500_000, "join": {"id": "W4", "rack": "r1"}}],
        until_ms=520_000,
    )
    play(store, stuck, name="invoices", shift_ms=now_ms - 520_000)
    led = scenario(
        [{"subtopology": "parcels", "partitions": 8}],
        fleet_of(2, tags=dict([GOVERNED])),
        until_ms=60_000,
    )
    play(store, led, name="parcels", shift_ms=now_ms - 900_000)
    looked_at = PublishedShadows(store)
    looked_at.take(seen(wall_ms() - 600_000, consumer("A", 0, 1, 2, 3)))
    looked_at.take(seen(wall_ms() - 200_000, consumer("A", 0, 1), consumer("B", 2, 3)))
    ill(store, "returns", wall_ms() - 420_000)
    with served(store, writes=may("drain", "config")) as url:
        yield url


def ill(store: Store, name: str, at_ms: int) -> None:
    """A group that is quarantined since then: the doctor's findings name it."""
    play(store, demo_life(), name=name, shift_ms=at_ms - BEGINNING_MS - 120_000)
    history = store.history(GroupKey(PREFIX, name))
    assert history is not None
    assert history.newest is not None
    why = Quarantine(at_ms, "its batch was killed twice: more memory than muster.group.bytes.max")
    record = replace(history.newest, quarantine=why)
    store.take(PREFIX, record, at_ms, encode(record).value or b"")


def test_a_join_a_drain_and_a_kill_are_seen_at_once(browser: Browser) -> None:
    """The open page shows each generation with its cause, and the tasks where they went."""
    store = Store([PREFIX])
    life = {**demo_life(), "until_ms": 9_000}
    group = LiveGroup(store, {**life, "events": life["events"][:3]})
    first = {
        "W1": "0_0, 0_3, 0_6, 0_9",
        "W2": "0_1, 0_4, 0_7, 0_10",
        "W3": "0_2, 0_5, 0_8, 0_11",
    }
    with served(store) as url, page(browser) as opened:
        opened.goto(f"{url}group?g=orders")
        shows(opened, "#cause", "W1, W2, W3 joined")
        until(lambda: members(opened) == first, "all tasks have their first owners")
        group.happen({"join": {"id": "W4", "rack": "r1", "heartbeat_ms": 3_000}}, after_ms=100)
        shows(opened, "#cause", "W4 joined")
        until(lambda: members(opened)["W4"] == "0_9, 0_10, 0_11", "W4 has its share")
        group.happen({"drain": "W2"}, after_ms=100)
        shows(opened, "#cause", "W2 draining")
        until(lambda: members(opened)["W2"] == "–", "W2 is empty")
        group.happen({"crash": "W3"}, after_ms=60_000)
        shows(opened, "#cause", "W3 expired")
        until(lambda: set(members(opened)) == {"W1", "W2", "W4"}, "W3 is gone")
        assert text(opened, "#counts").startswith("3 members · 12 tasks")


def test_the_page_shows_the_group_as_it_was(browser: Browser, busy: str) -> None:
    """Back and forth by generation, by slider and by address; then live again."""
    with page(browser) as opened:
        opened.goto(f"{busy}group?g=payments-0")
        shows(opened, "#generation", "generation 4")
        assert set(members(opened)) == {"W1", "W2", "W4"}
        opened.click("#back")
        shows(opened, "#generation", "generation 3")
        shows(opened, "#banner-text", "As it was at")
        assert set(members(opened)) == {"W1", "W2", "W3", "W4"}
        opened.click("#back")
        opened.click("#back")
        shows(opened, "#cause", "W1, W2, W3 joined")
        assert set(members(opened)) == {"W1", "W2", "W3"}
        address = opened.url
        assert "at=" in address
        opened.locator("#slider").press("End")
        shows(opened, "#generation", "generation 4")
        assert opened.locator("#banner").is_hidden()
        opened.goto(address)
        shows(opened, "#cause", "W1, W2, W3 joined")
        opened.click("#banner-live")
        shows(opened, "#generation", "generation 4")


def test_groups_of_kafkas_protocol_are_marked(browser: Browser, busy: str) -> None:
    """Governed and shadowed groups stand in the list; the page of a shadowed one writes nothing."""
    with page(browser) as opened:
        opened.goto(busy)
        for group, mark in (("parcels", "governed"), ("shop", "shadowed")):
            row = opened.locator("#rows tr", has_text=group)
            row.locator("th .badge", has_text=mark).wait_for()
        assert text(opened, "#rows tr:first-child th").startswith(
            "returns"
        )  # what is wrong is first
        assert "is quarantined for 7 min" in text(opened, "#rows tr:first-child .wrong")
        opened.fill("#search", "shadowed")
        opened.locator("#rows a", has_text="shop").click()
        shows(opened, "#counts", "2 members · 4 tasks · placed by Kafka")
        opened.click("#back")
        shows(opened, "#cause", "first seen; placed by range")
        opened.click("#banner-live")
        opened.goto(f"{opened.url}&member=B")
        opened.click("text=What if it leaves?")
        shows(opened, "#plan-answer", "muster shadow --group shop --remove-member B")
        assert opened.locator("button.danger:visible").count() == 0


def test_every_task_member_and_generation_has_an_address(browser: Browser, busy: str) -> None:
    """What is open is in the address; opened anew it shows the same."""
    with page(browser) as opened:
        opened.goto(f"{busy}group?g=payments-0&task=0_9")
        shows(opened, "#why", "0_9 runs on")
        assert "balance 4/0 -> 3/3" in text(opened, "#why")
        opened.locator("#why button", has_text="generation 2").first.click()
        shows(opened, "#why", "W4 joined")
        assert "gen=2" in opened.url
        opened.go_back()
        shows(opened, "#why", "0_9 runs on")
        opened.goto(f"{busy}group?g=payments-0&member=W4")
        shows(opened, "#why", "Member W4")


def test_what_if_is_the_plan_of_the_command_line(browser: Browser) -> None:
    """The page's moves are those of `muster plan --remove-member W2`."""
    store = Store([PREFIX])
    play(store, {**demo_life(), "until_ms": 15_000})
    history = store.history(GroupKey(PREFIX, "g"))
    assert history is not None
    assert history.newest is not None
    plan = planned(history.newest, remove=["W2"])
    with served(store) as url, page(browser) as opened:
        opened.goto(f"{url}group?g=g&member=W2")
        opened.click("text=What if it leaves?")
        shows(opened, "#plan-count", f"{len(plan['moves'])} tasks and copies move")
        assert moves(opened) == [
            [m["task"], f"{m['from']} → {m['to']}", m["reason"]] for m in plan["moves"]
        ]
        assert "muster drain --group g --member W2" in text(opened, "#plan-answer")
        shows(opened, "#banner-text", "A plan: nothing is changed")


def test_the_page_asks_for_news_when_all_its_scripts_have_run(browser: Browser, busy: str) -> None:
    """The first message opens the panel of the address; its buttons come from the last script."""
    with page(browser) as opened:
        opened.add_init_script(
            """
            const Real = EventSource;
            window.EventSource = class extends Real {
              constructor(url) {
                super(url);
                window.actions = typeof muster.memberActions;
              }
            };
            """
        )
        opened.goto(f"{busy}group?g=payments-0&member=W4")
        shows(opened, "#why", "Member W4")
        assert opened.evaluate("window.actions") == "function"


def test_a_drain_is_confirmed_first(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """No writes nothing; yes writes the event of `muster drain`, with who asked."""
    written: list[tuple[Any, str]] = []

    def append(_: object, __: str, event: object, ___: object, by: str) -> Place:
        written.append((event, by))
        return Place("", 0, 0)

    monkeypatch.setattr(drains_and_settings, "append", append)
    store = Store([PREFIX])
    play(store, {**demo_life(), "until_ms": 15_000})
    with served(store, writes=may("drain")) as url, page(browser) as opened:
        opened.goto(f"{url}group?g=g&member=W2")
        opened.click("text=Drain…")
        opened.click("#confirm-no")
        opened.click("text=Drain…")
        assert written == []
        opened.click("#confirm-yes")
        shows(opened, "#why-outcome", "W2: drain ordered")
        (event, by), *rest = written
        assert isinstance(event, Drain)
        assert (event.member, event.on, rest) == ("W2", True, [])
        assert by.startswith("console@")


def test_the_console_works_by_keyboard_alone(browser: Browser, busy: str) -> None:
    """Search, open a group, walk the map, ask why, go back in time, tabs: without a mouse."""
    with page(browser) as opened:
        opened.goto(busy)
        shows(opened, "#rows", "payments-3")
        opened.keyboard.press("/")
        opened.keyboard.type("payments-3")
        opened.wait_for_function("() => document.querySelectorAll('#rows tr').length === 1")
        opened.locator("#rows a").focus()
        opened.keyboard.press("Enter")
        shows(opened, "#generation", "generation 4")
        opened.locator("#map").focus()
        for key in ("Home", "ArrowRight", "ArrowRight"):
            opened.keyboard.press(key)
        shows(opened, "#said", "active on")
        task = text(opened, "#said").split(",")[0]
        opened.keyboard.press("Enter")
        shows(opened, "#why", f"{task} runs on")
        opened.locator("#tab-why").focus()
        opened.keyboard.press("ArrowRight")
        assert opened.locator("#panel-plan").is_visible()
        opened.keyboard.press("ArrowRight")
        assert opened.locator("#panel-rounds").is_visible()
        opened.locator("#rounds button").first.focus()
        opened.keyboard.press("ArrowLeft")
        shows(opened, "#generation", "generation 3")
        opened.keyboard.press("l")
        shows(opened, "#generation", "generation 4")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, busy: str, scheme: str) -> None:
    """The list, a group with a panel, a plan, generations and health; wide and narrow."""
    with page(browser, scheme=scheme) as opened:
        for path, ready in (
            ("", "#rows tr"),
            ("group?g=orders&task=0_3", "#why-sentence"),
            ("group?g=invoices", "#notes li"),
            ("health", "#findings table"),
        ):
            opened.goto(busy + path)
            opened.wait_for_selector(ready)
            assert serious(opened) == [], path
        opened.goto(f"{busy}group?g=orders&member=W4")
        opened.click("text=What if it leaves?")
        opened.wait_for_selector("#plan-count")
        assert serious(opened) == []
        opened.click("#tab-rounds")
        opened.click("#as-table summary")
        assert serious(opened) == []


def test_hostile_names_are_shown_and_do_nothing(browser: Browser) -> None:
    """A group whose name is markup: it is text, on every page (`page` fails if a script runs)."""
    store = Store([PREFIX])
    play(store, demo_life(), name=HOSTILE)
    with served(store) as url, page(browser) as opened:
        opened.goto(url)
        link = opened.locator("#rows a", has_text="<img src=x")
        link.wait_for()
        link.click()
        shows(opened, "h1", "<script>alert(2)</script>")
        shows(opened, "#generation", "generation 4")
        assert opened.locator("main img").count() == 0


def test_pages_fit_a_narrow_window(browser: Browser, busy: str) -> None:
    """At 390 px no page is wider than the window."""
    with page(browser, NARROW) as opened:
        for path, ready in (
            ("", "#rows tr"),
            ("group?g=orders&task=0_3", "#why-sentence"),
            ("health", "#findings table"),
        ):
            opened.goto(busy + path)
            opened.wait_for_selector(ready)
            wide = opened.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, path


def test_a_report_opens_without_a_server(browser: Browser, tmp_path: Path) -> None:
    """From a file: the last record, then back in time, and why a task moved; and a plan."""
    store = Store([PREFIX])
    play(store, demo_life())
    history = store.history(GroupKey(PREFIX, "g"))
    assert history is not None
    assert history.newest is not None
    report, plan = tmp_path / "report.html", tmp_path / "plan.html"
    report.write_text(report_html(history, since_ms=0, made_ms=wall_ms(), source="a test"))
    asked = Question(remove=("W1",))
    plan.write_text(plan_html(history.newest, asked, at_ms=wall_ms(), source="a test"))
    with page(browser, offline=True) as opened:
        opened.goto(report.as_uri())
        shows(opened, "#generation", "generation 4")
        opened.click("#back")
        shows(opened, "#cause", "W2 draining")
        assert "W3" in members(opened)
        opened.click("#tab-rounds")
        opened.locator("#rounds button", has_text="2").click()
        shows(opened, "#why", "balance 4/0 -> 3/3")
        opened.locator("#why button", has_text="0_9").click()
        shows(opened, "#why", "How it came to be there")
        assert serious(opened) == []
        opened.goto(plan.as_uri())
        shows(opened, "#plan-count", "6 tasks and copies move")
        assert serious(opened) == []


def test_the_slider_of_a_large_report(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records within generations are left out, and the slider still goes to each that is there."""
    store = Store([PREFIX])
    play(store, demo_life())
    played = store.history(GroupKey(PREFIX, "g"))
    assert played is not None
    history = with_records_within(played)
    whole = report_html(history, since_ms=0, made_ms=0, source="")
    size = len(whole.partition('id="data">')[2].partition("</script>")[0])
    monkeypatch.setattr(reports, "BYTES_MAX", size - 1)
    report = tmp_path / "report.html"
    report.write_text(report_html(history, since_ms=0, made_ms=0, source=""))
    with page(browser, offline=True) as opened:
        opened.goto(report.as_uri())
        shows(opened, "#generation", "generation 4")
        slider = opened.locator("#slider")
        places = [*range(int(slider.get_attribute("max") or 0), -1, -1)]
        slider.focus()
        went = []
        for place in places:
            assert slider.input_value() == str(place)
            went.append(opened.locator("#generation").inner_text())
            opened.keyboard.press("ArrowLeft")
        assert went == sorted(went, reverse=True)
        assert {*went} == {f"generation {n}" for n in range(5)}


@pytest.mark.parametrize(
    ("name", "path", "size", "scheme"),
    [
        ("group-light", "group?g=orders&task=0_0", WIDE, "light"),
        ("group-dark", "group?g=orders&task=0_0", WIDE, "dark"),
        ("fleet-light", "", WIDE, "light"),
        ("group-narrow", "group?g=invoices&task=0_9", NARROW, "dark"),
    ],
)
def test_pictures(
    browser: Browser, busy: str, tmp_path: Path, name: str, path: str, size: Any, scheme: str
) -> None:
    """The pictures of the docs; MUSTER_PICTURES=1 writes them anew."""
    folder = ROOT / "docs" / "pictures" if os.environ.get("MUSTER_PICTURES") else tmp_path
    folder.mkdir(exist_ok=True)
    with page(browser, size, scheme, reduced_motion="reduce") as opened:
        opened.goto(busy + path)
        opened.wait_for_selector("#why-sentence" if path else "#rows tr:nth-child(5)")
        opened.screenshot(path=folder / f"{name}.png")
    size_bytes = (folder / f"{name}.png").stat().st_size
    assert 10_000 < size_bytes < PICTURE_BYTES_MAX
