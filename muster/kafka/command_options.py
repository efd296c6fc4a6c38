"""Command-line options for the connection to Kafka, of every command and of the job."""

from __future__ import annotations

import argparse
import re

from muster.kafka.client_settings import DEFAULT_BOOTSTRAP
from muster.protocol.topics import DEFAULT_PREFIX, TopicKind

PREFIX_CHARS_MAX = 249 - max(len(f".{kind}") for kind in TopicKind)
"""A topic's name has at most 249 characters."""
_PREFIX = re.compile(rf"[A-Za-z0-9._-]{{1,{PREFIX_CHARS_MAX}}}")


def topic_prefix(text: str) -> str:
    """The value of ``--topic-prefix``, with which a topic's name can begin."""
    if not _PREFIX.fullmatch(text):
        accepted = f"1 to {PREFIX_CHARS_MAX} characters: letters, digits, . _ -"
        raise argparse.ArgumentTypeError(f"{text[:PREFIX_CHARS_MAX]!r}: expected {accepted}")
    return text


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
    """`add_client`, and a repeatable ``--topic-prefix``; read it with `prefixes_of`."""
    group = add_client(parser)
    group.add_argument(
        "--topic-prefix",
        type=topic_prefix,
        metavar="P",
        action="append",
        default=[],
        help=f"prefix of muster's topics; may be repeated (default: {DEFAULT_PREFIX})",
    )
    return group


def prefixes_of(args: argparse.Namespace) -> list[str]:
    """The prefixes that the options of `add_prefixes` give, each once; without any the default.

    Kafka refuses a question that names a topic twice.
    """
    return list(dict.fromkeys(args.topic_prefix)) or [DEFAULT_PREFIX]


def connection_options(
    bootstrap: str | None, command_config: str | None, prefix: str | None
) -> list[str]:
    """The options that lead another command to the same topics.

    None = the option was not given; of the prefix, that the command takes none.
    """
    words = [] if bootstrap is None else ["--bootstrap-server", bootstrap]
    words += [] if command_config is None else ["--command-config", command_config]
    return words if prefix in (None, DEFAULT_PREFIX) else [*words, "--topic-prefix", str(prefix)]
