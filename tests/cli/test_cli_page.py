"""docs/cli.md is true: it has every command and option and no others, and its examples run."""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.assignor.registry import names
from muster.cli import main as cli

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
COMMON = next(section for section in SECTIONS if section.startswith("For all commands"))
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
FENCED = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)


def section(command: str) -> str:
    """The page's section of a command."""
    return next(s for s in SECTIONS if re.match(rf"`muster {command}\b", s))


def parser(command: str) -> argparse.ArgumentParser:
    """The argument parser of a command."""
    return cli._parser(command, cli._load(command))


def options(command: str) -> dict[str, str | None]:
    """Long option → its help."""
    return {
        word: action.help
        for action in parser(command)._actions
        for word in action.option_strings
        if word.startswith("--") and word != "--help"
    }


def test_every_command_has_a_section_and_no_other_has() -> None:
    """The page has a section for each command and for nothing else."""
    commands = [match[1] for s in SECTIONS if (match := re.match(r"`muster (\w+)", s))]
    assert sorted(commands) == sorted(cli.COMMANDS)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_options_are_those_the_command_takes(command: str) -> None:
    """Each option is in the command's or the common section, and each named option exists."""
    own = section(command)
    taken = set(options(command))
    assert sorted(taken - {*OPTION.findall(own), *OPTION.findall(COMMON)}) == []
    elsewhere = {"--help", "--exec"}  # linked pages and other commands' own
    named = {*OPTION.findall(FENCED.sub("", own))}
    assert sorted(named - taken - elsewhere) == []


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_option_says_what_it_is_for(command: str) -> None:
    """Each option has a help text."""
    assert [word for word, said in options(command).items() if not said] == []


def test_actions_are_in_the_headings() -> None:
    """A heading such as `config set|show|…` lists the command's actions."""
    for command in cli.COMMANDS:
        for action in parser(command)._actions:
            if action.choices and not action.option_strings:
                heading = section(command).partition("\n")[0]
                actions = heading.removeprefix(f"`muster {command} ").split()[0].split("|")
                assert actions == list(action.choices), command


def test_assignors_are_named() -> None:
    """The page lists every assignor."""
    listed = section("config").partition("Assignors:")[2].partition(" or\n")[0]
    assert set(re.findall(r"`([\w-]+)`", listed)) == set(names())


def examples() -> Iterator[tuple[str, str, str, str]]:
    """(file, content, command line, output) of each example that needs no Kafka."""
    for command in ("assign", "simulate"):
        (block,) = FENCED.findall(section(command))
        lines = block.splitlines()[1:-1]
        asked = next(n for n, line in enumerate(lines) if line.startswith("$ muster"))
        file = lines[0].removeprefix("$ cat ")
        yield file, "\n".join(lines[1:asked]), lines[asked][2:], "\n".join(lines[asked + 1 :])


@pytest.mark.parametrize(("file", "content", "line", "printed"), list(examples()))
def test_examples_print_what_the_page_shows(
    file: str, content: str, line: str, printed: str, tmp_path: Path
) -> None:
    """Each example, run in a shell, prints what the page shows."""
    (tmp_path / file).write_text(content)
    words = line.partition(" | tail")[0].split()[1:]
    done = subprocess.run(
        [sys.executable, "-m", "muster.cli.main", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    shown = printed.splitlines()
    assert done.stdout.splitlines()[-len(shown) :] == shown


def test_the_doctors_checks_are_those_of_the_page() -> None:
    """The page's table has exactly the checks that the doctor's findings name."""
    folder = Path(__file__).resolve().parents[2] / "muster" / "doctor"
    called = (
        node
        for file in folder.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and "Finding" in (getattr(each, "id", "") for each in (node.func, *node.args[:1]))
    )
    words = ([arg.value for arg in call.args if isinstance(arg, ast.Constant)] for call in called)
    made = {word for word, *_ in filter(None, words)}
    checks = re.findall(r"^\| `(\w+)` \|", section("doctor"), flags=re.MULTILINE)
    assert set(checks) == made
