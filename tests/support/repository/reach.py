"""What code is reached from where, read from the sources: modules by imports, tests by names.

Nothing is executed, so this is an upper bound: a name that is mentioned may never be called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from support.repository.sources import ROOT, tree

from muster.assignor.registry import BUILT_IN

ROOMS = ("protocol", "assignor", "state", "streams")
"""Folders of the package that lie beside it; `muster.state` is `state/`."""
PLUG_INS_ONLY = ("muster.assignor.api",)
"""What plug-ins import; the job loads a plug-in, which is others' code."""


@cache
def file_of(module: str) -> Path | None:
    """The file of a module of muster's, of the tests' support, or of `bench/`; None = none."""
    first, *rest = module.split(".")
    if first == "muster" and rest:
        base = ROOT if rest[0] in ROOMS else ROOT / "muster"
    elif first in ("support", "fault_injection"):
        base, rest = ROOT / "tests" / first, rest
    else:
        base, rest = ROOT / "bench", [first, *rest]
    path = base.joinpath(*rest)
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


@cache
def _imports(file: Path) -> tuple[tuple[str, str, str | None], ...]:
    """(name here, module, name there) of each import of a file; None = the module itself."""
    imports: list[tuple[str, str, str | None]] = []
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            imports += [(a.asname or a.name.split(".")[0], a.name, None) for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for a in node.names:
                whole = f"{node.module}.{a.name}"
                is_module = file_of(whole) is not None
                target = (whole, None) if is_module else (node.module, a.name)
                imports.append((a.asname or a.name, *target))
    return tuple(imports)


@cache
def of_the_job() -> frozenset[str]:
    """Modules that the job and the workers reach, with every built-in assignor."""
    roots = ["muster.streams.job", "muster.streams.processor", "muster.worker.worker"]
    todo = [*roots, *(path.partition(":")[0] for path in BUILT_IN.values())]
    reached: set[str] = set()
    while todo:
        module = todo.pop()
        file = file_of(module)
        if module in reached or module in PLUG_INS_ONLY or file is None:
            continue
        reached.add(module)
        todo += [imported for _, imported, _ in _imports(file)]
    return frozenset(reached)


def is_of_the_job(path: str) -> bool:
    """Whether the job or a worker reaches this file of the core or of the coordinator."""
    module = "muster." + path.removesuffix(".py").replace("/", ".")
    return module in of_the_job()


def touched(path: str, names: Iterable[str]) -> set[str]:
    """Modules of muster's that a test names, itself or through helpers of the tests.

    Args:
        path: file of the test, from the root.
        names: the test's name, with its class before it.
    """
    reached: set[str] = set()
    seen: set[tuple[Path, str]] = set()
    todo = [(ROOT / path, name) for name in names]
    while todo:
        each = todo.pop()
        if each not in seen:
            seen.add(each)
            module, further = _step(*each)
            reached |= {module} if module else set()
            todo += further
    return reached


@cache
def _step(file: Path, name: str) -> tuple[str | None, tuple[tuple[Path, str], ...]]:
    """What a name of a file leads to: a module of muster's, or further names."""
    known = {here: (module, there) for here, module, there in _imports(file)}
    if name not in known:
        return None, tuple((file, used) for used in _used(file).get(name, ()))
    module, there = _defining(*known[name])
    target = file_of(module)
    if module.startswith("muster") or target is None:
        return (module if target is not None else None), ()
    # A helper of the tests; of a whole module, all it defines.
    return None, tuple((target, each) for each in ([there] if there else _used(target)))


@cache
def _used(file: Path) -> dict[str, set[str]]:
    """Each name defined at the top of a file, with the names that its definition uses."""
    uses: dict[str, set[str]] = {}
    for node in tree(file).body:
        names: list[str] = []
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        for name in names:
            uses.setdefault(name, set()).update(_names(node))
    return uses


def _defining(module: str, name: str | None) -> tuple[str, str | None]:
    """Where a name comes from that a module only passes on."""
    file = file_of(module)
    if name is None or file is None or module not in PLUG_INS_ONLY:
        return module, name
    passed = {here: (source, there) for here, source, there in _imports(file)}
    return passed.get(name, (module, name))


def _names(node: ast.AST) -> Iterator[str]:
    """Names used in a piece of code; parameters are names of fixtures as well."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.arg):
            yield each.arg
