"""Run a further clock: it wakes groups when they are due, until SIGTERM or Ctrl-C.

Every coordinator has a clock. Ticks are idempotent, so any number of clocks may run. A further one
lets groups fall due while the coordinator restarts. If the clock fails for good, the command ends
with exit code 1. --topic-prefix may be repeated.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from muster import logs
from muster.kafka import access_check
from muster.kafka.acls import Role
from muster.kafka.client_settings import client_settings
from muster.kafka.command_options import add_prefixes, prefixes_of
from muster.signing.followed_key_file import add_signing_keys, key_file_of
from muster.stop_signals import LOOK_S, stop_signals
from muster.streams.background_thread import Loop
from muster.streams.clock import Clock
from muster.streams.discovery_thread import Discovery
from muster.streams.errors import ThreadDied


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--discovery",
        action="store_true",
        help="also look at the topics of Kafka that groups declare as tasks, as the job does",
    )
    add_signing_keys(add_prefixes(parser))
    logs.add_log_format(parser)


def run(args: argparse.Namespace) -> int:
    """Write ticks until SIGTERM or SIGINT.

    Raises:
        ThreadDied: no more ticks are written, or no more topics are looked at.
    """
    logs.set_up(args.log_format)
    clients = client_settings(args.bootstrap_server, args.command_config)
    prefixes = prefixes_of(args)
    keys = key_file_of(args.signing_keys)
    access_check.check(clients, Role.CLOCK, prefixes)
    with ExitStack() as stack:
        stop = stack.enter_context(stop_signals())
        parts: list[Loop] = [stack.enter_context(Clock(clients, prefixes, keys=keys))]
        if args.discovery:
            parts.append(stack.enter_context(Discovery(clients, prefixes, keys=keys)))
        print(f"clock of {', '.join(prefixes)} at {clients.bootstrap}; Ctrl-C stops it", flush=True)
        while not stop.wait(LOOK_S):
            for part in parts:
                if not part.alive:
                    raise ThreadDied(f"thread {part.name}")
    return 0
