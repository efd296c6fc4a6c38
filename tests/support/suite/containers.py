"""Finds out whether a container engine answers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
REQUIRED = "MUSTER_REQUIRE_ENGINE"


def compose() -> list[str]:
    """The compose command; skips the test if no engine answers, unless one is required."""
    if shutil.which("docker") and _succeeds(["docker", "info"]):
        if _succeeds(["docker", "compose", "version"]):
            return ["docker", "compose"]
        if shutil.which("docker-compose"):
            return ["docker-compose"]
    if os.environ.get(REQUIRED):
        pytest.fail(f"no container engine with compose answers, and {REQUIRED} is set")
    pytest.skip("no container engine with compose answers")


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
