"""Command-line options for the connection to Kafka, of every command and of the job."""

from __future__ import annotations

import argparse

from muster.kafka.client_settings import DEFAULT_BOOTSTRAP
from muster.protocol.topics import DEFAULT_PREFIX


def add_client(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add ``--bootstrap-server --command-config``; return their group, for further options."""
    group = parser.add_argument_group("Kafka")
    group.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT[,…]",
        help=f"the cluster (default: the file's bootstrap.servers, else {DEFAULT_BOOTSTRAP})",
    )
    group.add_argument(
        "--command-config",
        metavar="FILE",
        help="properties file with client settings (SASL, TLS, …), as Kafka's own tools take it",
    )
    return group


def add_prefixes(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """`add_client`, and a repeatable ``--topic-prefix``: a list, empty = the default."""
    group = add_client(parser)
    group.add_argument(
        "--topic-prefix",
        metavar="P",
        action="append",
        default=[],
        help=f"prefix of muster's topics; may be repeated (default: {DEFAULT_PREFIX})",
    )
    return group


def connection_options(
    bootstrap: str | None, command_config: str | None, prefix: str | None
) -> list[str]:
    """The options that lead another command to the same topics.

    None = the option was not given; of the prefix, that the command takes none.
    """
    words = [] if bootstrap is None else ["--bootstrap-server", bootstrap]
    words += [] if command_config is None else ["--command-config", command_config]
    return words if prefix in (None, DEFAULT_PREFIX) else [*words, "--topic-prefix", str(prefix)]
