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
from pathlib import Path
from tempfile import TemporaryDirectory

import javaproperties

from muster.broker.ends_with_parent import Tethered
from muster.errors import BadInput
from muster.kafka.client_settings import read_properties
from muster.streams import job

CONSOLE_PORT = 8090
PORT_MAX = 65_535
_EVERY_INTERFACE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


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
        BadInput: its port cannot be one.
        ModuleNotFoundError: its packages are not installed.
    """
    if args.console is None:
        yield
        return
    if not 0 <= args.console <= PORT_MAX:
        raise BadInput(f"--console {args.console}: expected a port, 0 to {PORT_MAX}")
    if find_spec("starlette") is None:
        raise ModuleNotFoundError("the console needs it", name="starlette")
    with TemporaryDirectory(prefix="muster-console-") as folder:
        command = console_command(args, Path(folder))
        with Tethered(command, output=None, sweep=Path(folder)):
            yield


def console_command(args: argparse.Namespace, folder: Path) -> list[str]:
    """The command line of the console that shows the groups of this job.

    If ``--conf kafka.…`` gives client settings, a file in `folder` has them.

    Raises:
        ConfigError: the file of ``--command-config`` cannot be read.
    """
    words = [sys.executable, "-m", "muster.cli.main", "console", "--port", str(args.console)]
    words += ["--log-format", args.log_format]
    given: dict[str, str] = dict(each.partition("=")[::2] for each in args.conf)
    kafka = {k.removeprefix("kafka."): v for k, v in given.items() if k.startswith("kafka.")}
    command_config = args.command_config
    if kafka:
        read = read_properties(command_config) if command_config else {}
        command_config = folder / "client.properties"
        command_config.write_text(javaproperties.dumps({**read, **kafka}), encoding="utf-8")
    for option, value in (
        ("--bootstrap-server", args.bootstrap_server),
        ("--command-config", command_config),
    ):
        words += [option, str(value)] if value else []
    for prefix in args.topic_prefix:
        words += ["--topic-prefix", prefix]
    port = given.get("muster.metrics.port", "0")
    if port != "0":  # 0 = any free one, which only the job's log tells
        host = given.get("muster.metrics.host", "")
        host = _EVERY_INTERFACE.get(host, host)
        words += ["--metrics", f"http://{f'[{host}]' if ':' in host else host}:{port}"]
    return words
