"""The pages under docs/requirements/ name only code and tests that exist, and each row once."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "requirements").glob("*.md"))
ROW = re.compile(r"^\| *([A-Z][A-Z0-9]*-[A-Z]?[0-9A-Z-]+) *\|(.*)\|\s*$", re.MULTILINE)
NAMED = re.compile(r"`([^`\s]+/[^`\s]+)`")


def rows(page: Path) -> list[tuple[str, list[str]]]:
    """The table rows of a page that begin with a requirement's id: id and the other cells."""
    found = ROW.findall(page.read_text(encoding="utf-8"))
    return [(row, [cell.strip() for cell in cells.split("|")]) for row, cells in found]


@cache
def functions(path: Path) -> set[str]:
    """The names of all functions and classes in a Python file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def absent(named: str) -> bool:
    """Whether `path` or `path::test[::test]` points at nothing."""
    path, *names = named.split("::")
    file = ROOT / path
    if not file.exists():
        return True
    return any(name.split("[")[0] not in functions(file) for name in names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_only_what_exists(page: Path) -> None:
    """Collects what a page's tables name and looks each file and test up in the tree."""
    cells = [(row, cell) for row, cells in rows(page) for cell in cells]
    missing = [(row, n) for row, cell in cells for n in NAMED.findall(cell) if absent(n)]
    assert missing == []


def test_every_row_is_answered_once() -> None:
    """Each row has four cells, says by what it is met, and stands on one page only."""
    every = [(row, cells) for page in PAGES for row, cells in rows(page)]
    names = [row for row, _ in every]
    assert sorted({row for row in names if names.count(row) > 1}) == []
    assert [row for row, cells in every if len(cells) != 3 or not all(cells)] == []
