"""The pytest plugin: light for everyone, and its fixtures."""

from __future__ import annotations

import subprocess
import sys
import tomllib

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
