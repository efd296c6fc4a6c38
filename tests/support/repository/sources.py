"""Python files of the repository, each parsed once per process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


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
