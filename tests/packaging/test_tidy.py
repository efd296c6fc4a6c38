"""House rules that a linter does not check."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from support.repository.sources import ROOT, functions, tracked, tree

CODE = ("protocol", "assignor", "state", "streams", "muster", "bench", "examples", "tests")
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
OLD_GIANTS: dict[str, int] = {}
"""Files that may be longer, with their limit. Keep it empty."""


def with_ending(*endings: str) -> list[Path]:
    """The repository's files with these endings."""
    return [p for p in tracked() if p.suffix in endings]


def python_code() -> list[Path]:
    """The repository's Python files, tests included."""
    return [p for p in with_ending(".py") if p.relative_to(ROOT).parts[0] in CODE]


def test_files_have_one_idea() -> None:
    """No Python file has more lines than its limit."""
    long = {
        str(p.relative_to(ROOT)): lines
        for p in python_code()
        if (lines := len(p.read_text().splitlines()))
        > OLD_GIANTS.get(str(p.relative_to(ROOT)), FILE_LINES_MAX)
    }
    assert long == {}


def test_functions_fit_on_a_screen() -> None:
    """No function has more than `FUNCTION_LINES_MAX` lines."""
    long = []
    for path in python_code():
        for node in functions(path):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} {lines}")
    assert long == []


def test_no_task_is_left_in_a_comment() -> None:
    """No file has a mark for open work; open work belongs in an issue."""
    mark = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    comments = [
        f"{p.relative_to(ROOT)}:{number}"
        for p in with_ending(".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".go", ".js", ".java")
        if p.name not in {"test_tidy.py", "LICENSE"}
        for number, line in enumerate(p.read_text().splitlines(), 1)
        if mark.search(line)
    ]
    assert comments == []


def test_no_merge_is_left_half_done() -> None:
    """No file has the marks that git puts around two versions of the same lines."""
    mark = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
    assert [str(p.relative_to(ROOT)) for p in tracked() if mark.search(p.read_bytes())] == []


def test_every_module_says_what_it_decides() -> None:
    """Every Python file begins with a docstring."""
    silent = [
        str(p.relative_to(ROOT))
        for p in python_code()
        if p.read_text().strip() and not ast.get_docstring(tree(p))
    ]
    assert silent == []


def test_every_test_says_what_it_shows() -> None:
    """Every test function has a docstring."""
    silent = []
    for path in with_ending(".py"):
        if path.relative_to(ROOT).parts[0] != "tests":
            continue
        silent += [
            f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
            for node in functions(path)
            if node.name.startswith("test_") and not ast.get_docstring(node)
        ]
    assert silent == []
