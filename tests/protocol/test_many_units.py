"""Groups of very many units: what a member holds and what a group is fit into one record each."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace

import numpy as np
import pytest
from support import grammar, wire

from muster.cli.config import check_fits
from muster.cli.errors import BadInput
from muster.protocol import unit_names
from muster.protocol.codec import decode, encode
from muster.protocol.digest import Holding
from muster.protocol.errors import DecodeError
from muster.protocol.events import GroupConfig, Join, Lag, LagReport, Report
from muster.protocol.framing import PREFIX, write
from muster.protocol.ids import Task
from muster.protocol.parts import size_of
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Connector, Subtopology, TaskTable, Unit
from muster.protocol.topics import EVENT_BYTES_MAX, RECORD_BYTES_MAX, TopicKind
from muster.protocol.unit_names import UNITS_MAX

MEMBERSHIP = TopicKind.MEMBERSHIP


def alike(count: int) -> list[Unit]:
    """Connectors as people name them."""
    return [Connector(f"mirror-source-connector-{i}", 3) for i in range(count)]


def unlike(count: int) -> list[Unit]:
    """Connectors of random names, 45 characters each."""
    chance = random.Random(1)
    return [Connector(f"connector-{chance.getrandbits(140):035x}", 1) for _ in range(count)]


def config(units: list[Unit]) -> GroupConfig:
    """A group of these units."""
    table = TaskTable(units)
    return GroupConfig(
        group="g", assignor="sticky", settings=parse_settings({}, "sticky"), tasks=table.units
    )


def report(units: list[Unit], share: float = 1) -> Report:
    """A member that holds a share of all tasks, at random."""
    table = TaskTable(units)
    drawn = np.flatnonzero(np.random.default_rng(3).random(len(table)) < share)
    held = table.set_of(drawn.astype(np.int32))
    return Report(
        group="g",
        member="m",
        incarnation=7,
        epoch=3,
        revision=9,
        holding=Holding(active=held, releasing=held),
        coordinator_epoch=5,
        origin=wire.ORIGIN,
    )


@pytest.mark.parametrize("units", [alike(10_000), unlike(10_000)], ids=["alike", "unlike"])
def test_a_report_of_very_many_units_is_one_record(units: list[Unit]) -> None:
    """What one member holds of 10,000 connectors is sent whole, and read back as it was."""
    told = report(units, 0.5)
    encoded = encode(told)
    assert 3 * len(encoded.value) < 2 * sum(len(unit.name) for unit in units)
    assert wire.plain(decode(MEMBERSHIP, b"g", encoded.value, wire.ORIGIN)) == wire.plain(told)


@pytest.mark.slow
def test_two_hundred_thousand_units_are_set_and_reported() -> None:
    """A configuration of 200,000 connectors, and the report of one that holds them all."""
    units = alike(200_000)
    check_fits(config(units))
    told = report(units, 0.5)
    encoded = encode(told)
    assert size_of(encoded) <= RECORD_BYTES_MAX
    found = decode(MEMBERSHIP, encoded.key, encoded.value, wire.ORIGIN)
    assert found.holding == told.holding


def test_other_languages_read_the_names() -> None:
    """The page's own words: a zlib stream of lines, in the order that the sets refer to."""
    told = report(alike(3_000), 1)
    name, row = grammar.value(encode(told).value)
    assert (name, row["units"]) == ("Report", [])
    assert grammar.task_set(row["active"], grammar.event_units(row)) == [
        str(task) for task in told.holding.active
    ]


def test_few_units_are_rows_as_ever() -> None:
    """The extra is there only where names are many; the schema is the same."""
    told = report(alike(1_000))
    row = grammar.value(encode(told).value)[1]
    assert len(row["units"]) == 1_000
    assert list(row["extras"]) == ["coordinator_epoch"]


def test_lags_are_left_out_where_a_record_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held is always told; how far copies are behind, as long as there is room."""
    monkeypatch.setattr("muster.protocol.codec.EVENT_BYTES_MAX", 20_000)
    lags = tuple(Lag(Task("0", n), n * 1_000_003) for n in range(5_000))
    holding = Holding(standby=TaskTable([Subtopology("0", 5_000)]).set_of(np.arange(5_000)))
    for event in (
        Join(group="g", member="m", incarnation=1, holding=holding, lags=lags),
        replace(report(alike(1)), holding=holding, lags=lags),
    ):
        encoded = encode(event)
        found = decode(MEMBERSHIP, b"g", encoded.value, event.origin)
        assert wire.plain(found) == wire.plain(replace(event, lags=()))
    few = replace(report(alike(1)), holding=holding, lags=lags[:10])
    assert decode(MEMBERSHIP, b"g", encode(few).value, wire.ORIGIN).lags == lags[:10]


def test_lag_reports_of_many_units() -> None:
    """Copies of 5,000 connectors, told in one record."""
    lags = tuple(Lag(Task(unit.name, 0, True), 3) for unit in alike(5_000))
    told = LagReport(group="g", member="m", lags=lags, origin=wire.ORIGIN)
    found = decode(TopicKind.LAG, b"g", encode(told).value, wire.ORIGIN)
    assert set(found.lags) == set(lags)


def extra(text: bytes, behind: bytes = b"") -> bytes:
    """A report with these lines."""
    return write(
        "Report",
        {
            "member": "m",
            "incarnation": b"\x01" + bytes(7),
            "extras": {"units": zlib.compress(text) + behind},
        },
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (extra(b"a_\x001\n", b"x"), "1 bytes behind the units"),
        (extra(b"a_\x001"), "no lines of a label"),
        (extra(b"a_1\n"), "no lines of a label"),
        (extra(b"a_\x001\x002\n"), "no lines of a label"),
        (extra(b"a_\x00-1\n"), "no lines of a label"),
        (extra(b"a_\x00\n"), "no lines of a label"),
        (extra("a_\x00\u0661\n".encode()), "no lines of a label"),
        (extra(b"\xff_\x001\n"), "no lines of a label"),
        (extra(b"a_\x009999999999\n"), "unit 'a_' of size 9999999999"),
        (extra(b"a_\x001\na_\x001\n"), "named twice"),
        (extra(b"_\x001\n"), "unit label '_'"),
        (extra(b"\n" * (UNITS_MAX + 1)), "262145 units; 262144 are accepted"),
        (extra(b"a" * (17 << 20)), "inflates to more"),
        (
            write(
                "Report",
                {
                    "member": "m",
                    "incarnation": b"\x01" + bytes(7),
                    "units": [{"label": "a_", "size": 1}],
                    "extras": {"units": zlib.compress(b"a_\x001\n")},
                },
            ),
            "as a field and as an extra",
        ),
    ],
)
def test_names_that_cannot_be(value: bytes, reason: str) -> None:
    """Bytes that are no lines, or too many of them, are refused before anything is made of them."""
    with pytest.raises(DecodeError, match=reason):
        decode(MEMBERSHIP, b"g", value, wire.ORIGIN)


def test_names_with_line_feeds_are_refused() -> None:
    """A name that the lines cannot hold is written as a row, and refused: it does not print."""
    told = report([*alike(4_000), Connector("two\nlines", 1)])
    with pytest.raises(DecodeError, match="does not print"):
        decode(MEMBERSHIP, b"g", encode(told).value, wire.ORIGIN)


def test_names_that_no_report_holds_are_refused_where_they_are_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who has all tasks of a group can name them, with 398,000 bytes left for the sets."""
    assert unit_names._DEFLATED_BYTES_MAX + 398_000 == EVENT_BYTES_MAX
    monkeypatch.setattr("muster.protocol.unit_names._DEFLATED_BYTES_MAX", 60_000)
    with pytest.raises(BadInput, match=r"^g: names of 4000 .* deflated; 60000 are accepted"):
        check_fits(config(unlike(4_000)))
    check_fits(config(unlike(2_000)))


def test_a_configuration_that_cannot_be_sent_names_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Too many units, too many bytes, more than a reader inflates: each is said."""
    small = config(alike(3_000))
    monkeypatch.setattr("muster.protocol.unit_names.UNITS_MAX", 2_999)
    with pytest.raises(BadInput, match=r"^g: 3000 subtopologies .*; 2999 are accepted"):
        check_fits(small)
    monkeypatch.undo()
    monkeypatch.setattr("muster.cli.config.EVENT_BYTES_MAX", 5_000)
    with pytest.raises(BadInput, match=r"^g: a configuration of \d+ bytes when packed; 5000 are"):
        check_fits(small)
    monkeypatch.undo()
    monkeypatch.setattr("muster.protocol.codec.CONFIG_BYTES_MAX", 5_000)
    with pytest.raises(BadInput, match=r"^g: \d+ bytes that claim to inflate to \d+"):
        check_fits(small)


def test_a_configuration_of_one_thing_a_million_times_is_packed_to_what_readers_believe() -> None:
    """Racks that are all the same deflate 100 times and more; what is written claims 32 at most."""
    racks = ((("r1",),),) * 300_000
    group = config([Subtopology("0", len(racks), source_racks=racks)])
    encoded = encode(group)
    assert encoded.value.startswith(PREFIX["Packed"])
    assert size_of(encoded) <= RECORD_BYTES_MAX
    check_fits(group)


def test_units_named_as_rows_are_the_same_units() -> None:
    """A reader takes either form for the same thing."""
    rows = [{"label": "a_", "size": 3}, {"label": "b-", "size": 2}]
    plain = {"member": "m", "incarnation": b"\x01" + bytes(7), "active": b"\x01\x80"}
    text = b"a_\x003\nb-\x002\n"
    values = (
        write("Report", {**plain, "units": rows}),
        write("Report", {**plain, "extras": {"units": zlib.compress(text)}}),
    )
    first, second = (decode(MEMBERSHIP, b"g", value, wire.ORIGIN) for value in values)
    assert wire.plain(first) == wire.plain(second)
