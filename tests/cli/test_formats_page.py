"""docs/formats.md is true: its examples give its answers, and its tables match the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from muster.cli import assign, config
from muster.cli.main import main
from muster.documents import members, problem, scenario, units
from muster.protocol import sources
from muster.simulation.member import TELLS

PAGE = Path(__file__).resolve().parents[2] / "docs/formats.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = r"\n```json\n(.*?)^```"
FILES = dict(re.findall(rf"^<!-- file: (\S+) -->{BLOCK}", TEXT, re.MULTILINE | re.DOTALL))
ANSWERS = re.findall(rf"^<!-- answer: ([^\n]+) -->{BLOCK}", TEXT, re.MULTILINE | re.DOTALL)


def keys(heading: str) -> list[str]:
    """The names in the first column of the table with this first heading."""
    _, _, table = TEXT.partition(f"\n| {heading} |")
    rows = table.partition("\n\n")[0].splitlines()[2:]
    return [key for row in rows for key in re.findall(r"`(\w+)`", row.split(" | ")[0])]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the page's files."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("command", "answer"), ANSWERS, ids=lambda text: text.split("\n")[0])
def test_examples_give_the_answers_of_the_page(
    command: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file, given to its command, gives exactly the page's answer."""
    assert main(command.split()) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(answer)


def test_the_topics_of_the_page_are_read() -> None:
    """The example's topics are those that a group would declare, and print as they stand there."""
    [text] = re.findall(rf"^<!-- tasks of Kafka -->{BLOCK}", TEXT, re.MULTILINE | re.DOTALL)
    rows = json.loads(text)["tasks"]
    units_read, declared = units.parse_task_list(rows)
    assert (units_read, [sources.source_json(each) for each in declared]) == ((), rows)


def test_every_file_has_an_answer() -> None:
    """Each example file has an answer on the page."""
    assert sorted(command.split()[-1] for command, _ in ANSWERS) == sorted(FILES)


@pytest.mark.parametrize(
    ("heading", "known"),
    [
        ("key of a subtopology", units.SUBTOPOLOGY),
        ("key of a connector", units.CONNECTOR),
        ("key of a topic", sources.KEYS),
        ("key of a member", members.KEYS),
        ("key of a problem", problem.KEYS),
        ("key of an answer", problem.ANSWER_KEYS),
        ("key of a group", config.FILE_KEYS),
        ("key of a group", scenario.GROUP_KEYS),
        ("key of a scenario", scenario.KEYS),
        ("event", scenario.EVENTS),
        ("further key of a join", (*scenario.SPANS, scenario.TELLS_KEY, "instance_id")),
    ],
)
def test_tables_have_the_keys_that_are_read(heading: str, known: tuple[str, ...]) -> None:
    """Each table has exactly the keys that the code reads."""
    assert sorted(keys(heading)) == sorted(known)


def test_tables_have_the_keys_that_are_written(folder: Path) -> None:
    """The tables of a score and of a summary have the keys that the commands print."""
    answer = assign.solve(json.loads((folder / "problem.json").read_text()))
    assert keys("key of a score") == list(answer["score"])
    life = json.loads(next(text for command, text in ANSWERS if command.startswith("simulate")))
    assert keys("key of a summary") == list(life[-1])


def test_defaults_are_those_of_the_code() -> None:
    """The page's default time spans, words and limits are those of the code."""
    rows = re.findall(r"^\| `(\w+_ms)` \| (\d+) \|", TEXT, re.MULTILINE)
    assert {key: int(value) for key, value in rows if key != "now_ms"} == scenario.DEFAULTS
    assert f"{scenario.SETTLE_MS:,} ms after the last event" in TEXT
    assert all(f'`"{word}"`' in TEXT for word in TELLS)
    assert f"at most {units.MOST_TASKS:,} tasks" in TEXT


def test_errors_of_an_answer_are_those_of_the_table() -> None:
    """An answer with every fault gives the errors of the table in its order, as each is fixed."""
    members: dict[str, dict[str, list[str]]] = {
        "P1": {"active": ["0_0"], "standby": ["0_0", "1_0"]},
        "P2": {"active": ["0_0", "9_9"]},
        "P9": {},
    }
    mends = (
        lambda: members["P2"]["active"].remove("9_9"),
        lambda: members["P2"]["active"].remove("0_0"),
        lambda: members["P1"]["standby"].remove("0_0"),
        lambda: members["P1"]["standby"].remove("1_0"),
        lambda: members.update(P3={}),
        lambda: members.pop("P9"),
    )
    tasks = [
        {"subtopology": "0", "partitions": 1, "stateful": True},
        {"subtopology": "1", "partitions": 1},
    ]
    asked = {"tasks": tasks, "members": [{"id": "P1"}, {"id": "P2"}, {"id": "P3"}]}
    table = []
    for mend in mends:
        answer = assign.solve({**asked, "validate": {"members": members}})
        named = ", ".join(f"`{key}`" for key in answer if key not in ("valid", "error"))
        table.append(f"| `{answer['error']}` | {named} | ")
        mend()
    assert assign.solve({**asked, "validate": {"members": members}}) == {"valid": True}
    rows = TEXT.partition("\n| `error` |")[2].partition("\n\n")[0].splitlines()[2:]
    assert [row[: len(start)] for row, start in zip(rows, table, strict=True)] == table


def test_the_error_line_is_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page quotes the command's error for a misspelt key."""
    file = tmp_path / "misspelt.json"
    file.write_text('{"tasks": [{"subtopology": "0", "partition": 2}], "members": [{"id": "A"}]}')
    assert main(["assign", str(file)]) == 2
    assert capsys.readouterr().err.strip() in TEXT.splitlines()
