"""Options that many commands share, spelled and explained once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from muster.documents.json_files import load
from muster.errors import BadInput
from muster.kafka.client_settings import ClientSettings, client_settings
from muster.kafka.command_options import add_client, topic_prefix
from muster.protocol.ids import group_fault, member_fault
from muster.protocol.topics import DEFAULT_PREFIX

MS_MAX = 2**31 - 1
"""Longest span that an option may give, in milliseconds: 24 days."""


def check_ms(option: str, value: int, least: int = 0) -> None:
    """Check a span in milliseconds that an option gives.

    Raises:
        BadInput: it is below `least`, or above `MS_MAX`, which not every clock can wait for.
    """
    if value < least:
        raise BadInput(f"{option} {value}: expected {least} or more")
    if value > MS_MAX:
        raise BadInput(f"{option} {value}: expected at most {MS_MAX} (24 days)")


def positive(text: str) -> int:
    """A whole number, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 1 or more")
    return int(text)


def up_to(most: int) -> Callable[[str], int]:
    """The type of an option that takes a whole number from 1 to `most`."""

    def number(text: str) -> int:
        value = positive(text)
        if value > most:
            raise argparse.ArgumentTypeError(f"{text}: expected at most {most}")
        return value

    return number


def add_repeatable(
    parser: argparse._ActionsContainer, option: str, metavar: str, help: str
) -> None:
    """Add an option that may be given several times; without it, its value is an empty list."""
    parser.add_argument(option, action="append", default=[], metavar=metavar, help=help)


def add_kafka(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """``--bootstrap-server --command-config --topic-prefix``; read them with `kafka_settings`.

    Returns:
        The argument group, for further options of that kind.
    """
    group = add_client(parser)
    group.add_argument(
        "--topic-prefix",
        type=topic_prefix,
        metavar="P",
        default=DEFAULT_PREFIX,
        help="prefix of muster's topics (default: %(default)s)",
    )
    return group


def kafka_settings(args: argparse.Namespace) -> ClientSettings:
    """The client settings that the options of `add_kafka` give.

    Raises:
        ConfigError: the properties file cannot be read.
    """
    return client_settings(args.bootstrap_server, args.command_config)


_READERS = {"table": "table for people", "json": "json for scripts"}


def add_format(parser: argparse.ArgumentParser, formats: Sequence[str] = ("table", "json")) -> None:
    """``--format json|table``; the first of `formats` is the default."""
    meaning = ", ".join(_READERS[each] for each in formats)
    parser.add_argument(
        "--format", choices=formats, default=formats[0], help=f"{meaning} (default: %(default)s)"
    )


def add_answers(parser: argparse.ArgumentParser, document: str) -> None:
    """``--format json|table``, json is the default, and ``--lines``, one `document` on each."""
    add_format(parser, ("json", "table"))
    parser.add_argument(
        "--lines",
        action="store_true",
        help=f'one {document} a line, one answer a line; a bad one answers {{"error": "..."}}',
    )


def group_id(text: str) -> str:
    """The value of ``--group``: an id that can be a record key."""
    return _checked(text, group_fault(text))


def member_id(text: str) -> str:
    """The value of ``--member``: an id that can be a record key."""
    return _checked(text, member_fault(text))


def _checked(text: str, fault: str | None) -> str:
    if fault is not None:
        raise argparse.ArgumentTypeError(fault)
    return text


def add_action(parser: argparse.ArgumentParser, *actions: str, help: str | None = None) -> None:
    """Add the first argument: which action; an error about it names the actions."""
    parser.add_argument("action", choices=actions, metavar="|".join(actions), help=help)


def key_values(pairs: Sequence[str], option: str) -> dict[str, str]:
    """Read repeated ``K=V`` arguments; the last value of a key counts.

    Raises:
        BadInput: one without ``=`` or without a key.
    """
    return dict(key_value_pairs(pairs, option))


def key_value_pairs(
    pairs: Sequence[str], option: str, form: str = "KEY=VALUE"
) -> list[tuple[str, str]]:
    """Read repeated ``K=V`` arguments, which errors call `form`; a key may have several values.

    Raises:
        BadInput: one without ``=`` or without a key.
    """
    values: list[tuple[str, str]] = []
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not key or not separator:
            raise BadInput(f"{option} {pair!r}: expected {form}")
        values.append((key, value))
    return values


def add_changes(parser: argparse.ArgumentParser) -> None:
    """Add the options of a what-if change; read them with `changes`."""
    add_repeatable(
        parser,
        "--add-member",
        "FILE",
        "a member as in a problem file of muster assign; - = standard input; repeatable",
    )
    parser.add_argument(
        "--remove-member",
        metavar="ID",
        type=member_id,
        action="append",
        default=[],
        help="a member to remove; repeatable",
    )
    add_repeatable(
        parser, "--config", "K=V", "a setting; K= puts it back to its default; repeatable"
    )
    parser.add_argument("--assignor", metavar="A", help="another assignor")


def changes(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `muster.whatif.planned` that the options of `add_changes` give.

    Raises:
        BadInput: a file cannot be read, or an option is malformed.
    """
    return {
        "add": [_member(path) for path in args.add_member],
        "remove": args.remove_member,
        "config": key_values(args.config, "--config"),
        "assignor": args.assignor,
    }


def member_places(args: argparse.Namespace) -> list[str]:
    """Where each member of `--add-member` is from, for messages: its file."""
    return [f"{path}: member" for path in args.add_member]


def _member(path: str) -> dict[str, Any]:
    member = load(path)
    if not isinstance(member, dict):
        raise BadInput(f"{path}: expected a member, an object with at least 'id'")
    return member
