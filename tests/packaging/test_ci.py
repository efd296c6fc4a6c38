"""The container lane of CI with an engine that is missing, fails, hangs or works."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINE = """#!/bin/sh
echo "$1" >> "$(dirname "$0")/calls"
case $1 in
  start) {start} ;;
  env) echo "export ENGINE_IS_UP=1" ;;
esac
"""
DOCKER = """#!/bin/sh
[ "$1" = image ] && exit 0
[ -n "$ENGINE_IS_UP" ]
"""
PYTHON = """#!/bin/sh
echo "require=$MUSTER_REQUIRE_ENGINE broker=$MUSTER_TEST_BROKER"
exit {code}
"""


def program(path: Path, text: str) -> None:
    """Write an executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def lane(folder: Path, start: str | None, code: int = 0) -> tuple[int, str, list[str]]:
    """Run the lane in its own tree; return exit code, output and the calls of the engine."""
    tools = folder / "shared" / "containers"
    if start is not None:
        program(tools / "engine.sh", ENGINE.format(start=start))
    program(folder / "bin" / "docker", DOCKER)
    program(folder / "clone" / ".venv" / "bin" / "python", PYTHON.format(code=code))
    script = folder / "clone" / ".ci" / "containers"
    script.parent.mkdir()
    shutil.copy(ROOT / ".ci" / "containers", script)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
    env = {**kept, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "ENGINE_S": "1"}
    done = subprocess.run([script], env=env, capture_output=True, text=True, timeout=60)
    calls = tools / "calls"
    return done.returncode, done.stdout, calls.read_text().split() if calls.exists() else []


@pytest.mark.parametrize(
    ("start", "message", "calls"),
    [
        (None, "no container engine answers", []),
        ("exit 1", "the engine did not start", ["start", "stop"]),
        ("exec sleep 60", "the engine did not start", ["start", "stop"]),
    ],
)
def test_without_an_engine_it_is_left_out(
    tmp_path: Path, start: str | None, message: str, calls: list[str]
) -> None:
    """If the engine is missing, fails or is too slow, the lane says so and exits with 0."""
    assert lane(tmp_path, start) == (0, f"== container lane left out: {message}\n", calls)


@pytest.mark.parametrize("code", [0, 1])
def test_with_an_engine_its_tests_decide(tmp_path: Path, code: int) -> None:
    """With an engine no test may skip, the tests' exit code counts, and the engine is stopped."""
    exit_code, output, calls = lane(tmp_path, "true", code)
    assert exit_code == code
    assert "require=1 broker=\n" in output
    assert ("require=1 broker=container" in output) == (code == 0)
    assert calls == ["start", "env", "stop"]


@pytest.mark.parametrize(
    ("has_browser", "message", "code"),
    [(False, "== browser lane left out: no Chromium", 0), (True, "== browser", 1)],
)
def test_the_browser_lane(tmp_path: Path, has_browser: bool, message: str, code: int) -> None:
    """Without a browser that can be installed it is left out; tests that fail fail the lane."""
    script = tmp_path / "clone" / ".ci" / "browser"
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "browser", script)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dirname", "id", "sh", "timeout", "env"):
        (tools / name).symlink_to(shutil.which(name) or name)
    program(tools / "apt-get", "#!/bin/sh\nexit 1\n")
    program(tmp_path / "clone" / ".venv" / "bin" / "python", "#!/bin/sh\nexit 1\n")
    if has_browser:
        program(tools / "chromium", "#!/bin/sh\n")
    done = subprocess.run(
        ["bash", script], env={"PATH": str(tools)}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith(message)
    assert done.returncode == code
