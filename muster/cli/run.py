"""Run the coordinator: the Spark job that assigns tasks, until SIGTERM or Ctrl-C.

It needs muster's topics (`muster topics create`) and a checkpoint folder. A restart with the same
folder continues where the job stopped. With a new folder the job reads the groups back from their
topic, and no task moves. Give --topic-prefix several times to serve several sets of topics.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from muster.broker.ends_with_parent import Tethered
from muster.streams import job

CONSOLE_PORT = 8090
_METRICS_PORT = "muster.metrics.port="


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    job.configure(parser)
    parser.add_argument(
        "--console",
        type=int,
        nargs="?",
        const=CONSOLE_PORT,
        metavar="PORT",
        help=f"run `muster console` beside it, in a process of its own (port: {CONSOLE_PORT})",
    )


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or Ctrl-C."""
    with _console(args):
        return job.run_arguments(args)


@contextmanager
def _console(args: argparse.Namespace) -> Iterator[None]:
    """`muster console`, if it was asked for. If it ends, the job goes on.

    Raises:
        ModuleNotFoundError: its packages are not installed.
    """
    if args.console is None:
        yield
        return
    if find_spec("starlette") is None:
        raise ModuleNotFoundError("the console needs it", name="starlette")
    with Tethered(console_command(args), output=None):
        yield


def console_command(args: argparse.Namespace) -> list[str]:
    """The command line of the console that shows the groups of this job."""
    words = [sys.executable, "-m", "muster.cli.main", "console", "--port", str(args.console)]
    words += ["--log-format", args.log_format]
    for option, value in (
        ("--bootstrap-server", args.bootstrap_server),
        ("--command-config", args.command_config),
    ):
        words += [option, value] if value else []
    for prefix in args.topic_prefix:
        words += ["--topic-prefix", prefix]
    ports = [c.removeprefix(_METRICS_PORT) for c in args.conf if c.startswith(_METRICS_PORT)]
    if ports:
        words += ["--metrics", f"http://127.0.0.1:{ports[-1]}"]
    return words
