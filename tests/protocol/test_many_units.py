"""Groups of very many units: a member's report and the group's config fit into one record each."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace

import numpy as np
import pytest
from support.protocol import grammar, wire

from muster.documents.group_config import check_fits
from muster.errors import BadInput
from muster.protocol import unit_names
from muster.protocol.codec import decode, encode
from muster.protocol.digest import Holding
from muster.protocol.errors import DecodeError
from muster.protocol.events import GroupConfig, Join, Lag, LagReport, Report
from muster.protocol.framing import PREFIX, write
from muster.protocol.ids import Task
from muster.protocol.settings import parse_settings
from muster.protocol.split_records import size_of
from muster.protocol.tasks import Connector, Subtopology, TaskTable, Unit
from muster.protocol.topics import EVENT_BYTES_MAX, RECORD_BYTES_MAX, TopicKind
from muster.protocol.unit_names import UNITS_MAX

MEMBERSHIP = TopicKind.MEMBERSHIP


def alike(count: int) -> list[Unit]:
    """Connectors with similar names."""
    return [Connector(f"mirror-source-connector-{i}", 3) for i in range(count)]


def unlike(count: int) -> list[Unit]:
    """Connectors with random names of 45 characters."""
    rng = random.Random(1)
    return [Connector(f"connector-{rng.getrandbits(140):035x}", 1) for _ in range(count)]


def config(units: list[Unit]) -> GroupConfig:
    """A group of these units."""
    table = TaskTable(units)
    return GroupConfig(
        group="g", assignor="sticky", settings=parse_settings({}, "sticky"), tasks=table.units
    )


def report(units: list[Unit], share: float = 1) -> Report:
    """The report of a member that holds a random share of all tasks."""
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
    """The report of a member of 10,000 connectors is one record and reads back."""
    event = report(units, 0.5)
    encoded = encode(event)
    assert 3 * len(encoded.value) < 2 * sum(len(unit.name) for unit in units)
    assert wire.plain(decode(MEMBERSHIP, b"g", encoded.value, wire.ORIGIN)) == wire.plain(event)


@pytest.mark.slow
def test_two_hundred_thousand_units_are_set_and_reported() -> None:
    """A config of 200,000 connectors, and the report of a member that holds them all."""
    units = alike(200_000)
    check_fits(config(units))
    event = report(units, 0.5)
    encoded = encode(event)
    assert size_of(encoded) <= RECORD_BYTES_MAX
    decoded = decode(MEMBERSHIP, encoded.key, encoded.value, wire.ORIGIN)
    assert decoded.holding == event.holding


def test_other_languages_read_the_names() -> None:
    """As on the page: a zlib stream of lines, in the order that the sets refer to."""
    event = report(alike(3_000), 1)
    name, row = grammar.value(encode(event).value)
    assert (name, row["units"]) == ("Report", [])
    assert grammar.task_set(row["active"], grammar.event_units(row)) == [
        str(task) for task in event.holding.active
    ]


def test_few_units_are_rows_as_ever() -> None:
    """The extra is used only for long lists; the schema is the same."""
    event = report(alike(1_000))
    row = grammar.value(encode(event).value)[1]
    assert len(row["units"]) == 1_000
    assert list(row["extras"]) == ["coordinator_epoch"]


def test_lags_are_left_out_where_a_record_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report always has its task sets; lags only if there is room."""
    monkeypatch.setattr("muster.protocol.codec.EVENT_BYTES_MAX", 20_000)
    lags = tuple(Lag(Task("0", n), n * 1_000_003) for n in range(5_000))
    holding = Holding(standby=TaskTable([Subtopology("0", 5_000)]).set_of(np.arange(5_000)))
    for event in (
        Join(group="g", member="m", incarnation=1, holding=holding, lags=lags),
        replace(report(alike(1)), holding=holding, lags=lags),
    ):
        encoded = encode(event)
        decoded = decode(MEMBERSHIP, b"g", encoded.value, event.origin)
        assert wire.plain(decoded) == wire.plain(replace(event, lags=()))
    few = replace(report(alike(1)), holding=holding, lags=lags[:10])
    assert decode(MEMBERSHIP, b"g", encode(few).value, wire.ORIGIN).lags == lags[:10]


def test_lag_reports_of_many_units() -> None:
    """Lags of 5,000 connectors in one record."""
    lags = tuple(Lag(Task(unit.name, 0, True), 3) for unit in alike(5_000))
    event = LagReport(group="g", member="m", lags=lags, origin=wire.ORIGIN)
    decoded = decode(TopicKind.LAG, b"g", encode(event).value, wire.ORIGIN)
    assert set(decoded.lags) == set(lags)


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
def test_invalid_unit_lists_are_refused(value: bytes, reason: str) -> None:
    """Bytes that are not lines, or too many lines, are refused before objects are made."""
    with pytest.raises(DecodeError, match=reason):
        decode(MEMBERSHIP, b"g", value, wire.ORIGIN)


def test_names_with_line_feeds_are_refused() -> None:
    """A name with a line feed is written as a row and refused: it does not print."""
    event = report([*alike(4_000), Connector("two\nlines", 1)])
    with pytest.raises(DecodeError, match="does not print"):
        decode(MEMBERSHIP, b"g", encode(event).value, wire.ORIGIN)


def test_groups_whose_names_no_report_holds_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group whose names no report can list is refused by config set."""
    assert unit_names._DEFLATED_BYTES_MAX + 398_000 == EVENT_BYTES_MAX
    monkeypatch.setattr("muster.protocol.unit_names._DEFLATED_BYTES_MAX", 60_000)
    with pytest.raises(BadInput, match=r"^g: names of 4000 .* deflated; 60000 are accepted"):
        check_fits(config(unlike(4_000)))
    check_fits(config(unlike(2_000)))


def test_a_configuration_that_cannot_be_sent_names_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Too many units, too many bytes, more than a reader inflates: each has its message."""
    small = config(alike(3_000))
    monkeypatch.setattr("muster.protocol.unit_names.UNITS_MAX", 2_999)
    with pytest.raises(BadInput, match=r"^g: 3000 subtopologies .*; 2999 are accepted"):
        check_fits(small)
    monkeypatch.undo()
    monkeypatch.setattr("muster.documents.group_config.EVENT_BYTES_MAX", 5_000)
    with pytest.raises(BadInput, match=r"^g: a configuration of \d+ bytes when packed; 5000 are"):
        check_fits(small)
    monkeypatch.undo()
    monkeypatch.setattr("muster.protocol.codec.CONFIG_BYTES_MAX", 5_000)
    with pytest.raises(BadInput, match=r"^g: \d+ bytes that claim to inflate to \d+"):
        check_fits(small)


def test_packing_stays_within_the_readers_limit() -> None:
    """Equal racks deflate 100 times and more; the written value claims at most 32 times."""
    racks = ((("r1",),),) * 300_000
    group = config([Subtopology("0", len(racks), source_racks=racks)])
    encoded = encode(group)
    assert encoded.value.startswith(PREFIX["Packed"])
    assert size_of(encoded) <= RECORD_BYTES_MAX
    check_fits(group)


def test_units_named_as_rows_are_the_same_units() -> None:
    """A reader gets the same units from either form."""
    rows = [{"label": "a_", "size": 3}, {"label": "b-", "size": 2}]
    plain = {"member": "m", "incarnation": b"\x01" + bytes(7), "active": b"\x01\x80"}
    text = b"a_\x003\nb-\x002\n"
    values = (
        write("Report", {**plain, "units": rows}),
        write("Report", {**plain, "extras": {"units": zlib.compress(text)}}),
    )
    first, second = (decode(MEMBERSHIP, b"g", value, wire.ORIGIN) for value in values)
    assert wire.plain(first) == wire.plain(second)
