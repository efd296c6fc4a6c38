"""docs/console.md is true: its limits, its commands, its sentence and its pictures."""

from __future__ import annotations

import argparse
import re

import pytest
from support.repository.sources import ROOT

from muster.cli import console, plan, report
from muster.console import history, store

PAGE = (ROOT / "docs" / "console.md").read_text(encoding="utf-8")
MAP = (ROOT / "muster" / "console" / "static" / "map.js").read_text(encoding="utf-8")
COMMANDS = {"console": console, "report": report, "plan": plan}


def test_limits_are_those_of_the_code() -> None:
    """How much is kept, and above what size the map aggregates."""
    assert f"at most {history.MOMENTS_MAX:,}" in PAGE
    assert f"together {store.HELD_BYTES_MAX // 2**20} MB" in PAGE
    cells = re.search(r"CELLS_MAX = (\d+)", MAP)
    members = re.search(r"members\.size > (\d+);", MAP)
    assert cells is not None
    assert members is not None
    assert f"Above {int(cells[1]):,} tasks and copies, or {members[1]} members" in PAGE


@pytest.mark.parametrize(
    "line", re.findall(r"^muster ((?:console|report|plan) .*)$", PAGE, re.MULTILINE)
)
def test_commands_are_accepted(line: str) -> None:
    """Every command of the page has options that the command takes."""
    name, *words = line.split()
    parser = argparse.ArgumentParser()
    COMMANDS[name].configure(parser)
    parser.parse_args(words)


def test_pictures_are_there_and_small() -> None:
    """Every picture that the page and the README show exists; none is larger than 150 kB."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = {*re.findall(r"\]\(pictures/([\w-]+\.png)\)", PAGE)}
    named |= {*re.findall(r"docs/pictures/([\w-]+\.png)", readme)}
    there = {path.name: path.stat().st_size for path in (ROOT / "docs" / "pictures").iterdir()}
    assert set(there) == named
    assert max(there.values()) < 150_000
