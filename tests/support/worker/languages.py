"""The workers in other languages, built once per test session, and running ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.kafka.brokers import Topics

EXAMPLES = Path(__file__).parents[3] / "examples"
UNREACHABLE = ("dial tcp", "ENOTFOUND", "ECONNREFUSED", "ETIMEDOUT", "EAI_AGAIN")


@dataclass(frozen=True)
class Language:
    """How to run a language's worker and its check of the vectors."""

    worker: Sequence[str]
    vectors: Sequence[str]


def go(folder: Path) -> Language:
    """The Go worker, built into a folder; skips without Go."""
    _need("go")
    built, tests = str(folder / "worker"), str(folder / "vectors")
    source = EXAMPLES / "go"
    _prepare(["go", "build", "-buildvcs=false", "-o", built, "."], source)
    _prepare(["go", "test", "-c", "-o", tests, "."], source)
    return Language([built], [tests])


def js(folder: Path) -> Language:
    """The Node worker with its packages in a folder; skips without Node."""
    _need("node")
    _need("npm")
    for file in (EXAMPLES / "js").iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    _prepare(["npm", "install", "--no-audit", "--no-fund"], folder)
    return Language(["node", str(folder / "worker.js")], ["node", str(folder / "vectors.js")])


LANGUAGES = {"go": go, "js": js}


def _need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")


def _prepare(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode and any(word in done.stderr for word in UNREACHABLE):
        pytest.skip(f"{command[0]} cannot fetch its modules")
    assert done.returncode == 0, done.stderr


class Running:
    """A running worker and its output.

    Attributes:
        process: the worker.
        out: its standard output: a line of JSON for every start and stop.
    """

    def __init__(
        self,
        language: Language,
        kafka: Topics,
        group: str,
        member: str,
        out: Path,
        **environment: str,
    ) -> None:
        self.out = out
        with out.open("w") as file:
            self.process = subprocess.Popen(
                [*language.worker, group, kafka.address, member],
                stdout=file,
                env={**os.environ, "MUSTER_TOPIC_PREFIX": kafka.prefix, **environment},
            )

    def lines(self) -> list[dict]:
        """The parsed lines about starts and stops."""
        text = self.out.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in text if line.endswith("\n")]

    def held(self) -> set[str]:
        """The tasks that run now."""
        held: set[str] = set()
        for line in self.lines():
            (held.add if line["event"] == "start" else held.discard)(line["task"])
        return held

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
