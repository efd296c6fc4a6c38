"""`docs/plugins.md` followed step by step: its files are written, run, tested, registered."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the page, under the names it gives them."""
    for language, text in BLOCKS:
        named = re.match(r"# (\S+\.\w+)\n", text)
        if named:
            (tmp_path / named[1]).write_text(text)
        elif language == "json":
            (tmp_path / "problem.json").write_text(text)
    return tmp_path


def run(folder: Path, *command: str) -> str:
    """Output of a Python command in the folder, with the folder on the path."""
    path = os.pathsep.join([str(folder), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assign(folder: Path, *options: str) -> str:
    """Output of `muster assign problem.json` in the folder."""
    return run(folder, "-m", "muster.cli.main", "assign", "problem.json", *options)


def test_it_answers_what_the_page_shows(folder: Path) -> None:
    """The command of the page prints the table of the page."""
    shown = next(text for _, text in BLOCKS if "--format table" in text)
    command, _, expected = shown.partition("\n")
    assert command == "$ PYTHONPATH=. muster assign problem.json --format table"
    printed = assign(folder, "--format", "table")
    assert [line.rstrip() for line in printed.splitlines()] == expected.splitlines()


def test_simulate_runs_the_assignor(folder: Path) -> None:
    """`muster simulate` prints each generation with the members' tasks after it."""
    names = {"A": "batch", "B": "batch"}
    joins = [
        {"at_ms": at_ms, "join": {"id": name, "tags": {"pool": pool}}}
        for at_ms, (name, pool) in zip((0, 1_000), names.items(), strict=True)
    ]
    tasks = [{"subtopology": "batch", "partitions": 4}]
    scenario = {
        "group": {"assignor": "pools:Pools", "tasks": tasks},
        "events": [*joins, {"at_ms": 5_000, "crash": "A"}],
    }
    (folder / "life.json").write_text(json.dumps(scenario))
    *entries, summary = json.loads(run(folder, "-m", "muster.cli.main", "simulate", "life.json"))
    held = [{name: len(m["active"]) for name, m in e["members"].items()} for e in entries]
    assert held == [{"A": 4}, {"A": 2, "B": 2}, {"B": 4}]
    assert [entry["cause"] for entry in entries] == ["A joined", "B joined", "A expired"]
    assert [len(entry["moves"]) for entry in entries] == [4, 2, 2]
    assert (summary["generations"], summary["tasks_moved"]) == (3, 4)
    assert summary["converged_at_ms"] is not None


def test_it_empties_a_draining_member(folder: Path) -> None:
    """The page's class carries out a drain, and while it lasts places what another member loses."""
    joins = [
        {"at_ms": at_ms, "join": {"id": name, "tags": {"pool": "batch"}}}
        for at_ms, name in ((0, "A"), (1_000, "B"), (2_000, "C"))
    ]
    scenario = {
        "group": {"assignor": "pools:Pools", "tasks": [{"subtopology": "batch", "partitions": 6}]},
        "events": [*joins, {"at_ms": 5_000, "drain": "B"}, {"at_ms": 9_000, "leave": "C"}],
    }
    (folder / "life.json").write_text(json.dumps(scenario))
    *entries, _ = json.loads(run(folder, "-m", "muster.cli.main", "simulate", "life.json"))
    held = [{name: len(m["active"]) for name, m in e["members"].items()} for e in entries[-3:]]
    assert held == [{"A": 2, "B": 2, "C": 2}, {"A": 3, "B": 0, "C": 3}, {"A": 6, "B": 0}]


def test_its_tests_pass(folder: Path) -> None:
    """The page's own tests are collected and pass."""
    run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_pools.py")


def test_it_is_found_by_its_entry_point(folder: Path) -> None:
    """Installed as the page's pyproject says, its name alone gives the same answer."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    points = project["project"]["entry-points"]
    name, version = project["project"]["name"], project["project"]["version"]
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        line
        for group, values in points.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in values.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))
    by_path = json.loads(assign(folder))
    problem = {**json.loads((folder / "problem.json").read_text()), "assignor": "pools"}
    (folder / "problem.json").write_text(json.dumps(problem))
    assert json.loads(assign(folder)) == by_path


def test_arrays_work_as_well(folder: Path) -> None:
    """The class over arrays is accepted and gives everything to the first member."""
    problem = {**json.loads((folder / "problem.json").read_text()), "assignor": "first:First"}
    (folder / "problem.json").write_text(json.dumps(problem))
    held = json.loads(assign(folder))["members"]
    assert [len(held[name]["active"]) for name in sorted(held)] == [5, 0, 0]
