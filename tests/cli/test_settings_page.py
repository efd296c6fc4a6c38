"""`muster config describe` and docs/settings.md match the tables in the code."""

from __future__ import annotations

import json

import pytest
from support.repository.pages import made, markdown

from muster.cli import settings as words
from muster.cli.main import main
from muster.protocol.settings import KEYS
from muster.protocol.unknown_names import ELSEWHERE
from muster.streams.job_settings import SETTINGS as OF_THE_JOB

Output = pytest.CaptureFixture[str]


def test_the_page_has_every_setting_of_a_group() -> None:
    """The page has each group setting with all its columns."""
    rows = []
    for s in words.described():
        if s.scope == words.GROUP:
            used = f"{s.used_by}, where {s.condition}" if s.condition else s.used_by
            rows.append(
                (f"`{s.setting}`", s.type, s.accepted, s.default, s.meaning, used, s.kafka or "")
            )
    columns = ("setting", "type", "accepted", "default", "meaning", "used by", "the same in Kafka")
    on_page, expected = made(
        "settings.md", "group: from protocol/settings.py", markdown(columns, rows)
    )
    assert on_page == expected
    assert [row[0].strip("`") for row in rows] == list(KEYS)


def test_the_page_has_every_setting_of_the_job() -> None:
    """The page has each setting of the job with type, bounds, default and meaning."""
    rows = [
        (f"`{s.setting}`", s.type, s.accepted, s.default, s.meaning)
        for s in words.described()
        if s.scope == words.JOB
    ]
    columns = ("setting", "type", "accepted", "default", "meaning")
    on_page, expected = made(
        "settings.md", "job: from streams/job_settings.py", markdown(columns, rows)
    )
    assert on_page == expected
    assert [row[0].strip("`") for row in rows] == [setting.key for setting in OF_THE_JOB]


def test_the_page_has_what_stands_for_kafkas_other_keys() -> None:
    """The page has each of Kafka's keys that muster refuses, and what replaces it."""
    rows = [(f"`{key}`", counterpart) for key, counterpart in ELSEWHERE.items()]
    table = markdown(("in Kafka", "here"), rows)
    on_page, expected = made("settings.md", "elsewhere: from protocol/settings.py", table)
    assert on_page == expected


def test_one_setting_is_described(capsys: Output) -> None:
    """`describe KEY` prints all that the page says of a setting, without Kafka."""
    assert main(["config", "describe", "stream.imbalance.percentage"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "stream.imbalance.percentage",
        "  meaning     how far from its share a member may stay before tasks move",
        "  type        a percentage",
        "  accepted    0 to 1000",
        "  default     0",
        "  used by     high-availability, sticky, fallback, learner",
        "  only where  tasks differ in weight, or the assignor is learner",
        "  in Kafka    a draft of KIP-429 and KIP-441; in no release",
        "  set by      muster config set --group G --config stream.imbalance.percentage=VALUE",
    ]
    assert main(["config", "describe", "muster.stall.ms", "--format", "json"]) == 0
    description = json.loads(capsys.readouterr().out)
    assert (description["scope"], description["default"], description["used_by"]) == (
        "job",
        "300000",
        None,
    )


def test_all_settings_are_described(capsys: Output) -> None:
    """`describe` prints a row for each setting, the group's first, or a JSON object each."""
    assert main(["config", "describe"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["SETTING", "DEFAULT", "MEANING"]
    keys = [*KEYS, *(setting.key for setting in OF_THE_JOB)]
    assert [row.split()[0] for row in rows] == keys
    assert main(["config", "describe", "--format", "json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["setting"] for line in lines] == keys


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["describe", "sesion.timeout.ms"], "no setting 'sesion.timeout.ms': did you mean session"),
        (["describe", "muster.stal.ms"], "no setting 'muster.stal.ms': did you mean muster.stall"),
        (["describe", "client.rack"], "no setting 'client.rack': nothing here: each worker says"),
        (["show"], "config show: give --group G"),
        (["set", "a.b", "--group", "g"], "config set: 'a.b' is not expected"),
    ],
)
def test_what_cannot_be_described(words: list[str], message: str, capsys: Output) -> None:
    """An unknown key suggests similar ones; `show` needs a group and `set` no bare setting."""
    assert main(["config", *words]) == 2
    assert capsys.readouterr().err.startswith(f"muster config: {message}")
