"""Each cell of the table of what a writer can do names tests, and the tests exist."""

from __future__ import annotations

import re
from pathlib import Path

from support.repository.sources import definitions

from muster.protocol.topics import TopicKind

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "security.md"
PART = re.compile(r"<!-- rights: .*? -->\n(.*?)<!-- /rights -->", re.DOTALL)
NUMBERS = re.compile(r"\[(\d+)\]")


def part() -> str:
    """The table and the list below it."""
    (text,) = PART.findall(PAGE.read_text(encoding="utf-8"))
    return str(text)


def cells() -> list[list[str]]:
    """The table's rows, without its head."""
    lines = [line for line in part().splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def named() -> dict[str, list[str]]:
    """Number → the tests that it stands for."""
    numbered = re.findall(r"^(\d+)\. (.+)$", part(), re.MULTILINE)
    return {number: re.findall(r"`([^`]+)`", names) for number, names in numbered}


def test_every_topic_has_its_row() -> None:
    """Each topic is in the first column exactly once."""
    topics = [name for row in cells() for name in re.findall(r"`([a-z]+)`", row[0])]
    assert sorted(topics) == sorted(str(kind) for kind in TopicKind)


def test_every_cell_names_a_test() -> None:
    """Each cell has numbers of the list, and each number of the list is used."""
    known, used = named(), set[str]()
    for row in cells():
        assert len(row) == 4
        for cell in row[1:]:
            numbers = NUMBERS.findall(cell)
            assert numbers, cell
            used.update(numbers)
    assert used == set(known)


def test_the_tests_exist() -> None:
    """Each number names tests that exist in the files given."""
    for names in named().values():
        assert names
        for name in names:
            file, _, test = name.partition("::")
            assert test in {node.name for node in definitions(HERE / file)}, name
