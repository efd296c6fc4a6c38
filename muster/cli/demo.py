"""Watch a fleet being coordinated: Kafka, the Spark job and workers, all on this machine.

Three workers share twelve tasks; a fourth joins, one is drained, one is killed. Everything that the
demo starts ends with it; Ctrl-C ends it at any time. --plain prints lines instead of a live view.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from muster.demo.acts import ACTS, Show, play, prepare
from muster.demo.demo_processes import DemoProcesses
from muster.demo.plain import PlainShow


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--plain",
        action="store_true",
        help="print lines (the default if the output is not a terminal)",
    )


def run(args: argparse.Namespace) -> int:
    """Play the demo."""
    prepare()
    with _show(args.plain) as show, DemoProcesses() as processes:
        play(processes, show)
    return 0


@contextmanager
def _show(plain: bool) -> Iterator[Show]:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    show: Show
    if plain or not sys.stdout.isatty():
        show = PlainShow()
    else:
        from muster.demo.terminal_view import RichShow

        show = RichShow(ACTS)
    try:
        yield show
    finally:
        show.close()
