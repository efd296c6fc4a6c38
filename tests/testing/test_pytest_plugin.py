"""The pytest plugin: light for everyone, and its fixtures."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from support.repository.sources import ROOT

HEAVY = ("confluent_kafka", "numpy", "hypothesis", "muster.worker", "muster.state")


def test_the_plugin_is_light() -> None:
    """Pytest imports the plugin in every project, so it imports nothing large."""
    code = "import sys, muster.testing.pytest_plugin; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(result.stdout.split())
    assert loaded & set(HEAVY) == set()


def test_the_entry_point_is_named_like_its_module() -> None:
    """So `pytest_plugins` may name it too, in a checkout that is not installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {
        "muster.testing.pytest_plugin": "muster.testing.pytest_plugin"
    }


HANGS = """
import threading
import time

from muster.testing import threads

threads.HANGS_S, never = 0.2, threading.Event()
real_sleep = time.sleep


def hang_at_the_end(*_):
    try:
        time.sleep(3_600)
    finally:
        never.wait()


def test_that_hangs(muster_environment):
    hangs, other = muster_environment({"orders": 1}), muster_environment({"orders": 1})
    hangs.worker("W1", on_assigned=hang_at_the_end)
    hangs.advance(10)


def test_time_is_real_again():
    assert time.sleep is real_sleep
"""


def test_a_test_that_hangs_leaves_no_time_simulated(tmp_path: Path) -> None:
    """All environments of a test are closed, though one of them fails to."""
    (tmp_path / "test_hangs.py").write_text(HANGS)
    plugin = "muster.testing.pytest_plugin"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", plugin, tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "CallbackHangs" in done.stdout
    assert "2 passed, 1 error" in done.stdout, done.stdout
