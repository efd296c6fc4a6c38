"""The table of commands, usage errors and exit codes."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from muster import __version__
from muster.cli import main as cli
from muster.errors import BadInput, NotFound
from muster.protocol.errors import ConfigError


def test_every_command_can_be_called(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command's module has a `run`, its help prints, and its summary line is short."""
    for name, (module, line) in cli.COMMANDS.items():
        loaded = importlib.import_module(module)
        assert callable(loaded.run), name
        with pytest.raises(SystemExit) as end:
            cli.main([name, "--help"])
        assert end.value.code == 0
        assert f"usage: muster {name}" in capsys.readouterr().out
        assert line == line.strip()
        assert len(line) < 70


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """`muster` alone prints every command with its summary line and is a usage error."""
    assert cli.main([]) == cli.USAGE
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown and line in shown for name, (_, line) in cli.COMMANDS.items())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`muster --version` prints the distribution's version."""
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, f"muster {__version__}\n")


def test_an_unknown_command_suggests_a_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt command is a usage error that suggests the right command."""
    assert cli.main(["gruops"]) == cli.USAGE
    assert capsys.readouterr().err == "muster: no command 'gruops'; did you mean 'groups'?\n"


class Command:
    """A command that ends with a given exception."""

    def __init__(self, ending: BaseException) -> None:
        self.ending = ending

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """No options."""

    def run(self, args: argparse.Namespace) -> int:
        """Raise the exception."""
        raise self.ending


def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong argument gives exit code 2 and one line that names the argument and the help."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["config", "set", "--group", "a|b"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "muster config: argument --group: group id 'a|b' with '|' or a character that does not"
        " print; see muster config --help\n"
    )


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        (NotFound("no group 'g'"), 1, "muster drain: no group 'g'\n"),
        (BadInput("--member: empty"), 2, "muster drain: --member: empty\n"),
        (
            ConfigError("group.max.size", 0, "a whole number, 1 or more"),
            2,
            "muster drain: group.max.size: 0 is not accepted; expected a whole number, 1 or more\n",
        ),
        (
            ModuleNotFoundError("No module named 'ortools.graph'", name="ortools.graph"),
            1,
            "muster drain: needs ortools; install it with: pip install 'muster-kafka[assignor]'\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_how_a_command_ends(
    ending: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each kind of failure has its exit code and at most one line on standard error."""
    monkeypatch.setattr(cli, "_load", lambda name: Command(ending))
    assert cli.main(["drain"]) == code
    assert capsys.readouterr().err == said


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is a bug is raised and not shown as a user's error."""
    monkeypatch.setattr(cli, "_load", lambda name: Command(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["drain"])
    monkeypatch.setattr(cli, "_load", lambda name: Command(ModuleNotFoundError(name="muster.x")))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["drain"])


def test_help_loads_nothing_heavy() -> None:
    """`muster` without a command imports no Kafka client, numpy, Spark or rich."""
    code = (
        "import sys; from muster.cli.main import main; main([]); "
        "print(sorted({'confluent_kafka', 'numpy', 'pyspark', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def _assigned(tmp_path: Path, shell: str) -> subprocess.CompletedProcess[bytes]:
    """Run `muster assign` through a shell, on a problem with names beyond ASCII."""
    problem = tmp_path / "problem.json"
    text = '{"tasks": [{"subtopology": "ü", "partitions": 1}], "members": [{"id": "é"}]}'
    problem.write_text(text, encoding="utf-8")
    words = shell.format(muster=f"{sys.executable} -m muster.cli.main assign", problem=problem)
    return subprocess.run(["/bin/sh", "-c", words], capture_output=True, check=False)


def test_json_is_utf8_whatever_the_locale(tmp_path: Path) -> None:
    """The JSON output is UTF-8 even if Python's output encoding is ASCII."""
    completed = _assigned(tmp_path, "PYTHONIOENCODING=ascii {muster} {problem}")
    assert (completed.returncode, completed.stderr) == (0, b"")
    assert json.loads(completed.stdout.decode("utf-8"))["members"]["é"]["active"] == ["ü_0"]


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("{muster} - <&-", 2, b"-: cannot be read (standard input is closed)"),
        pytest.param(
            "{muster} {problem} > /dev/full",
            1,
            b"the output cannot be written: No space left on device",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only"),
        ),
        (
            "ulimit -f 0; {muster} {problem} > {problem}.answer",
            1,
            b"the output cannot be written: File too large",
        ),
    ],
)
def test_a_closed_input_and_a_full_disk_are_one_line(
    tmp_path: Path, shell: str, code: int, said: bytes
) -> None:
    """A closed input and a full disk give an exit code and one line."""
    completed = _assigned(tmp_path, shell)
    assert (completed.returncode, completed.stdout) == (code, b"")
    assert completed.stderr == b"muster assign: " + said + b"\n"
