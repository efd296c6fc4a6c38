"""The workers in Go and for Node react to records as `protocol/vectors/talk.json` says.

Needs no Kafka, and no package beside the languages' own.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_KAFKA = ("session.go", "work.go", "tasks.go", "wire.go", "keys.go", "talk_test.go")
COMMANDS = {
    "go": ["go", "test", "-vet=off", "-count=1", *WITHOUT_KAFKA],
    "js": ["node", "talk.js", str(ROOT / "protocol" / "vectors")],
}


@pytest.mark.parametrize("language", COMMANDS)
def test_talks(language: str) -> None:
    """Every script, step by step: what is obeyed, reported and held, and its digest."""
    program, *arguments = COMMANDS[language]
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    folder = ROOT / "examples" / language
    done = subprocess.run(
        [program, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
