"""`docs/testing.md`: its examples pass, and its tables name what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.repository.sources import ROOT

from muster.testing import Environment
from muster.testing.assignor_check import LAWS

PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


REAL = [pytest.mark.broker, pytest.mark.spark]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=REAL if "real" in name else []) for name in FILES]
)
def test_an_example_passes(name: str, tmp_path: Path) -> None:
    """Each file of the page is a test that passes in a folder of its own."""
    (tmp_path / name).write_text(FILES[name])
    plugin = "muster.testing.pytest_plugin"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", plugin, name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_names_every_call() -> None:
    """Every public method of `Environment` is on the page, and every call on it exists."""
    named = set(re.findall(r"\benv\.(\w+)", PAGE))
    public = {name for name in vars(Environment) if not name.startswith("_")}
    own = {"ask_to_leave", "close", "later", "sleep"}  # explained by their docstrings
    assert named - public == {"changelogs"}
    assert public - named == own


def test_the_page_names_every_law() -> None:
    """The table of laws has those that are checked."""
    table = PAGE.partition("| law | what it says |")[2]
    assert re.findall(r"^\| (\w+) \|", table, re.MULTILINE) == [*LAWS, "lives"]
