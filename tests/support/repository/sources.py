"""Files of the repository; Python files are parsed once per process."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tracked() -> tuple[Path, ...]:
    """The files that git tracks or would track, without links; skips the test without git."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = (ROOT / line for line in listed.stdout.splitlines())
    return tuple(p for p in paths if p.is_file() and not p.is_symlink())


@cache
def tree(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def definitions(file: Path) -> tuple[Function | ast.ClassDef, ...]:
    """Every function and class of a file, including nested ones."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return tuple(node for node in ast.walk(tree(file)) if isinstance(node, kinds))


def functions(file: Path) -> list[Function]:
    """Every function of a file, including methods."""
    return [node for node in definitions(file) if not isinstance(node, ast.ClassDef)]
